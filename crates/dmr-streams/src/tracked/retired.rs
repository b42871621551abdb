//! Blocks that `Tracked` keeps until their uses are done, and their way to the inner resource.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use dmr_core::{
    BlockId, BlockSlot, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult,
};

use super::{Patience, Tracked};
use crate::HomeStream;
use crate::handed_over::Retired;
use crate::uses::{Dependencies, FreeOrder};

impl<R: DeviceMemoryResource> Tracked<R> {
    pub(super) fn retire(
        &self,
        block: DeviceBlock,
        inner_slot: BlockSlot,
        after: Option<Dependencies>,
    ) {
        let mut pending = self.pending();
        pending.bytes += block.bytes() as u64;
        pending.blocks.push_back(Retired { block, inner_slot, after });
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the inner resource may have the block now.
    fn is_free(&self, retired: &mut Retired, patience: Patience) -> ResourceResult<bool> {
        if self.streams.device().is_lost() {
            return Ok(true);
        }
        let id = retired.block.id();
        if retired.after.is_none() {
            if self.uses().has_open_window(id) {
                return Ok(false);
            }
            match self.order(id)? {
                FreeOrder::InUse => return Ok(false),
                FreeOrder::Home => return Ok(true),
                FreeOrder::After(dependencies) => retired.after = Some(dependencies),
            }
        }
        match (&retired.after, patience) {
            (None, _) => Ok(true),
            (Some(after), Patience::Poll) => after.is_done(),
            (Some(after), Patience::Wait) => after.synchronize().map(|()| true),
        }
    }

    /// Hands a retired block over if it is free; answers what the inner resource freed at once.
    /// Otherwise the block is pending again, at the end.
    fn try_hand_over(
        &self,
        mut retired: Retired,
        patience: Patience,
    ) -> ResourceResult<Option<u64>> {
        let answer = self.is_free(&mut retired, patience);
        if !matches!(answer, Ok(true)) {
            self.pending().blocks.push_back(retired);
            return answer.map(|_| None);
        }
        let Retired { block, inner_slot, after } = retired;
        let bytes = block.bytes() as u64;
        let freed_before = self.get_ref().usage().total_freed;
        match self.hand_over(block, inner_slot) {
            Ok(_) => {
                self.pending().bytes -= bytes;
                self.count.fetch_sub(1, Ordering::SeqCst);
                let freed = self.get_ref().usage().total_freed.saturating_sub(freed_before);
                Ok(Some(freed.min(bytes)))
            }
            Err(refused) => {
                let DeallocateError { error, block, .. } = *refused;
                self.pending().blocks.push_back(Retired { block, inner_slot, after });
                Err(error)
            }
        }
    }

    /// Goes once over what is pending; answers what the inner resource freed at once, and the
    /// first error.
    fn sweep(&self, patience: Patience) -> (u64, ResourceResult<()>) {
        let (mut freed, mut outcome) = (0, Ok(()));
        let blocks = std::mem::take(&mut self.pending().blocks);
        for retired in blocks {
            match self.try_hand_over(retired, patience) {
                Ok(bytes) => freed += bytes.unwrap_or(0),
                Err(error) if outcome.is_ok() => outcome = Err(error),
                Err(_) => {}
            }
        }
        (freed, outcome)
    }

    /// Hands over the oldest blocks, up to the first that is not free. That one goes to the end,
    /// so that each is asked in its turn.
    pub(super) fn hand_over_oldest(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Ok(_alone) = self.reaping.try_lock() else { return };
        loop {
            let Some(oldest) = self.pending().blocks.pop_front() else { return };
            // An error leaves the block pending, and a reap will say why.
            if !matches!(self.try_hand_over(oldest, Patience::Poll), Ok(Some(_))) {
                return;
            }
        }
    }

    pub(super) fn reap(
        &self,
        patience: Patience,
        inner: impl FnOnce(&R) -> ResourceResult<u64>,
    ) -> ResourceResult<u64> {
        self.streams.device().refuse_fork()?;
        let (handed_over, outcome) = match patience {
            Patience::Wait => {
                let _alone = self.reaping.lock().unwrap_or_else(PoisonError::into_inner);
                self.sweep(patience)
            }
            // Unless another thread does it.
            Patience::Poll => {
                self.reaping.try_lock().map_or((0, Ok(())), |_alone| self.sweep(patience))
            }
        };
        let freed = inner(self.get_ref())?;
        outcome.map(|()| handed_over + freed)
    }

    /// Everything that no window is open on goes to the inner resource, ordered by a wait on its
    /// home stream.
    pub(super) fn surrender(&mut self) {
        if self.streams.device().bind().is_err() {
            return;
        }
        let blocks = std::mem::take(&mut self.pending().blocks);
        for retired in blocks {
            let id = retired.block.id();
            let free = match retired.after {
                Some(after) => self.wait_at_home(id, &after),
                None => match self.order(id) {
                    Ok(FreeOrder::Home) => true,
                    Ok(FreeOrder::After(after)) => self.wait_at_home(id, &after),
                    _ => false,
                },
            };
            if free {
                // What the inner resource refuses is leaked, as what is dropped is.
                let _ = self.hand_over(retired.block, retired.inner_slot);
            }
        }
    }

    fn wait_at_home(&self, id: BlockId, after: &Dependencies) -> bool {
        match self.streams.enter_home(id.alloc_stream()) {
            Ok(HomeStream::Live(home)) => after.make_wait(&home).is_ok(),
            // It can be given no wait any more.
            Ok(HomeStream::Retired) => after.is_done().unwrap_or(false),
            Err(_) => false,
        }
    }
}
