//! The quarantine: deallocated blocks, and the sweeps that move them in and out.
//!
//! A deallocated block is *sealed*: its red zones are checked, and all of it is filled with a
//! pattern. While a window is open on it that is not possible, and the block waits. Sealed blocks
//! are held, the oldest first, until the bounds are exceeded; a block that leaves is checked once
//! more, because no work may have changed it, and is deallocated upstream. Each `deallocate` moves
//! a share of the blocks and never waits for a sweep; a reap moves all that it can.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;

use dmr_core::sync::{lock, try_read};
use dmr_core::upstream::PassedBlock;
use dmr_core::{DeallocateError, DeviceMemoryResource, ResourceError, ResourceResult};

use super::DebugGuardResource;
use super::blocks::Kept;
use super::checks::is_gone;

/// The number of blocks that one `deallocate` moves into the quarantine at most: its own, and one
/// that another call has left because a reap had the quarantine.
const SHARE: usize = 2;

/// In a `RwLock`, which a thread that has quarantined blocks in hand holds for reading, also during
/// its calls of the driver, and a reap for writing: so a reap that waits also waits for those.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    /// Deallocated while a window was open: neither checked nor filled yet.
    waiting: VecDeque<Kept>,
    /// Checked and filled, the oldest first.
    held: VecDeque<Kept>,
    /// The bytes of `held`, red zones included.
    held_bytes: usize,
    /// The error of a block that upstream has kept, until a reap returns it.
    lost: Option<ResourceError>,
}

impl Quarantine {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns all blocks, also those that were not checked.
    pub(super) fn into_blocks(self) -> impl Iterator<Item = Kept> {
        self.waiting.into_iter().chain(self.held)
    }

    fn push(&mut self, kept: Kept) {
        self.held_bytes += kept.whole.bytes();
        self.held.push_back(kept);
    }

    fn pop(&mut self) -> Option<Kept> {
        let kept = self.held.pop_front()?;
        self.held_bytes -= kept.whole.bytes();
        Some(kept)
    }

    /// Adds blocks that could not leave: they are the oldest.
    fn push_again(&mut self, mut refused: VecDeque<Kept>) {
        self.held_bytes += refused.iter().map(|kept| kept.whole.bytes()).sum::<usize>();
        refused.append(&mut self.held);
        self.held = refused;
    }
}

/// The outcome of a sweep.
pub(super) struct Swept {
    /// The bytes that upstream has freed by now of the blocks that left.
    pub(super) freed: u64,
    /// The first error.
    pub(super) outcome: ResourceResult<()>,
}

/// A block that upstream has not deallocated.
pub(super) struct NotReleased {
    pub(super) error: ResourceError,
    /// `None` if upstream has kept it.
    pub(super) kept: Option<Kept>,
}

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    /// Moves the blocks into the quarantine that were deallocated since and whose windows have
    /// closed. Returns the first error; blocks that failed wait for the next call.
    pub(super) fn admit(&self, quarantine: &mut Quarantine) -> ResourceResult<()> {
        let mut outcome = Ok(());
        let waiting = mem::take(&mut quarantine.waiting);
        for kept in waiting.into_iter().chain(self.blocks.take_deallocated()) {
            match self.seal_kept(&kept) {
                Ok(true) => quarantine.push(kept),
                not_sealed => {
                    quarantine.waiting.push_back(kept);
                    outcome = outcome.and(not_sealed.map(drop));
                }
            }
        }
        outcome
    }

    fn seal_kept(&self, kept: &Kept) -> ResourceResult<bool> {
        if kept.is_sealed { Ok(true) } else { self.seal(kept, false) }
    }

    /// Submits checks of all blocks in quarantine; returns the first error.
    pub(super) fn check_held(&self, quarantine: &Quarantine) -> ResourceResult<()> {
        let mut outcome = Ok(());
        for kept in &quarantine.held {
            outcome = outcome.and(self.check_fill(kept));
        }
        outcome
    }

    /// Admits blocks, and deallocates quarantined blocks upstream: `all` of them, even if the
    /// device is lost, or those beyond the bounds. Blocks that failed are kept.
    pub(super) fn sweep(&self, quarantine: &mut Quarantine, all: bool) -> Swept {
        let lost = quarantine.lost.take().map_or(Ok(()), Err);
        let mut freed = 0;
        let mut outcome = lost.and(self.admit(quarantine));
        let all = all || self.is_lost.load(Ordering::Relaxed);
        let mut refused = VecDeque::new();
        while (all || self.is_beyond_bounds(quarantine))
            && let Some(kept) = quarantine.pop()
        {
            match self.evict(kept) {
                Ok(bytes) => freed += bytes,
                Err(NotReleased { error, kept }) => {
                    refused.extend(kept);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        quarantine.push_again(refused);
        Swept { freed, outcome }
    }

    fn is_beyond_bounds(&self, quarantine: &Quarantine) -> bool {
        quarantine.held_bytes > self.config.quarantine_bytes
            || quarantine.held.len() > self.config.quarantine_blocks
    }

    /// Moves a share of the deallocated blocks into the quarantine, and the blocks beyond its
    /// bounds out of it, unless a reap has it. Each `deallocate` does so, beside those of other
    /// threads: none works for the others, and the bounds hold when the last has returned. After an
    /// error a block stays where it is, and a reap returns the error.
    pub(super) fn sweep_share(&self) {
        let Some(quarantine) = try_read(&self.quarantine) else { return };
        let quarantine = || lock(&quarantine);
        let waiting = || quarantine().waiting.pop_front();
        let deallocated = (0..SHARE).map_while(|_| self.blocks.pop_deallocated());
        for kept in deallocated.chain((0..SHARE).map_while(|_| waiting())) {
            match self.seal_kept(&kept) {
                Ok(true) => quarantine().push(kept),
                _ => quarantine().waiting.push_back(kept),
            }
        }
        let is_lost = self.is_lost.load(Ordering::Relaxed);
        let beyond_bounds = || {
            let mut quarantine = quarantine();
            let leaves = is_lost || self.is_beyond_bounds(&quarantine);
            leaves.then(|| quarantine.pop()).flatten()
        };
        // Not what other threads add meanwhile, which they do this for themselves.
        let most = quarantine().held.len();
        for kept in (0..most).map_while(|_| beyond_bounds()) {
            if let Err(NotReleased { error, kept }) = self.evict(kept) {
                let mut quarantine = quarantine();
                if kept.is_none() {
                    quarantine.lost.get_or_insert(error);
                }
                return quarantine.push_again(kept.into_iter().collect());
            }
        }
    }

    /// Checks a block that leaves the quarantine, and deallocates it upstream, which frees it after
    /// the check. Does not wait for the verdict.
    #[allow(clippy::result_large_err, reason = "the block is returned, and is not on the heap")]
    fn evict(&self, kept: Kept) -> Result<u64, NotReleased> {
        match self.check_fill(&kept) {
            Err(error) if !is_gone(&error) => return Err(NotReleased { error, kept: Some(kept) }),
            Err(_) => _ = self.unchecked.fetch_add(1, Ordering::Relaxed),
            Ok(()) => {}
        }
        self.release(kept)
    }

    /// Deallocates a block upstream; returns the bytes that are freed by that.
    ///
    /// # Errors
    ///
    /// The error and the block. If upstream has kept the block and returned another one, the block
    /// counts as live, and the other one, which may be any memory, is leaked.
    #[allow(clippy::result_large_err, reason = "the block is returned, and is not on the heap")]
    pub(super) fn release(&self, kept: Kept) -> Result<u64, NotReleased> {
        let Kept { whole, allocation, .. } = kept;
        let upstream = self.upstream();
        let id = whole.id();
        let passed = PassedBlock::of(&whole);
        match upstream.deallocate(whole).map_err(|refusal| passed.check("deallocate", refusal)) {
            Ok(state) => {
                Ok(self.blocks.release(&allocation, id, state, |id| upstream.is_retired(id)))
            }
            Err(Ok(refusal)) => {
                let DeallocateError { error, block: whole, .. } = *refusal;
                Err(NotReleased { error, kept: Some(Kept { whole, allocation, is_sealed: true }) })
            }
            Err(Err(other)) => {
                self.blocks.lose(&allocation);
                Err(NotReleased { error: other.error, kept: None })
            }
        }
    }
}
