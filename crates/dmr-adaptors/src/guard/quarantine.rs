//! The quarantine: deallocated blocks, and the sweeps that move them in and out.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;

use dmr_core::sync::try_lock;
use dmr_core::{DeallocateError, DeviceMemoryResource, ResourceError, ResourceResult};

use super::DebugGuardResource;
use super::blocks::Kept;
use super::checks::is_gone;

/// Locked by a thread that has quarantined blocks in hand, also during its calls of the driver: a reap that waits
/// also waits for those.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    /// Deallocated while a window was open: neither checked nor filled yet.
    waiting: Vec<Kept>,
    /// Checked and filled, the oldest first.
    held: VecDeque<Kept>,
    /// The bytes of `held`, red zones included.
    held_bytes: usize,
}

impl Quarantine {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns all blocks, also those that were not checked.
    pub(super) fn into_blocks(self) -> impl Iterator<Item = Kept> {
        self.waiting.into_iter().chain(self.held)
    }
}

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    /// Moves the blocks into the quarantine that were deallocated since and whose windows have closed. Returns the
    /// first error; blocks that failed wait for the next call.
    pub(super) fn admit(&self, quarantine: &mut Quarantine) -> ResourceResult<()> {
        let mut outcome = Ok(());
        let waiting = mem::take(&mut quarantine.waiting);
        for kept in waiting.into_iter().chain(self.blocks.take_deallocated()) {
            match if kept.is_sealed { Ok(true) } else { self.seal(&kept, false) } {
                Ok(true) => {
                    quarantine.held_bytes += kept.whole.bytes();
                    quarantine.held.push_back(kept);
                }
                not_sealed => {
                    quarantine.waiting.push(kept);
                    outcome = outcome.and(not_sealed.map(drop));
                }
            }
        }
        outcome
    }

    /// Submits checks of all blocks in quarantine; returns the first error.
    pub(super) fn check_held(&self, quarantine: &Quarantine) -> ResourceResult<()> {
        let mut outcome = Ok(());
        for kept in &quarantine.held {
            outcome = outcome.and(self.check_fill(kept));
        }
        outcome
    }

    /// Admits blocks, and deallocates quarantined blocks upstream: `all` of them, even if the device is lost, or
    /// those beyond the bounds. Returns the bytes that are freed by that, and the first error; blocks that failed
    /// are kept.
    pub(super) fn sweep(
        &self,
        quarantine: &mut Quarantine,
        all: bool,
    ) -> (u64, ResourceResult<()>) {
        let (mut freed, mut outcome) = (0, self.admit(quarantine));
        let all = all || self.is_lost.load(Ordering::Relaxed);
        let (max_bytes, max_blocks) = (self.config.quarantine_bytes, self.config.quarantine_blocks);
        let mut refused = VecDeque::new();
        while (all || quarantine.held_bytes > max_bytes || quarantine.held.len() > max_blocks)
            && let Some(kept) = quarantine.held.pop_front()
        {
            quarantine.held_bytes -= kept.whole.bytes();
            match self.evict(kept, &mut refused) {
                Ok(bytes) => freed += bytes,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        quarantine.held_bytes += refused.iter().map(|kept| kept.whole.bytes()).sum::<usize>();
        refused.append(&mut quarantine.held);
        quarantine.held = refused;
        (freed, outcome)
    }

    /// Sweeps, unless another thread does, until no other thread has deallocated a block meanwhile. After an error
    /// a block stays where it is, and a reap returns the error.
    pub(super) fn sweep_beyond_bounds(&self) {
        while let Some(mut quarantine) = try_lock(&self.quarantine) {
            let (_, outcome) = self.sweep(&mut quarantine, false);
            drop(quarantine);
            if outcome.is_err() || !self.blocks.has_deallocated() {
                return;
            }
        }
    }

    /// Checks a block that leaves the quarantine, and deallocates it upstream, which frees it after the check. Does
    /// not wait for the verdict. After an error the block is in `refused`.
    fn evict(&self, kept: Kept, refused: &mut VecDeque<Kept>) -> ResourceResult<u64> {
        match self.check_fill(&kept) {
            Err(error) if !is_gone(&error) => {
                refused.push_back(kept);
                return Err(error);
            }
            Err(_) => _ = self.unchecked.fetch_add(1, Ordering::Relaxed),
            Ok(()) => {}
        }
        self.release(kept).map_err(|(error, kept)| {
            refused.push_back(kept);
            error
        })
    }

    /// Deallocates a block upstream; returns the bytes that are freed by that.
    ///
    /// # Errors
    ///
    /// The error and the block.
    #[allow(clippy::result_large_err, reason = "the block is returned, and is not on the heap")]
    pub(super) fn release(&self, kept: Kept) -> Result<u64, (ResourceError, Kept)> {
        let (Kept { whole, allocation, .. }, upstream) = (kept, self.upstream());
        let id = whole.id();
        match upstream.deallocate(whole) {
            Ok(state) => {
                Ok(self.blocks.release(&allocation, id, state, |id| upstream.is_retired(id)))
            }
            Err(refusal) => {
                let DeallocateError { error, block: whole, .. } = *refusal;
                Err((error, Kept { whole, allocation, is_sealed: true }))
            }
        }
    }
}
