//! The device work: what is filled and checked, on which stream, and what it comes after.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, BlockId, BlockUse, Corruption, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, UseTokens, UseTrackingExt, WholeBlock,
};

use super::allocation::{Allocation, FREED, FRESH, Phase, RED_ZONE};
use super::table::Kept;
use super::verdicts::Suspect;
use super::{DebugGuardResource, GuardChecks};

/// Work of the guard on a block.
struct Work {
    stream: StreamId,
    /// Where the upstream resource tracks uses.
    tokens: Option<UseTokens>,
}

/// The outcome of checking and filling a deallocated block.
pub(super) enum Sealed {
    Poisoned,
    /// Its red zones were written. It was not filled.
    Corrupted(Box<Corruption>),
    /// A window is open on it. It was neither checked nor filled.
    InUse,
    /// No work can be submitted for it: the device is lost, or its home stream is of another pool.
    Unchecked,
}

/// A block whose deallocation upstream failed, and the error.
pub(super) type Refused = Box<(ResourceError, Kept)>;

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    /// Fills a fresh block and its red zones, before all later work on its home stream.
    pub(super) fn poison_fresh(
        &self,
        whole: &DeviceBlock,
        allocation: &Allocation,
    ) -> ResourceResult<()> {
        let ops = self.verdicts.ops();
        let work = self.begin(whole.id(), ops.library_stream(whole)?, Access::Write)?;
        let joined = ops
            .fill_pattern(whole, 0..whole.bytes(), RED_ZONE, work.stream)
            .and_then(|()| ops.fill_pattern(whole, allocation.payload(), FRESH, work.stream))
            .and_then(|()| ops.join_home_stream(whole));
        match joined {
            // The fill is not recorded as a use. A use would replace the allocation, which also covers
            // unrecorded work on the home stream, and now the fill.
            Ok(true) => {
                let (stream, is_tracked) = (work.stream, work.tokens.is_some());
                self.cancel(work);
                if is_tracked && !ops.count_as_allocation(whole) {
                    self.get_ref().record_block_use(whole, stream)?;
                }
                Ok(())
            }
            Ok(false) => {
                self.undo(work);
                let (home, problem) = (whole.alloc_stream(), StreamProblem::ReturnedLease);
                Err(ResourceError::stream_misuse(home, problem))
            }
            Err(error) => {
                self.undo(work);
                Err(error)
            }
        }
    }

    /// Checks the red zones of a deallocated block, then fills all of it with [`FREED`]: after every
    /// recorded use, and all work on its home stream. `by_owner`: as a part of `deallocate`, which may
    /// wait for the verdict and may make the home stream wait.
    pub(super) fn seal(&self, kept: &Kept, by_owner: bool) -> ResourceResult<Sealed> {
        match self.try_seal(kept, by_owner) {
            Err(ResourceError::WindowConflict { .. }) => Ok(Sealed::InUse),
            Err(error) if is_gone(&error) => {
                self.unchecked.fetch_add(1, Ordering::Relaxed);
                Ok(Sealed::Unchecked)
            }
            sealed => sealed,
        }
    }

    fn try_seal(&self, kept: &Kept, by_owner: bool) -> ResourceResult<Sealed> {
        let stream = self.verdicts.ops().library_stream(&kept.whole)?;
        let work = self.begin(kept.whole.id(), stream, Access::ReadWrite)?;
        let is_awaited = by_owner && self.checks == GuardChecks::Immediate;
        match self.check_and_poison(kept, stream, is_awaited) {
            Ok(Sealed::Poisoned) => {}
            other => {
                self.undo(work);
                return other;
            }
        }
        // A later write on the home stream comes after the fill, and is found.
        match if by_owner { self.verdicts.ops().join_home_stream(&kept.whole) } else { Ok(false) } {
            Ok(true) => self.cancel(work),
            Err(error) if self.refill_red_zones(kept, stream).is_ok() => {
                self.undo(work);
                return Err(error);
            }
            // What cannot be recorded is remembered, and waited for before the block is freed.
            Ok(false) | Err(_) => drop(self.record(work)),
        }
        Ok(Sealed::Poisoned)
    }

    /// Fills the red zones of a block that stays live.
    fn refill_red_zones(&self, kept: &Kept, stream: StreamId) -> ResourceResult<()> {
        let (Kept { whole, allocation }, ops) = (kept, self.verdicts.ops());
        let mut zones = allocation.red_zones(whole.bytes()).into_iter();
        zones.try_for_each(|zone| ops.fill_pattern(whole, zone, RED_ZONE, stream))
    }

    fn check_and_poison(
        &self,
        kept: &Kept,
        stream: StreamId,
        is_awaited: bool,
    ) -> ResourceResult<Sealed> {
        let Kept { whole, allocation } = kept;
        let suspect = if is_awaited {
            Suspect::awaited(allocation, &self.findings)
        } else {
            Suspect::new(allocation, Phase::Live, &self.findings)
        };
        let ops = self.verdicts.ops();
        let check = |zone, key| ops.check_pattern(whole, zone, RED_ZONE, stream, key);
        let key = self.check_red_zones(allocation, whole.bytes(), &suspect, check)?;
        if is_awaited && let Some(found) = self.verdicts.decide(key, &suspect)? {
            return Ok(Sealed::Corrupted(Box::new(found)));
        }
        // One call of the driver: if it fails, the block is as it was.
        ops.fill_pattern(whole, 0..whole.bytes(), FREED, stream)?;
        Ok(Sealed::Poisoned)
    }

    /// Calls `check` for both red zones of a block that has `whole_bytes` bytes with them.
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
        let stream = ops.library_stream(&kept.whole)?;
        let work = self.begin(kept.whole.id(), stream, Access::Read)?;
        let suspect = Suspect::new(&kept.allocation, Phase::Freed, &self.findings);
        let all = 0..kept.whole.bytes();
        let check = |key| ops.check_pattern(&kept.whole, all, FREED, stream, key);
        let submitted = self.verdicts.submit(&suspect, check).map(drop);
        submitted.and(self.record(work))
    }

    /// Submits checks of all live blocks; returns the first error. The caller keeps other threads from
    /// opening windows meanwhile.
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
        let stream = whole.library_stream(ops)?;
        let work = match self.begin(whole.id(), stream, Access::Read) {
            // A window is open for a write. It may write the payload: the check of the red zones does
            // not conflict with it, and is waited for below instead of recorded.
            Err(ResourceError::WindowConflict { .. }) => Work { stream, tokens: None },
            work => work?,
        };
        let suspect = Suspect::new(allocation, Phase::Live, &self.findings);
        let check = |zone, key| whole.check_pattern(ops, zone, RED_ZONE, stream, key);
        let submitted = self.check_red_zones(allocation, whole.bytes(), &suspect, check).map(drop);
        submitted.and(self.record(work))
    }

    /// Submits checks of all blocks in quarantine; returns the first error.
    pub(super) fn check_held(&self) -> ResourceResult<()> {
        let held = self.quarantine.take_held();
        let mut outcome = Ok(());
        for kept in &held {
            outcome = outcome.and(self.check_poison(kept));
        }
        self.quarantine.put_held(held);
        outcome
    }

    /// Seals waiting blocks whose windows have closed, and deallocates quarantined blocks upstream: `all`
    /// of them, or those beyond the bounds. Returns the bytes that are freed by that, and the first
    /// error; blocks that failed are kept. One thread at a time.
    pub(super) fn sweep(&self, all: bool) -> (u64, ResourceResult<()>) {
        let (mut freed, mut outcome) = (0, Ok(()));
        for kept in self.quarantine.take_waiting() {
            if self.table.has_open_window(kept.allocation.generation) {
                self.quarantine.wait(kept);
                continue;
            }
            match self.seal(&kept, false) {
                Ok(Sealed::Unchecked) => match self.deallocate_upstream(kept) {
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

    /// Checks a block that leaves the quarantine, and deallocates it upstream, which frees it after the
    /// check. Does not wait for the verdict.
    fn evict(&self, kept: Kept) -> Result<u64, Refused> {
        match self.check_poison(&kept) {
            Err(error) if !is_gone(&error) => return Err(Box::new((error, kept))),
            Err(_) => _ = self.unchecked.fetch_add(1, Ordering::Relaxed),
            Ok(()) => {}
        }
        self.deallocate_upstream(kept)
    }

    /// Deallocates a block upstream; returns the bytes that are freed by that.
    pub(super) fn deallocate_upstream(&self, kept: Kept) -> Result<u64, Refused> {
        let Kept { whole, allocation } = kept;
        let id = whole.id();
        match self.get_ref().deallocate(whole) {
            Ok(state) => {
                let is_retired = |block| self.get_ref().is_retired(block);
                let freed =
                    self.accounts.deallocated_upstream(id, allocation.bytes, state, is_retired);
                self.table.remove(&allocation);
                Ok(freed)
            }
            Err(refused) => {
                let DeallocateError { error, block: whole, .. } = *refused;
                Err(Box::new((error, Kept { whole, allocation })))
            }
        }
    }

    /// Reads all verdicts back. A lost device has none.
    pub(super) fn collect_unless_lost(&self) -> ResourceResult<()> {
        if self.verdicts.pending() == 0 {
            return Ok(());
        }
        match self.verdicts.collect() {
            Err(ResourceError::DeviceLost { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// Makes a library stream wait for what a use of the block must come after, where that is tracked.
    fn begin(&self, block: BlockId, stream: StreamId, access: Access) -> ResourceResult<Work> {
        let upstream = self.get_ref();
        let uses = [BlockUse::new(block, access)];
        let is_tracked = upstream.supports_block_use_tracking();
        let tokens = is_tracked.then(|| upstream.prepare_uses(&uses, stream)).transpose()?;
        Ok(Work { stream, tokens })
    }

    /// Makes everything that must come after the block's uses come after this work, too: records it as
    /// a use. Where uses are not tracked, waits for it.
    fn record(&self, work: Work) -> ResourceResult<()> {
        match work.tokens {
            Some(tokens) => self.get_ref().finish_uses(tokens),
            None => self.verdicts.ops().synchronize(work.stream),
        }
    }

    /// Waits for work that is not to be recorded as a use. If that fails it is recorded.
    fn undo(&self, work: Work) {
        match self.verdicts.ops().synchronize(work.stream) {
            Ok(()) => self.cancel(work),
            // The error of the work itself says more.
            Err(_) => drop(self.record(work)),
        }
    }

    /// Closes the window of work that something else is ordered after.
    fn cancel(&self, work: Work) {
        if let Some(tokens) = work.tokens {
            // A window that was just opened can be closed, unless the device is lost.
            let _ = self.get_ref().cancel_uses(tokens);
        }
    }
}

/// Returns whether no work can be submitted for the block any more.
fn is_gone(error: &ResourceError) -> bool {
    matches!(error, ResourceError::StreamMisuse { .. } | ResourceError::DeviceLost { .. })
}
