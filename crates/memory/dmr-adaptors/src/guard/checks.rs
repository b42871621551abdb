//! The device work: what is filled and checked, on which stream, and what it comes after.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, BlockId, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTokens, UseTrackingExt, WholeBlock,
};

use super::allocation::{Allocation, FREED, FRESH, Phase, RED_ZONE};
use super::blocks::Kept;
use super::findings::Check;
use super::{DebugGuardResource, GuardChecks};

/// Work of the guard on a block.
struct Work {
    stream: StreamId,
    /// `None` if the upstream resource does not track uses.
    tokens: Option<UseTokens>,
}

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    /// Fills a fresh block and its red zones, before all later work on its home stream.
    pub(super) fn fill_fresh(
        &self,
        whole: &DeviceBlock,
        allocation: &Allocation,
    ) -> ResourceResult<()> {
        let ops = self.ops();
        let work = self.begin(whole.id(), ops.library_stream(whole)?, Access::Write)?;
        let joined = ops
            .fill_pattern(whole, 0..whole.bytes(), RED_ZONE, work.stream)
            .and_then(|()| ops.fill_pattern(whole, allocation.payload(), FRESH, work.stream))
            .and_then(|()| ops.join_home_stream(whole));
        if joined != Ok(true) {
            self.undo(work);
            let home = whole.alloc_stream();
            let problem = StreamProblem::ReturnedLease;
            return joined.and(Err(ResourceError::stream_misuse(home, problem)));
        }
        // The fill is not recorded as a use. A use would replace the allocation, which also covers
        // unrecorded work on the home stream, and now the fill.
        let stream = work.stream;
        let is_tracked = work.tokens.is_some();
        self.cancel(work);
        if is_tracked && !ops.count_as_allocation(whole) {
            self.upstream().record_block_use(whole, stream)?;
        }
        Ok(())
    }

    /// Checks the red zones of a deallocated block, then fills all of it with [`FREED`]: after
    /// every recorded use, and all work on its home stream. `by_owner`: as a part of `deallocate`,
    /// which may wait for the verdict and may make the home stream wait. Returns `false`, and has
    /// done nothing, if a window is open on the block.
    ///
    /// # Errors
    ///
    /// [`Corrupted`](ResourceError::Corrupted), stream and driver errors. The block is as it was.
    pub(super) fn seal(&self, kept: &Kept, by_owner: bool) -> ResourceResult<bool> {
        if self.blocks.has_open_window(kept.allocation.generation) {
            return Ok(false);
        }
        match self.check_and_fill(kept, by_owner) {
            Err(ResourceError::WindowConflict { .. }) => Ok(false),
            // The block leaves the quarantine unchecked.
            Err(error) if is_gone(&error) => {
                let is_lost = matches!(error, ResourceError::DeviceLost { .. });
                self.is_lost.fetch_or(is_lost, Ordering::Relaxed);
                Ok(true)
            }
            sealed => sealed.map(|()| true),
        }
    }

    fn check_and_fill(&self, kept: &Kept, by_owner: bool) -> ResourceResult<()> {
        let Kept { whole, allocation, .. } = kept;
        let ops = self.ops();
        let stream = ops.library_stream(whole)?;
        let work = self.begin(whole.id(), stream, Access::ReadWrite)?;
        let is_awaited = by_owner && self.config.mode == GuardChecks::Immediate;
        let checked = self.check_deallocated(kept, stream, is_awaited);
        // One call of the driver: if it fails, the block is as it was.
        let fill = || ops.fill_pattern(whole, 0..whole.bytes(), FREED, stream);
        if let Err(error) = checked.and_then(|()| fill()) {
            self.undo(work);
            return Err(error);
        }
        let mut zones = allocation.red_zones(whole.bytes()).into_iter();
        // A later write on the home stream comes after the fill, and is found.
        match if by_owner { ops.join_home_stream(whole) } else { Ok(false) } {
            Ok(true) => self.cancel(work),
            // The block stays live, so its red zones are filled again.
            Err(error)
                if zones
                    .try_for_each(|zone| ops.fill_pattern(whole, zone, RED_ZONE, stream))
                    .is_ok() =>
            {
                self.undo(work);
                return Err(error);
            }
            // Work that cannot be recorded is remembered, and waited for before the block is freed.
            Ok(false) | Err(_) => drop(self.record(work)),
        }
        Ok(())
    }

    fn check_deallocated(
        &self,
        kept: &Kept,
        stream: StreamId,
        is_awaited: bool,
    ) -> ResourceResult<()> {
        let Kept { whole, allocation, .. } = kept;
        let check = Check::new(allocation, Phase::Live, &self.findings);
        let zones = allocation.red_zones(whole.bytes());
        let submit = |key| {
            let check = |zone| self.ops().check_pattern(whole, zone, RED_ZONE, stream, key);
            zones.into_iter().try_for_each(check)
        };
        if !is_awaited {
            return self.config.checks.submit(check, submit).map(drop);
        }
        match self.config.checks.submit_and_collect(check, submit)? {
            Some(found) => Err(ResourceError::Corrupted(Box::new(found))),
            None => Ok(()),
        }
    }

    /// Submits checks of a live block. The caller keeps other threads from opening windows
    /// meanwhile.
    pub(super) fn check_live(
        &self,
        whole: &WholeBlock,
        allocation: &Arc<Allocation>,
    ) -> ResourceResult<()> {
        let ops = self.ops();
        let stream = whole.library_stream(ops)?;
        let work = match self.begin(whole.id(), stream, Access::Read) {
            // A window is open for a write. It may write the payload: the check of the red zones
            // does not conflict with it, and is waited for below instead of recorded.
            Err(ResourceError::WindowConflict { .. }) => Work { stream, tokens: None },
            work => work?,
        };
        let check = Check::new(allocation, Phase::Live, &self.findings);
        let zones = allocation.red_zones(whole.bytes());
        let submitted = self.config.checks.submit(check, |key| {
            let check = |zone| whole.check_pattern(ops, zone, RED_ZONE, stream, key);
            zones.into_iter().try_for_each(check)
        });
        submitted.map(drop).and(self.record(work))
    }

    /// Submits a check that a block in quarantine is as it was filled, if it was.
    pub(super) fn check_fill(&self, kept: &Kept) -> ResourceResult<()> {
        if kept.allocation.bytes == 0 {
            return Ok(());
        }
        let Kept { whole, allocation, .. } = kept;
        let ops = self.ops();
        let stream = ops.library_stream(whole)?;
        let work = self.begin(whole.id(), stream, Access::Read)?;
        let check = Check::new(allocation, Phase::Freed, &self.findings);
        let submitted = self
            .config
            .checks
            .submit(check, |key| ops.check_pattern(whole, 0..whole.bytes(), FREED, stream, key));
        submitted.map(drop).and(self.record(work))
    }

    /// Reads all verdicts back. A lost device has none.
    pub(super) fn collect_unless_lost(&self) -> ResourceResult<()> {
        match self.config.checks.collect() {
            Err(ResourceError::DeviceLost { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    fn ops(&self) -> &dyn DeviceOps {
        self.config.checks.ops()
    }

    /// Makes a library stream wait for what a use of the block must come after, where that is
    /// tracked.
    fn begin(&self, block: BlockId, stream: StreamId, access: Access) -> ResourceResult<Work> {
        let upstream = self.upstream();
        let uses = [BlockUse::new(block, access)];
        let is_tracked = upstream.supports_block_use_tracking();
        let tokens = is_tracked.then(|| upstream.prepare_uses(&uses, stream)).transpose()?;
        Ok(Work { stream, tokens })
    }

    /// Makes everything that must come after the block's uses come after this work, too: records it
    /// as a use. Where uses are not tracked, waits for it.
    fn record(&self, work: Work) -> ResourceResult<()> {
        match work.tokens {
            Some(tokens) => self.upstream().finish_uses(tokens),
            None => self.ops().synchronize(work.stream),
        }
    }

    /// Waits for work that is not to be recorded as a use. If that fails it is recorded.
    fn undo(&self, work: Work) {
        match self.ops().synchronize(work.stream) {
            Ok(()) => self.cancel(work),
            // The error of the work itself says more.
            Err(_) => drop(self.record(work)),
        }
    }

    /// Closes the window of work that something else is ordered after.
    fn cancel(&self, work: Work) {
        if let Some(tokens) = work.tokens {
            // A window that was just opened can be closed, unless the device is lost.
            let _ = self.upstream().cancel_uses(tokens);
        }
    }
}

/// Returns whether no work can be submitted for the block any more.
pub(super) const fn is_gone(error: &ResourceError) -> bool {
    matches!(error, ResourceError::StreamMisuse { .. } | ResourceError::DeviceLost { .. })
}
