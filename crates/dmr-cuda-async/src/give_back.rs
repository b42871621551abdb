//! What becomes of a block that is given back: freed on its home stream at once, put off until other
//! streams are done with it, or freed on the stream that waits for them.

use dmr_core::error::StreamProblem;
use dmr_core::{
    BlockId, BlockState, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult,
};
use dmr_streams::HomeStream;
use dmr_streams::uses::{Departure, FreeOrder, HomeOrder, LastUse};

use crate::AsyncCudaResource;
use crate::deferred::{Deferred, Late};
use crate::retired::Retired;

/// What became of a block that was given back.
enum Handed {
    ToDriver,
    InUse,
    /// Other streams may not be done with it.
    Late(LastUse),
}

impl AsyncCudaResource {
    /// Takes a block back from its owner. On an error it is as if it had not been called.
    pub(crate) fn give_back(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        let (id, bytes) = (block.id(), block.bytes() as u64);
        // First: another thread may have held a lock when the process was forked. While this is held,
        // the home stream is not retired.
        let home = self.streams.enter_home(id.alloc_stream());
        if let Err(forked @ ResourceError::ForkedProcess { .. }) = home {
            return Err(forked);
        }
        block.require_part_depth(0)?;
        match self.uses().give_back(id, &self.owner)? {
            Departure::Home(leaving) => {
                match home.and_then(|home| self.free_at_home(id, &home)) {
                    // Lost, its memory is gone with the context.
                    Err(error) if !self.device().is_lost() => {
                        leaving.stay();
                        Err(error)
                    }
                    _ => {
                        let vacancy = Some(leaving.into_vacancy());
                        self.accounts.handed_through(id.alloc_stream(), bytes, vacancy);
                        Ok(BlockState::Freed)
                    }
                }
            }
            Departure::Retired { order, .. } => {
                let handed = home.and_then(|home| self.put_off_or_free(id, bytes, order, &home));
                self.keep_retired(id, bytes, handed)
            }
            Departure::Foreign => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }

    /// Queues the driver's free of a block whose order holds at home.
    fn free_at_home(&self, id: BlockId, home: &HomeStream<'_>) -> ResourceResult<()> {
        let HomeStream::Live(home) = home else {
            return Err(ResourceError::stream_misuse(
                id.alloc_stream(),
                StreamProblem::ReturnedLease,
            ));
        };
        // SAFETY: the block has left the table or is retired, so nothing can be submitted for it
        // any more; all that was comes before this on its home stream, or is done.
        let freed = unsafe { self.pool.free(id.ptr(), home) };
        // On a capturing stream the driver refuses memory that is not the graph's, and the capture
        // lives: so that needs no asking before.
        freed.or_else(|error| home.refuse_capture().and(Err(error)))
    }

    /// What becomes of a block that has not left the table.
    fn put_off_or_free(
        &self,
        id: BlockId,
        bytes: u64,
        order: HomeOrder,
        home: &HomeStream<'_>,
    ) -> ResourceResult<Handed> {
        home.refuse_capture()?;
        match order {
            HomeOrder::InUse => Ok(Handed::InUse),
            HomeOrder::Others(last) if Deferred::takes(bytes) => Ok(Handed::Late(last)),
            _ => self.free_retired(id, home),
        }
    }

    /// Accounts for a retired block by what has become of it. On an error it is not given back.
    fn keep_retired(
        &self,
        id: BlockId,
        bytes: u64,
        handed: ResourceResult<Handed>,
    ) -> ResourceResult<BlockState> {
        let home = id.alloc_stream();
        let handed = match handed {
            // Its memory is gone with the context.
            Err(_) if self.device().is_lost() => Handed::ToDriver,
            Err(error) => {
                self.uses().unretire(&self.owner, id);
                return Err(error);
            }
            Ok(handed) => handed,
        };
        match handed {
            Handed::ToDriver => {
                self.uses().remove(&self.owner, id);
                self.accounts.handed_through(home, bytes, None);
                return Ok(BlockState::Freed);
            }
            Handed::Late(last) => {
                self.accounts.retired(home, bytes);
                self.put_off(Late { block: Retired { id, bytes }, last });
            }
            Handed::InUse => {
                self.accounts.retired(home, bytes);
                self.retired.push(Retired { id, bytes });
                // The window may have closed meanwhile.
                self.sweep_if_any();
            }
        }
        Ok(BlockState::Retired)
    }

    /// Queues the driver's free of a retired block where it comes after all that it must.
    fn hand_over(&self, id: BlockId) -> ResourceResult<Handed> {
        let freed = self.streams.enter_home(id.alloc_stream()).and_then(|home| {
            home.refuse_capture()?;
            self.free_retired(id, &home)
        });
        match freed {
            // Its memory is gone with the context.
            Err(_) if self.device().is_lost() => Ok(Handed::ToDriver),
            answer => answer,
        }
    }

    /// The same where the home stream does not capture.
    fn free_retired(&self, id: BlockId, home: &HomeStream<'_>) -> ResourceResult<Handed> {
        match self.uses().free_order(id)? {
            FreeOrder::InUse => return Ok(Handed::InUse),
            FreeOrder::Home => {
                self.free_at_home(id, home)?;
            }
            FreeOrder::After(dependencies) => {
                let reclaim = self.streams.reclaim_stream()?;
                dependencies.make_wait(&reclaim)?;
                // SAFETY: the block is retired, so nothing can be submitted for it any more; the reclaim
                // stream waits for all that was.
                unsafe { self.pool.free(id.ptr(), &reclaim) }?;
            }
        }
        Ok(Handed::ToDriver)
    }

    /// Keeps a block until other streams are done with it, and frees those of its home stream with
    /// which they are; asks the driver for that now and then.
    fn put_off(&self, late: Late) {
        let passed = |late: &Late| self.uses().has_passed(late.block.id.alloc_stream(), late.last);
        let order = |late: &Late| self.uses().home_order(late.block.id);
        let ready = |late: &Late| {
            passed(late) && (late.last.is_only() || order(late) == Ok(HomeOrder::Holds))
        };
        let ask = |late: Late| {
            if matches!(order(&late), Ok(HomeOrder::Others(_))) {
                // No answer: it is asked again.
                let _ = self.uses().poll_free(late.block.id);
            }
        };
        let free_at_home = |id: BlockId| {
            self.streams.enter_home(id.alloc_stream()).and_then(|home| self.free_at_home(id, &home))
        };
        let free = |block: Retired| match free_at_home(block.id) {
            // The next reap says why.
            Err(_) if !self.device().is_lost() => self.retired.push(block),
            _ => self.forget(block.id, block.bytes),
        };
        if self.deferred.add(late, ask, ready, free, &self.retired) {
            self.sweep_if_any();
        }
    }

    /// The driver has a block that was retired: its slot and its bytes are free.
    fn forget(&self, id: BlockId, bytes: u64) {
        self.uses().remove(&self.owner, id);
        self.accounts.freed_later(id.alloc_stream(), bytes);
    }

    /// Frees what is retired and whose windows are closed; answers the bytes, and the first error.
    pub(crate) fn sweep(&self) -> (u64, ResourceResult<()>) {
        let (mut freed, mut outcome) = (0, Ok(()));
        self.retired.retain(|&Retired { id, bytes }| {
            if self.uses().has_open_window(id) && !self.device().is_lost() {
                return true;
            }
            match self.hand_over(id) {
                Ok(Handed::ToDriver) => {
                    self.forget(id, bytes);
                    freed += bytes;
                    false
                }
                Ok(_) => true,
                Err(error) => {
                    if outcome.is_ok() {
                        outcome = Err(error);
                    }
                    true
                }
            }
        });
        (freed, outcome)
    }
}
