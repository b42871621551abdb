//! The adopted slices of a stream pool: into the use table, out of it, and freed on their own streams.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use dmr_core::error::StreamProblem;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::sync::lock;
use dmr_core::{
    Access, AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeviceBlock, Generation,
    ResourceError, ResourceResult, StreamId, Usage,
};

use crate::event::DriverEvent;
use crate::uses::{BlocksInUse, Dependencies, Patience, Released};
use crate::{BlockOwner, StreamPool};

/// The adopted slices of a stream pool.
pub(crate) struct Adopted {
    owner: BlockOwner,
    /// Blocks that were deallocated in an open window.
    in_use: BlocksInUse<BlockId>,
    /// Never locked across a driver call.
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// By generation.
    slices: HashMap<u64, HeldSlice>,
    /// Retired blocks whose last window has closed, and whose slices could not be freed.
    not_freed: Vec<BlockId>,
    usage: Usage,
}

struct HeldSlice {
    slice: Box<dyn AnySlice>,
    bytes: u64,
}

/// A slice of any element type.
trait AnySlice: Send {
    fn stream(&self) -> &Arc<CudaStream>;

    /// Drops the slice and does not free its memory.
    fn leak(self: Box<Self>);
}

impl<T: 'static> AnySlice for CudaSlice<T> {
    fn stream(&self) -> &Arc<CudaStream> {
        CudaSlice::stream(self)
    }

    fn leak(self: Box<Self>) {
        CudaSlice::leak(*self);
    }
}

/// A slice's place in the use table.
pub(super) struct Place {
    ptr: u64,
    home: StreamId,
    generation: Generation,
    slot: BlockSlot,
}

impl Adopted {
    pub(crate) fn new(owner: BlockOwner) -> Self {
        Self { in_use: BlocksInUse::new(&owner), owner, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    pub(super) fn usage(&self) -> Usage {
        self.held().usage
    }

    fn retire(&self, block: BlockId) {
        let mut held = self.held();
        let bytes = held.slices.get(&block.generation().get()).map_or(0, |slice| slice.bytes);
        held.usage.live -= bytes;
        held.usage.retired += bytes;
    }

    /// Removes a slice, so that no lock is held while the driver is called.
    fn take(&self, block: BlockId) -> ResourceResult<HeldSlice> {
        let taken = self.held().slices.remove(&block.generation().get());
        taken.ok_or_else(|| ResourceError::use_after_free(block.generation()))
    }

    fn put_back(&self, block: BlockId, slice: HeldSlice) {
        self.held().slices.insert(block.generation().get(), slice);
    }

    /// Counts bytes that are not this resource's any more.
    fn count_freed(&self, bytes: u64, was_retired: bool) {
        let usage = &mut self.held().usage;
        let of = if was_retired { &mut usage.retired } else { &mut usage.live };
        *of -= bytes;
        usage.reserved -= bytes;
        usage.total_freed += bytes;
    }
}

impl Drop for Adopted {
    /// Leaks the slices of blocks that were not deallocated: the device may be using them.
    fn drop(&mut self) {
        self.held().slices.drain().for_each(mem::forget);
    }
}

impl StreamPool {
    /// Orders the next work on `home` after the pending work of a slice, and puts it into the use table.
    pub(super) fn insert_slice<T>(
        &self,
        slice: &mut CudaSlice<T>,
        home: StreamId,
    ) -> ResourceResult<Place> {
        let (device, home) = (self.device(), self.enter(home)?);
        let own = Arc::clone(slice.stream());
        if slice.num_bytes() == 0 {
            return Err(ResourceError::zero_size());
        }
        if own.context().cu_ctx() != device.context().cu_ctx() {
            let problem = StreamProblem::OtherContext;
            return Err(ResourceError::stream_misuse(StreamId::UNISSUED, problem));
        }
        device.bind()?;
        home.refuse_capture()?;
        if own.cu_stream() != home.stream().cu_stream() {
            device.refuse_capture_of(&own)?;
            let event = DriverEvent::new(device)?;
            event.record_on_other(&own)?;
            // A capture may have begun meanwhile.
            device.refuse_capture_of(&own)?;
            event.make_wait(&home)?;
        }
        // Waits for cudarc's events of the last read and write. cudarc keeps the error of that, and does not wait
        // while it keeps another one.
        let earlier = device.context().check_err();
        let (ptr, recorded) = slice.device_ptr_mut(home.stream());
        drop(recorded);
        let waited = device.context().check_err();
        device.context().record_err(earlier);
        waited.map_err(|error| device.driver_error("cuStreamWaitEvent", error))?;
        if !ptr.is_multiple_of(BLOCK_ALIGNMENT as u64) {
            return Err(ResourceError::not_granular(ptr as usize, BLOCK_ALIGNMENT as u64));
        }
        let generation = Generation::next();
        let slot = self.uses().insert(&self.adopted_slices().owner, generation, &home, 0)?;
        Ok(Place { ptr, home: home.id(), generation, slot })
    }

    /// Makes the block of a slice that is in the use table.
    pub(super) fn hold_slice<T: 'static>(
        &self,
        slice: CudaSlice<T>,
        place: Place,
        tag: AllocTag,
    ) -> DeviceBlock {
        let Place { ptr, home, generation, slot } = place;
        let bytes = slice.num_bytes();
        let mut held = self.adopted_slices().held();
        held.usage.live += bytes as u64;
        held.usage.reserved += bytes as u64;
        held.usage.total_allocated += bytes as u64;
        let slice = HeldSlice { slice: Box::new(slice), bytes: bytes as u64 };
        held.slices.insert(generation.get(), slice);
        // SAFETY: the slice has these bytes, which stay allocated until it is dropped, and that takes the block. The
        // generation is new.
        let block = unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes: bytes,
                alignment: BLOCK_ALIGNMENT,
                device_ordinal: self.device().ordinal(),
                alloc_stream: home,
                tag,
                generation,
                slot,
                state: BlockState::Live,
                part_depth: 0,
            })
        };
        self.device().report_block(&block);
        block
    }

    /// Takes a block out of the use table and returns its slice, whose stream comes after all uses.
    ///
    /// # Safety
    ///
    /// Any bytes are a value of `T`.
    pub(super) unsafe fn give_slice_back<T>(
        &self,
        block: &DeviceBlock,
    ) -> ResourceResult<CudaSlice<T>> {
        let (adopted, id) = (self.adopted_slices(), block.id());
        self.refuse_part_of_slice(block)?;
        if self.uses().payload(&adopted.owner, id).is_none() {
            return Err(ResourceError::foreign_block(block, self.device().ordinal()));
        }
        let home = id.alloc_stream();
        let mut after = Dependencies::default();
        let slot = match self.uses().release_closed(&adopted.owner, id, &mut after) {
            Released::Free { slot, .. } => slot,
            Released::InUse { holder, .. } => {
                let access = Access::ReadWrite;
                return Err(ResourceError::window_conflict(id.generation(), holder, home, access));
            }
            Released::Foreign | Released::Stale => {
                return Err(ResourceError::use_after_free(id.generation()));
            }
        };
        after.add(home, self.uses().submitted(home));
        let held = match adopted.take(id) {
            Ok(held) => held,
            Err(error) => {
                self.uses().restore(slot);
                return Err(error);
            }
        };
        let own = held.slice.stream();
        let len = block.bytes() / size_of::<T>().max(1);
        // SAFETY: the bytes of the slice, which frees nothing once this one owns them; the caller's obligation.
        let make = |()| unsafe { self.device().slice_at::<T>(own, block.ptr(), len) };
        let given = match self.order_stream_after(own, &after).and_then(make) {
            Ok(given) => given,
            Err(error) => {
                adopted.put_back(id, held);
                self.uses().restore(slot);
                return Err(error);
            }
        };
        self.uses().vacate(slot);
        adopted.count_freed(held.bytes, false);
        held.slice.leak();
        self.device().report_given_away(id);
        Ok(given)
    }

    /// Deallocates the block of a slice: frees the slice on its own stream, after all uses, or retires it while a
    /// window is open.
    pub(super) fn deallocate_slice(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        let (adopted, id) = (self.adopted_slices(), block.id());
        self.refuse_part_of_slice(block)?;
        let mut after = Dependencies::default();
        match self.uses().release(&adopted.owner, id, &mut after) {
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device().ordinal())),
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::InUse { .. } => {
                adopted.retire(id);
                adopted.in_use.insert(id, id);
                let _ = self.settle_slices(Patience::Poll);
                Ok(BlockState::Retired)
            }
            Released::Free { slot, .. } => match self.free_slice(id, after, false) {
                Ok(_) => {
                    self.uses().vacate(slot);
                    Ok(BlockState::Freed)
                }
                Err(error) => {
                    self.uses().restore(slot);
                    Err(error)
                }
            },
        }
    }

    /// Frees the slices of retired blocks whose last window has closed; returns their bytes.
    pub(super) fn settle_slices(&self, patience: Patience) -> ResourceResult<u64> {
        let adopted = self.adopted_slices();
        let (mut freed, mut outcome) = (0, Ok(()));
        let mut free = |id: BlockId| {
            let mut after = Dependencies::default();
            let released = self.uses().release_retired(&adopted.owner, id, &mut after);
            let Some(slot) = released else { return };
            match self.free_slice(id, after, true) {
                Ok(bytes) => {
                    self.uses().vacate(slot);
                    freed += bytes;
                }
                Err(error) => {
                    self.uses().defer(slot);
                    adopted.held().not_freed.push(id);
                    outcome = mem::replace(&mut outcome, Ok(())).and(Err(error));
                }
            }
        };
        let again = mem::take(&mut adopted.held().not_freed);
        again.into_iter().for_each(&mut free);
        match self.device().is_lost() {
            true => adopted.in_use.settle_all(free),
            false => adopted.in_use.settle(patience, free),
        }
        outcome.map(|()| freed)
    }

    /// Frees a slice, which no window uses, after the uses that its home stream need not wait for.
    fn free_slice(
        &self,
        id: BlockId,
        mut after: Dependencies,
        was_retired: bool,
    ) -> ResourceResult<u64> {
        let (adopted, home) = (self.adopted_slices(), id.alloc_stream());
        after.add(home, self.uses().submitted(home));
        let held = adopted.take(id)?;
        let ordered = self.order_stream_after(held.slice.stream(), &after);
        if let Err(error) = ordered
            && !self.device().is_lost()
        {
            adopted.put_back(id, held);
            return Err(error);
        }
        let HeldSlice { slice, bytes } = held;
        // cudarc frees it on its stream.
        drop(slice);
        adopted.count_freed(bytes, was_retired);
        Ok(bytes)
    }

    /// Makes the stream of a slice, which captures no graph, wait for these uses.
    fn order_stream_after(&self, own: &CudaStream, after: &Dependencies) -> ResourceResult<()> {
        self.device().bind()?;
        self.device().refuse_capture_of(own)?;
        for event in self.uses().events_of(after)? {
            event.driver_event().make_other_wait(own)?;
        }
        Ok(())
    }

    /// Frees what is retired, when the last owner of the pool is dropped.
    pub(crate) fn end_slices(&self) {
        if !self.device().is_forked() {
            // What cannot be freed is leaked.
            let _ = self.settle_slices(Patience::Wait);
        }
    }

    pub(super) fn refuse_part_of_slice(&self, block: &DeviceBlock) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        let is_ours = self.uses().payload(&self.adopted_slices().owner, block.id()).is_some();
        if is_ours { block.require_part_depth(0) } else { Ok(()) }
    }
}
