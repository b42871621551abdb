//! The calls of the trait, each around the same call of the upstream resource.

use std::backtrace::Backtrace;
use std::sync::Arc;

use dmr_core::{
    AllocTag, BlockId, BlockState, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, Usage, UseTokens, UseTracking, VirtualMemory,
};

use super::allocation::Allocation;
use super::checks::Sealed;
use super::{DebugGuardResource, GuardChecks};
use crate::forward::forward;

/// The number of blocks whose verdicts may wait on the device before a deferred `deallocate` reads them.
const MAX_PENDING: usize = 4096;

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for DebugGuardResource<R> {
    forward!(
        get_ref: device_ordinal,
        stream_pool,
        // The quarantine stays: `reap_pending` empties it.
        trim_to,
    );

    /// The sizes in upstream's errors include the red zones.
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        self.refuse_fork()?;
        let whole_bytes = Allocation::whole_bytes(bytes, self.red_zone)
            .ok_or(ResourceError::size_overflow(bytes))?;
        let whole = self.allocate_upstream(whole_bytes, stream, tag)?;
        let backtrace = self.backtraces.then(Backtrace::force_capture);
        let allocation = Arc::new(Allocation::new(&whole, bytes, self.red_zone, backtrace));
        let poisoned = self.poison_fresh(&whole, &allocation);
        // Returned if upstream has allocated less than was asked for.
        let no_room = ResourceError::out_of_bounds(&whole, self.red_zone, bytes);
        let narrowed = match poisoned {
            Ok(()) => whole.narrow(self.red_zone, bytes).map_err(|whole| (no_room, whole)),
            Err(error) => Err((error, whole)),
        };
        match narrowed {
            Ok((block, whole)) => {
                self.accounts.allocated(bytes);
                self.table.insert(allocation, whole);
                Ok(block)
            }
            Err((error, whole)) => {
                self.strays.add(whole, self.get_ref());
                Err(error)
            }
        }
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(error) = self.refuse_fork() {
            return Err(DeallocateError::new(error, block));
        }
        let (id, bytes) = (block.id(), block.bytes());
        let taken = {
            let _passing = self.passing();
            self.table.take(block)
        };
        let (kept, in_use) = match taken {
            Ok(taken) => taken,
            Err((refusal, block)) => {
                let error = refusal.error(&block, self.device_ordinal());
                return Err(DeallocateError::new(error, block));
            }
        };
        self.accounts.deallocated(bytes);
        let refuse = |error, kept| {
            self.accounts.restored(bytes);
            Err(DeallocateError::new(error, self.table.put_back(kept)))
        };
        let sealed = if in_use { Ok(Sealed::InUse) } else { self.seal(&kept, true) };
        let state = match sealed {
            Ok(Sealed::Poisoned) => {
                self.quarantine.hold(kept);
                None
            }
            Ok(Sealed::InUse) => Some(self.keep_waiting(kept)),
            Ok(Sealed::Corrupted(found)) => return refuse(ResourceError::Corrupted(found), kept),
            Ok(Sealed::Unchecked) => match self.deallocate_upstream(kept) {
                Ok(_) => None,
                Err(refused) => return refuse(refused.0, refused.1),
            },
            Err(error) => return refuse(error, kept),
        };
        self.tidy();
        if self.checks == GuardChecks::Deferred && self.verdicts.pending() >= MAX_PENDING {
            // A failed collection leaves the verdicts for the next.
            drop(self.verdicts.collect());
        }
        Ok(state.unwrap_or_else(|| self.state_of(id)))
    }

    /// Never grows a block: behind it is its red zone.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.refuse_fork()?;
        // `check_all` takes live blocks out of the table.
        let _passing = self.passing();
        match self.table.refusal(block) {
            Some(refusal) => Err(refusal.error(block, self.device_ordinal())),
            None => Ok(bytes <= block.bytes()),
        }
    }

    fn is_retired(&self, block: BlockId) -> bool {
        if self.is_forked() {
            return false;
        }
        self.table.is_deallocated(block.generation()) || self.get_ref().is_retired(block)
    }

    fn bytes_outstanding(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        // Upstream counts red zones as well, and so never less.
        let with_red_zones = self.get_ref().bytes_outstanding();
        self.accounts.settle(|block| self.get_ref().is_retired(block));
        self.accounts.usage().outstanding().min(with_red_zones)
    }

    fn usage(&self) -> Usage {
        if self.is_forked() {
            return Usage::default();
        }
        let reserved = self.get_ref().usage().reserved;
        self.accounts.settle(|block| self.get_ref().is_retired(block));
        let mut usage = self.accounts.usage();
        usage.reserved = reserved;
        usage
    }

    /// Checks and poisons blocks whose windows have closed, and deallocates upstream those that are beyond
    /// the quarantine's bounds. Does not wait, and so reads no verdicts back.
    ///
    /// # Errors
    ///
    /// [`Corrupted`](ResourceError::Corrupted) once for each violation that was found and that no
    /// call has reported, after it has freed what it could.
    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap(false, R::try_reap)
    }

    /// Checks all blocks in quarantine, deallocates them upstream, and reads all verdicts back.
    ///
    /// # Errors
    ///
    /// As [`try_reap`](Self::try_reap).
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reap(true, R::reap_pending)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.get_ref().use_tracking().map(|_| self as _)
    }

    /// Returns `None`: pages have no red zones, and are not quarantined.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}

/// Counts the windows of blocks that the guard has.
impl<R: DeviceMemoryResource> UseTracking for DebugGuardResource<R> {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.refuse_fork()?;
        let upstream = self.tracking(tokens.stream())?;
        let _passing = self.passing();
        let windows: Vec<_> = uses.iter().map(|used| used.block.generation()).collect();
        self.open_windows(&windows)?;
        upstream.prepare(uses, tokens).inspect_err(|_| self.forget_windows(&windows))
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.close_windows(tokens, |upstream, tokens| upstream.finish(tokens))
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.close_windows(tokens, |upstream, tokens| upstream.cancel(tokens))
    }
}
