//! The parts of a block, and freeing retired blocks when their home stream is done with them.

use dmr_core::{
    AddressRange, AllocTag, DeviceBlock, Generation, PhysicalMemory, ResourceError, ResourceResult,
    StreamId, VirtualMemory,
};
use dmr_streams::uses::{Dependencies, Patience, Pending};

use crate::VirtualCudaResource;

/// The addresses and the memory of one block; parts of them while it is made or freed.
pub(crate) struct Backing {
    /// The first address, which the memory is mapped at.
    pub(crate) base: u64,
    range: Option<AddressRange>,
    memory: Option<PhysicalMemory>,
    is_mapped: bool,
}

/// A block that was deallocated and is not freed.
pub(crate) struct RetiredBlock {
    backing: Backing,
    generation: Generation,
    /// As requested; 0 for a backing that did not become a block.
    bytes: u64,
    home: StreamId,
}

impl RetiredBlock {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl VirtualCudaResource {
    /// Creates memory for a block. Waits for retired blocks if the device has too little; `None` if
    /// it still has too little then.
    pub(crate) fn create_or_wait(
        &self,
        bytes: u64,
        tag: AllocTag,
    ) -> ResourceResult<Option<PhysicalMemory>> {
        if let Some(memory) = self.try_create(bytes, tag)? {
            return Ok(Some(memory));
        }
        // A block that cannot be freed stays retired.
        let _ = self.sweep(Patience::Wait);
        self.try_create(bytes, tag)
    }

    /// Maps memory at addresses that it reserves. On an error nothing is left of both, except that
    /// what could not be undone is freed by a later sweep.
    pub(crate) fn make_backing(
        &self,
        memory: PhysicalMemory,
        home: StreamId,
        generation: Generation,
    ) -> ResourceResult<Backing> {
        let bytes = memory.bytes();
        let mut backing = Backing { base: 0, range: None, memory: None, is_mapped: false };
        let mapped = self.reserve(bytes).and_then(|range| {
            backing.base = range.base();
            backing.range = Some(range);
            self.map(&memory, backing.base)
        });
        backing.memory = Some(memory);
        if let Err(error) = mapped {
            if self.free_backing(&mut backing).is_err() {
                // No work uses it.
                let value = RetiredBlock { backing, generation, bytes: 0, home };
                self.pending.push(home, Pending { value, after: Dependencies::default() });
            }
            return Err(error);
        }
        backing.is_mapped = true;
        Ok(backing)
    }

    /// Frees a block later: after what was submitted to its home stream so far.
    pub(crate) fn retire(&self, block: &DeviceBlock, backing: Backing) {
        let home = block.alloc_stream();
        let bytes = block.bytes() as u64;
        let after = Dependencies::on(home, self.streams.uses().submitted(home));
        let value = RetiredBlock { backing, generation: block.generation(), bytes, home };
        self.pending.push(home, Pending { value, after });
    }

    /// Frees the retired blocks whose home stream is done with them. Returns the requested bytes of
    /// those. With [`Patience::Poll`] skips blocks that another thread is freeing.
    ///
    /// # Errors
    ///
    /// The first; the other blocks are freed all the same.
    pub(crate) fn sweep(&self, patience: Patience) -> ResourceResult<u64> {
        let mut freed = 0;
        let mut busy = Vec::new();
        self.pending.reap(patience, |pending| {
            if !self.is_done(pending, patience, &mut busy)? {
                return Ok(false);
            }
            let RetiredBlock { backing, generation, bytes, .. } = &mut pending.value;
            self.free_backing(backing)?;
            freed += *bytes;
            let mut state = self.state();
            state.usage.retired -= *bytes;
            state.usage.total_freed += *bytes;
            state.retired.remove(generation);
            Ok(true)
        })?;
        Ok(freed)
    }

    /// Returns whether no work uses the memory any more. `busy` are the slots of the streams that
    /// this sweep has found busy: they are not done with blocks that were retired later, either.
    fn is_done(
        &self,
        Pending { value: retired, after }: &Pending<RetiredBlock>,
        patience: Patience,
        busy: &mut Vec<usize>,
    ) -> ResourceResult<bool> {
        let slot = retired.home.slot();
        if busy.contains(&slot) {
            return Ok(false);
        }
        let uses = self.streams.uses();
        let is_done = match patience {
            Patience::Poll => uses.poll(after),
            Patience::Wait => uses.synchronize(after).map(|()| true),
        };
        match is_done {
            Ok(true) => Ok(true),
            // The memory is gone with the context.
            Err(ResourceError::DeviceLost { .. }) => Ok(true),
            not_done => {
                busy.push(slot);
                not_done
            }
        }
    }

    /// Unmaps, destroys and releases what there is. After an error the rest is still there.
    fn free_backing(&self, backing: &mut Backing) -> ResourceResult<()> {
        if let Some(memory) = backing.memory.as_ref().filter(|_| backing.is_mapped) {
            self.unmap(memory, backing.base)?;
            backing.is_mapped = false;
        }
        if let Some(memory) = backing.memory.take() {
            self.destroy(memory).map_err(|refused| {
                backing.memory = Some(refused.memory);
                refused.error
            })?;
        }
        if let Some(range) = backing.range.take() {
            self.release(range).map_err(|refused| {
                backing.range = Some(refused.range);
                refused.error
            })?;
        }
        Ok(())
    }
}
