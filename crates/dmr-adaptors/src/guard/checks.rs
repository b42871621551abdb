//! The device work: what is filled and checked, and what it comes after.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{
    Access, BlockId, BlockUse, Corruption, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, UseTokens, WholeBlock,
};

use super::allocation::{Allocation, FREED, FRESH, Phase, RED_ZONE};
use super::table::Kept;
use super::verdicts::Suspect;
use super::{DebugGuardResource, GuardChecks};

/// What has come of checking and poisoning a block that was given back.
pub(super) enum Sealed {
    Poisoned,
    /// Its red zones were written. It was not poisoned.
    Corrupted(Box<Corruption>),
    /// A window is open on it.
    InUse,
    /// No work can be submitted for it: its home stream is gone, or the device is.
    Unchecked,
}

/// A block that the inner resource has not taken, and why.
pub(super) type Refused = Box<(ResourceError, Kept)>;

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    /// Fills a fresh block and its red zones, on its home stream.
    pub(super) fn poison_fresh(
        &self,
        whole: &DeviceBlock,
        allocation: &Allocation,
    ) -> ResourceResult<()> {
        let ops = self.verdicts.ops();
        let home = ops.home_stream(whole)?;
        ops.fill_pattern(whole, 0..whole.bytes(), RED_ZONE, home)?;
        ops.fill_pattern(whole, allocation.payload(), FRESH, home)?;
        // The fill is not recorded as a use. A use would replace the allocation, which also covers
        // unrecorded work on the home stream.
        if ops.count_as_allocation(whole) {
            return Ok(());
        }
        let tokens = self.open(whole.id(), home, Access::Write)?;
        tokens.map_or(Ok(()), |tokens| self.get_ref().finish_uses(tokens))
    }

    /// Checks the red zones of a block that was given back, then poisons all of it: on its home
    /// stream, after every recorded use. If `answers`, the caller can be told what is found.
    pub(super) fn seal(&self, kept: &Kept, answers: bool) -> ResourceResult<Sealed> {
        match self.try_seal(kept, answers) {
            Err(ResourceError::WindowConflict { .. }) => Ok(Sealed::InUse),
            Err(error) if is_gone(&error) => {
                self.unchecked.fetch_add(1, Ordering::Relaxed);
                Ok(Sealed::Unchecked)
            }
            answer => answer,
        }
    }

    fn try_seal(&self, kept: &Kept, answers: bool) -> ResourceResult<Sealed> {
        let home = self.verdicts.ops().home_stream(&kept.whole)?;
        let tokens = self.open(kept.whole.id(), home, Access::ReadWrite)?;
        let sealed = self.check_and_poison(kept, home, answers);
        self.close(tokens);
        sealed
    }

    fn check_and_poison(
        &self,
        kept: &Kept,
        home: StreamId,
        answers: bool,
    ) -> ResourceResult<Sealed> {
        let Kept { whole, allocation } = kept;
        let is_awaited = answers && self.checks == GuardChecks::Immediate;
        let suspect = if is_awaited {
            Suspect::awaited(allocation, &self.findings)
        } else {
            Suspect::new(allocation, Phase::Live, &self.findings)
        };
        let ops = self.verdicts.ops();
        let check = |zone, key| ops.check_pattern(whole, zone, RED_ZONE, home, key);
        let key = self.check_red_zones(allocation, whole.bytes(), &suspect, check)?;
        if is_awaited {
            match self.verdicts.decide(key, &suspect) {
                Ok(Some(found)) => return Ok(Sealed::Corrupted(Box::new(found))),
                // Another stream with a check under way captures a graph, and must not be waited
                // for: whoever reads verdicts back later will answer what is found.
                Ok(None) | Err(ResourceError::StreamCapturing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // One call of the driver: if it fails, the block is as it was.
        self.verdicts.ops().fill_pattern(whole, 0..whole.bytes(), FREED, home)?;
        Ok(Sealed::Poisoned)
    }

    /// Makes `check` for both red zones of a block that has `whole_bytes` bytes with them.
    fn check_red_zones(
        &self,
        allocation: &Allocation,
        whole_bytes: usize,
        suspect: &Arc<Suspect>,
        check: impl Fn(Range<usize>, u64) -> ResourceResult<()>,
    ) -> ResourceResult<u64> {
        self.verdicts.submit(suspect, |key| {
            let mut zones = allocation.red_zones(whole_bytes).into_iter();
            zones.try_for_each(|zone| check(zone, key))
        })
    }

    /// Checks that a block in quarantine is as it was poisoned.
    fn check_poison(&self, kept: &Kept) -> ResourceResult<()> {
        let ops = self.verdicts.ops();
        let home = ops.home_stream(&kept.whole)?;
        let suspect = Suspect::new(&kept.allocation, Phase::Freed, &self.findings);
        let all = 0..kept.whole.bytes();
        let check = |key| ops.check_pattern(&kept.whole, all, FREED, home, key);
        self.verdicts.submit(&suspect, check).map(drop)
    }

    /// Submits checks of all blocks that are handed out; answers the first error. The caller sees
    /// to it that nobody opens a window meanwhile.
    pub(super) fn check_live(&self) -> ResourceResult<()> {
        let mut outcome = Ok(());
        for (whole, allocation) in self.table.take_live() {
            outcome = outcome.and(self.check_one_live(&whole, &allocation));
            self.table.put_checked(whole, &allocation);
        }
        outcome
    }

    fn check_one_live(
        &self,
        whole: &WholeBlock,
        allocation: &Arc<Allocation>,
    ) -> ResourceResult<()> {
        let ops = self.verdicts.ops();
        let home = whole.home_stream(ops)?;
        match self.open(whole.id(), home, Access::Read) {
            // Preparing has made the home stream wait for what was recorded. Only that is needed:
            // red zones are nobody's to write, so a look at them is in nobody's way.
            Ok(tokens) => self.close(tokens),
            Err(ResourceError::WindowConflict { .. }) => {}
            Err(error) => return Err(error),
        }
        let suspect = Suspect::new(allocation, Phase::Live, &self.findings);
        let check = |zone, key| whole.check_pattern(ops, zone, RED_ZONE, home, key);
        self.check_red_zones(allocation, whole.bytes(), &suspect, check).map(drop)
    }

    /// Submits checks of all blocks in quarantine; answers the first error.
    pub(super) fn check_held(&self) -> ResourceResult<()> {
        let held = self.quarantine.take_held();
        let mut outcome = Ok(());
        for kept in &held {
            outcome = outcome.and(self.check_poison(kept));
        }
        self.quarantine.put_held(held);
        outcome
    }

    /// Seals waiting blocks whose windows have closed, and lets quarantined blocks go: `all` of
    /// them, or those beyond the bound. Answers the bytes that are freed by that, and the first
    /// error; what failed is kept. One thread at a time.
    pub(super) fn sweep(&self, all: bool) -> (u64, ResourceResult<()>) {
        let (mut freed, mut outcome) = (0, Ok(()));
        for kept in self.quarantine.take_waiting() {
            if self.table.has_open_window(kept.allocation.generation) {
                self.quarantine.wait(kept);
                continue;
            }
            match self.seal(&kept, false) {
                Ok(Sealed::Unchecked) => match self.pass_on(kept) {
                    Ok(bytes) => freed += bytes,
                    Err(refused) => {
                        let (error, kept) = *refused;
                        self.quarantine.wait(kept);
                        outcome = outcome.and(Err(error));
                    }
                },
                Ok(Sealed::InUse) => self.quarantine.wait(kept),
                Ok(_) => self.quarantine.hold(kept),
                Err(error) => {
                    self.quarantine.wait(kept);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        let mut stuck = Vec::new();
        while let Some(kept) = self.quarantine.release(all) {
            match self.evict(kept) {
                Ok(bytes) => freed += bytes,
                Err(refused) => {
                    let (error, kept) = *refused;
                    stuck.push(kept);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        for kept in stuck.into_iter().rev() {
            self.quarantine.hold_first(kept);
        }
        (freed, outcome)
    }

    /// Checks a block that leaves the quarantine, and gives it to the inner resource: nobody waits
    /// for the verdict, since the free comes after the check on the home stream.
    fn evict(&self, kept: Kept) -> Result<u64, Refused> {
        match self.check_poison(&kept) {
            Err(error) if !is_gone(&error) => return Err(Box::new((error, kept))),
            Err(_) => _ = self.unchecked.fetch_add(1, Ordering::Relaxed),
            Ok(()) => {}
        }
        self.pass_on(kept)
    }

    /// Gives a block to the inner resource; answers the bytes that are freed by that.
    pub(super) fn pass_on(&self, kept: Kept) -> Result<u64, Refused> {
        let Kept { whole, allocation } = kept;
        let id = whole.id();
        match self.get_ref().deallocate(whole) {
            Ok(state) => {
                let is_retired = |block| self.get_ref().is_retired(block);
                let freed = self.accounts.passed_on(id, allocation.bytes, state, is_retired);
                self.table.remove(&allocation);
                Ok(freed)
            }
            Err(refused) => {
                let DeallocateError { error, block: whole, .. } = *refused;
                Err(Box::new((error, Kept { whole, allocation })))
            }
        }
    }

    /// Reads all verdicts back. Those of a lost device will never come.
    pub(super) fn collect_unless_lost(&self) -> ResourceResult<()> {
        if self.verdicts.pending() == 0 {
            return Ok(());
        }
        match self.verdicts.collect() {
            Err(ResourceError::DeviceLost { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// Makes the home stream wait for what a use must come after, where that is tracked.
    fn open(
        &self,
        block: BlockId,
        home: StreamId,
        access: Access,
    ) -> ResourceResult<Option<UseTokens>> {
        let inner = self.get_ref();
        if !inner.supports_block_use_tracking() {
            return Ok(None);
        }
        inner.prepare_uses(&[BlockUse::new(block, access)], home).map(Some)
    }

    /// Closes a window whose work needs no recording: it is on the home stream, where the free
    /// comes after it, and nobody else's use can conflict with it.
    fn close(&self, tokens: Option<UseTokens>) {
        if let Some(tokens) = tokens {
            // Closing what was just opened cannot fail for a reason that anybody could act on.
            let _ = self.get_ref().cancel_uses(tokens);
        }
    }
}

/// Whether no work can be submitted to a home stream any more.
fn is_gone(error: &ResourceError) -> bool {
    matches!(error, ResourceError::StreamMisuse { .. } | ResourceError::DeviceLost { .. })
}
