//! An upstream that reports its blocks and reserved addresses as heaps to the simulator, for a pool
//! whose blocks the player reports.

use dmr_core::{
    AddressRange, AllocTag, BlockState, DeallocateError, DestroyError, DeviceBlock,
    DeviceMemoryResource, PhysicalMemory, ReleaseError, ResourceError, ResourceResult, StreamId,
    VirtualMemory,
};
use dmr_sim::Universe;

/// Reports the memory that a pool reserves from its upstream to the simulator, if there is one.
#[derive(Debug)]
pub struct Watched {
    upstream: Box<dyn DeviceMemoryResource>,
    universe: Option<Universe>,
}

impl Watched {
    /// Wraps `upstream` and reports to `universe`, if there is one.
    #[must_use]
    pub fn new(upstream: Box<dyn DeviceMemoryResource>, universe: Option<Universe>) -> Self {
        Self { upstream, universe }
    }

    fn memory(&self) -> ResourceResult<&dyn VirtualMemory> {
        let missing = || ResourceError::not_tracked(StreamId::UNISSUED);
        self.upstream.virtual_memory().ok_or_else(missing)
    }

    fn created(&self, ptr: u64, bytes: usize) {
        if let Some(universe) = &self.universe {
            universe.heap_created(ptr, bytes);
        }
    }

    fn destroyed(&self, ptr: u64) {
        if let Some(universe) = &self.universe {
            universe.heap_destroyed(ptr);
        }
    }
}

impl DeviceMemoryResource for Watched {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let block = self.upstream.allocate(bytes, stream, tag)?;
        self.created(block.ptr(), block.bytes());
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let ptr = block.ptr();
        let bytes = block.bytes();
        self.destroyed(ptr);
        self.upstream.deallocate(block).inspect_err(|_| self.created(ptr, bytes))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.upstream.virtual_memory().map(|_| self as _)
    }

    dmr_core::forward!(
        upstream: is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending, trim_to, allow_access,
    );
}

impl VirtualMemory for Watched {
    fn granularity(&self) -> u64 {
        self.memory().map_or(0, VirtualMemory::granularity)
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        let range = self.memory()?.reserve(bytes)?;
        self.created(range.base(), range.bytes() as usize);
        Ok(range)
    }

    fn release(&self, range: AddressRange) -> Result<(), Box<ReleaseError>> {
        let Ok(memory) = self.memory() else { return Ok(()) };
        let base = range.base();
        let bytes = range.bytes() as usize;
        self.destroyed(base);
        memory.release(range).inspect_err(|_| self.created(base, bytes))
    }

    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        self.memory()?.create(bytes, tag)
    }

    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<DestroyError>> {
        self.memory().map_or(Ok(()), |upstream| upstream.destroy(memory))
    }

    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.memory()?.map(memory, address)
    }

    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.memory()?.unmap(memory, address)
    }
}
