//! The adopted slices of a stream pool: into the use table, out of it, and freed on their own
//! streams.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use dmr_core::error::StreamProblem;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::sync::lock;
use dmr_core::{
    Access, AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeviceBlock, Generation,
    ResourceError, ResourceResult, StreamId, Usage,
};
use dmr_streams::event::DriverEvent;
use dmr_streams::uses::{BlocksInUse, Dependencies, Patience, Released};
use dmr_streams::{Attachment, BlockOwner, Device, StreamGuard, StreamPool};

use crate::memory::SliceMemory;
use crate::slice::{checked, slice_at};

/// The adopted slices of a stream pool, whose attachment [`Adopted`] has them.
#[derive(Clone, Copy)]
pub(crate) struct AdoptedSlices<'p> {
    streams: &'p StreamPool,
}

/// The part of the adopted slices that their stream pool owns: all of their state.
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
    slices: HashMap<u64, SliceMemory>,
    /// Retired blocks whose last window has closed, and whose slices could not be freed.
    not_freed: Vec<BlockId>,
    usage: Usage,
}

/// A slice that is in the use table.
pub(crate) struct InTable {
    home: StreamId,
    generation: Generation,
    slot: BlockSlot,
}

impl Attachment for Adopted {
    fn attach(streams: &StreamPool) -> Self {
        let owner = streams.register();
        Self { in_use: BlocksInUse::new(&owner), owner, held: Mutex::default() }
    }

    /// Frees what is retired. What cannot be freed is leaked.
    fn end(&self, streams: &StreamPool) {
        if !streams.device().is_forked() {
            let _ = AdoptedSlices::of(streams).free_closed(Patience::Wait);
        }
    }
}

impl Adopted {
    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    pub(crate) fn usage(&self) -> Usage {
        self.held().usage
    }

    fn retire(&self, block: BlockId) {
        let mut held = self.held();
        let bytes = held.slices.get(&block.generation().get()).map_or(0, |slice| slice.bytes);
        held.usage.live -= bytes;
        held.usage.retired += bytes;
    }

    /// Removes a slice, so that no lock is held while the driver is called.
    fn take(&self, block: BlockId) -> ResourceResult<SliceMemory> {
        let taken = self.held().slices.remove(&block.generation().get());
        taken.ok_or_else(|| ResourceError::use_after_free(block.generation()))
    }

    fn put_back(&self, block: BlockId, slice: SliceMemory) {
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

impl<'p> AdoptedSlices<'p> {
    pub(crate) fn of(streams: &'p StreamPool) -> Self {
        Self { streams }
    }

    /// Returns what the stream pool owns. In a forked child, call it for the first time after a
    /// check for that: it takes a lock.
    fn adopted(&self) -> &'p Adopted {
        self.streams.attachment()
    }

    fn device(&self) -> &'p Device {
        self.streams.device()
    }

    /// Returns the accounting; zeros in a forked child.
    pub(crate) fn usage(&self) -> Usage {
        match self.device().is_forked() {
            true => Usage::default(),
            false => self.adopted().usage(),
        }
    }

    /// Orders the next work on `home` after the pending work of a slice, and puts it into the use
    /// table.
    pub(crate) fn insert<T>(
        &self,
        slice: &mut CudaSlice<T>,
        home: StreamId,
    ) -> ResourceResult<InTable> {
        let device = self.device();
        let home = self.streams.enter(home)?;
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
            home.wait_for_event(&event)?;
        }
        // Waits for cudarc's events of the last read and write.
        let waited = checked(home.stream().context(), || {
            let (ptr, recorded) = slice.device_ptr_mut(home.stream());
            // A record is of a write that comes next, and none does: the slice keeps its last
            // write.
            mem::forget(recorded);
            ptr
        });
        let ptr = waited.map_err(|error| device.driver_error("cuStreamWaitEvent", error))?;
        if !ptr.is_multiple_of(BLOCK_ALIGNMENT as u64) {
            return Err(ResourceError::not_granular(ptr as usize, BLOCK_ALIGNMENT as u64));
        }
        let generation = Generation::next();
        let slot = self.streams.uses().insert(&self.adopted().owner, generation, &home, 0)?;
        Ok(InTable { home: home.id(), generation, slot })
    }

    /// Allocates memory as cudarc does for a slice of `home`, and puts it into the use table.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        home: &StreamGuard<'_>,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // First, because it may fail.
        let slot = self.streams.uses().reserve(&self.adopted().owner, 0, home.id())?;
        let memory = match self.allocate_on(bytes, home) {
            Ok(memory) => memory,
            Err(error) => {
                self.streams.uses().vacate(slot);
                return Err(error);
            }
        };
        let generation = Generation::next();
        // The slot is of the use table of these streams.
        let slot = home.occupy(slot, generation).unwrap_or(BlockSlot::NONE);
        Ok(self.hold(memory, InTable { home: home.id(), generation, slot }, tag))
    }

    fn allocate_on(&self, bytes: usize, home: &StreamGuard<'_>) -> ResourceResult<SliceMemory> {
        let device = self.device();
        let allocated = SliceMemory::allocate(device, bytes, home.stream())?;
        let memory = allocated.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let memory = device.memory_info().unwrap_or_default();
                let usage = self.adopted().usage();
                ResourceError::out_of_memory(bytes, device.ordinal(), memory, &usage)
            }
            _ => device.driver_error("cuMemAllocAsync", error),
        })?;
        // The graph of a capture that has begun meanwhile may have the memory, and may free it
        // then. Memory that is older than the capture cannot be freed in it, and is not the
        // graph's.
        if let Err(refusal) = home.refuse_capture()
            // SAFETY: just allocated, and used by no work.
            && unsafe { memory.free(device) }.is_ok()
        {
            return Err(refusal);
        }
        Ok(memory)
    }

    /// Makes the block of memory that is in the use table.
    pub(crate) fn hold(
        &self,
        memory: SliceMemory,
        in_table: InTable,
        tag: AllocTag,
    ) -> DeviceBlock {
        let InTable { home, generation, slot } = in_table;
        let ptr = memory.ptr;
        let bytes = memory.bytes as usize;
        let mut held = self.adopted().held();
        held.usage.live += memory.bytes;
        held.usage.reserved += memory.bytes;
        held.usage.total_allocated += memory.bytes;
        held.slices.insert(generation.get(), memory);
        // SAFETY: the memory has these bytes, which stay allocated until the block is taken: what
        // is held here is freed or given away only then. The generation is new.
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

    /// Takes a block out of the use table and returns a slice of its first `len` elements, whose
    /// stream comes after all uses.
    ///
    /// # Safety
    ///
    /// Any bytes are a value of `T`.
    pub(crate) unsafe fn give_back<T>(
        &self,
        block: &DeviceBlock,
        len: usize,
    ) -> ResourceResult<CudaSlice<T>> {
        self.refuse_part(block)?;
        let adopted = self.adopted();
        let id = block.id();
        if self.streams.uses().payload(&adopted.owner, id).is_none() {
            return Err(ResourceError::foreign_block(block, self.device().ordinal()));
        }
        let bytes = len.saturating_mul(size_of::<T>());
        if bytes > block.bytes() {
            return Err(ResourceError::out_of_bounds(block, 0, bytes));
        }
        let home = id.alloc_stream();
        let mut after = Dependencies::default();
        let slot = match self.streams.uses().release_closed(&adopted.owner, id, &mut after) {
            Released::Free { slot, .. } => slot,
            Released::InUse { holder, .. } => {
                let access = Access::ReadWrite;
                return Err(ResourceError::window_conflict(id.generation(), holder, home, access));
            }
            Released::Foreign | Released::Stale => {
                return Err(ResourceError::use_after_free(id.generation()));
            }
        };
        after.add(home, self.streams.uses().submitted(home));
        let held = match adopted.take(id) {
            Ok(held) => held,
            Err(error) => {
                self.streams.uses().restore(slot);
                return Err(error);
            }
        };
        // SAFETY: the block has the elements; the slice owns them once this has forgotten them; the
        // caller's obligation.
        let make = |()| unsafe { slice_at::<T>(self.device(), &held.stream, held.ptr, len) };
        let given = match self.order_stream_after(&held.stream, &after).and_then(make) {
            Ok(given) => given,
            Err(error) => {
                adopted.put_back(id, held);
                self.streams.uses().restore(slot);
                return Err(error);
            }
        };
        self.streams.uses().vacate(slot);
        adopted.count_freed(held.bytes, false);
        self.device().report_given_away(id);
        Ok(given)
    }

    /// Deallocates the block of a slice: frees the slice on its own stream, after all uses, or
    /// retires it while a window is open.
    pub(crate) fn deallocate(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        self.refuse_part(block)?;
        let adopted = self.adopted();
        let id = block.id();
        let mut after = Dependencies::default();
        match self.streams.uses().release(&adopted.owner, id, &mut after) {
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device().ordinal())),
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::InUse { .. } => {
                adopted.retire(id);
                adopted.in_use.insert(id, id);
                let _ = self.free_closed(Patience::Poll);
                Ok(BlockState::Retired)
            }
            Released::Free { slot, .. } => match self.free_slice(id, after, false) {
                Ok(_) => {
                    self.streams.uses().vacate(slot);
                    Ok(BlockState::Freed)
                }
                Err(error) => {
                    self.streams.uses().restore(slot);
                    Err(error)
                }
            },
        }
    }

    /// Frees the slices of retired blocks whose last window has closed; returns their bytes.
    pub(crate) fn free_closed(&self, patience: Patience) -> ResourceResult<u64> {
        let adopted = self.adopted();
        let mut freed = 0;
        let mut outcome = Ok(());
        let mut free = |id: BlockId| {
            let mut after = Dependencies::default();
            let released = self.streams.uses().release_retired(&adopted.owner, id, &mut after);
            let Some(slot) = released else { return };
            match self.free_slice(id, after, true) {
                Ok(bytes) => {
                    self.streams.uses().vacate(slot);
                    freed += bytes;
                }
                Err(error) => {
                    self.streams.uses().defer(slot);
                    adopted.held().not_freed.push(id);
                    outcome = mem::replace(&mut outcome, Ok(())).and(Err(error));
                }
            }
        };
        let again = mem::take(&mut adopted.held().not_freed);
        again.into_iter().for_each(&mut free);
        match self.device().is_lost() {
            true => adopted.in_use.drain_all(free),
            false => adopted.in_use.drain_closed(patience, free),
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
        let adopted = self.adopted();
        let home = id.alloc_stream();
        after.add(home, self.streams.uses().submitted(home));
        let held = adopted.take(id)?;
        let freed = match self.device().is_lost() {
            true => Ok(()),
            // SAFETY: no window uses it, and its stream comes after all uses; what is put back was
            // not freed.
            false => self
                .order_stream_after(&held.stream, &after)
                .and_then(|()| unsafe { held.free(self.device()) }),
        };
        let bytes = held.bytes;
        match (freed, self.device().is_lost()) {
            // Dropping the stream would make driver calls.
            (_, true) => mem::forget(held),
            (Ok(()), false) => drop(held),
            (Err(error), false) => {
                adopted.put_back(id, held);
                return Err(error);
            }
        }
        adopted.count_freed(bytes, was_retired);
        Ok(bytes)
    }

    /// Makes the stream of a slice, which captures no graph, wait for these uses.
    fn order_stream_after(&self, own: &CudaStream, after: &Dependencies) -> ResourceResult<()> {
        self.device().bind()?;
        self.device().refuse_capture_of(own)?;
        for event in self.streams.uses().events_of(after)? {
            event.make_other_wait(own)?;
        }
        Ok(())
    }

    pub(crate) fn refuse_part(&self, block: &DeviceBlock) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        let is_ours = self.streams.uses().payload(&self.adopted().owner, block.id()).is_some();
        if is_ours { block.require_part_depth(0) } else { Ok(()) }
    }
}
