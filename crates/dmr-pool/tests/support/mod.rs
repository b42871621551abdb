//! A pool on a simulated machine that is told what it hands out: bytes outside of a live block, and
//! bytes that two blocks have, are findings.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(unsafe_code, reason = "work in an open window needs the block that was given back")]

pub(crate) mod draw;
pub(crate) mod program;
pub(crate) mod stage;
pub(crate) mod witness;

use std::sync::Arc;

use dmr_core::{
    AddressRange, AllocTag, BlockId, BlockParts, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, MemoryObserver, PhysicalMemory, RefusedMemory, RefusedRange,
    ResourceResult, StreamId, StreamPoolId, Usage, VirtualMemory,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_sim::{Policy, Universe};
use dmr_testkit::{Rig, RigConfig};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_UNKNOWN`: not one of those after which the device is lost.
pub(crate) const UNKNOWN: i32 = 999;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) type Pool = PoolResource<Watched>;

/// Where a pool's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    Direct,
    Async,
    /// Pages, of 2 MiB if the configuration does not say.
    Virtual,
}

pub(crate) const UPSTREAMS: [Upstream; 3] = [Upstream::Direct, Upstream::Async, Upstream::Virtual];

/// A pool of this kind on a simulated rig; the test tells the simulator of regions.
pub(crate) fn pool_over(upstream: Upstream, rig: &Rig, config: PoolConfig) -> Pool {
    pool_with(upstream, rig, config, None)
}

/// A pool of this kind that tells an observer, if there is one, and else its upstream and the test
/// tell the simulator.
pub(crate) fn pool_with(
    upstream: Upstream,
    rig: &Rig,
    config: PoolConfig,
    observer: Option<Arc<dyn MemoryObserver>>,
) -> Pool {
    let streams = Arc::clone(rig.streams());
    let inner: Box<dyn DeviceMemoryResource> = match upstream {
        Upstream::Direct => Box::new(DirectCudaResource::new(Arc::clone(&streams))),
        Upstream::Async => Box::new(
            AsyncCudaResource::new(Arc::clone(&streams), AsyncConfig::new()).expect("a pool"),
        ),
        Upstream::Virtual => Box::new(
            VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new()).expect("pages"),
        ),
    };
    // Small pages, which move as soon as that saves any.
    let is_as_it_comes = config.page_size == PoolConfig::fast().page_size;
    let config = match upstream {
        Upstream::Virtual if is_as_it_comes => {
            config.with_page_size(2 * MIB).with_page_slack_divisor(50).with_waits_first(true)
        }
        _ => config,
    };
    let universe = observer.is_none().then(|| rig.universe().clone());
    let pool = PoolResource::new(Watched { inner, universe }, streams, config).expect("a pool");
    match observer {
        Some(observer) => pool.with_observer(observer),
        None => pool,
    }
}

/// A simulated rig with a small device.
pub(crate) fn rig(policy: Policy, seed: u64, capacity: u64) -> Rig {
    let builder = Universe::builder().devices(1).policy(policy).seed(seed).capacity(capacity);
    let universe = Some(builder.build().expect("the simulated driver"));
    Rig::with(RigConfig { universe, ..RigConfig::default() })
}

/// An upstream whose blocks and ranges of addresses are heaps to the simulator, unless the pool
/// tells it.
#[derive(Debug)]
pub(crate) struct Watched {
    inner: Box<dyn DeviceMemoryResource>,
    universe: Option<Universe>,
}

impl DeviceMemoryResource for Watched {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let block = self.inner.allocate(bytes, stream, tag)?;
        self.created(block.ptr(), block.bytes());
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let (ptr, bytes) = (block.ptr(), block.bytes());
        self.destroyed(ptr);
        self.inner.deallocate(block).inspect_err(|_| self.created(ptr, bytes))
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.inner.is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.inner.device_ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.inner.stream_pool()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.inner.try_reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.inner.reap_pending()
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        self.inner.trim_to(keep_bytes)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory().map(|_| self as _)
    }
}

impl Watched {
    fn memory(&self) -> &dyn VirtualMemory {
        self.inner.virtual_memory().expect("it was asked for")
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

impl VirtualMemory for Watched {
    fn granularity(&self) -> u64 {
        self.memory().granularity()
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        let range = self.memory().reserve(bytes)?;
        self.created(range.base(), range.bytes() as usize);
        Ok(range)
    }

    fn release(&self, range: AddressRange) -> Result<(), Box<RefusedRange>> {
        let (base, bytes) = (range.base(), range.bytes() as usize);
        self.destroyed(base);
        self.memory().release(range).inspect_err(|_| self.created(base, bytes))
    }

    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        self.memory().create(bytes, tag)
    }

    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<RefusedMemory>> {
        self.memory().destroy(memory)
    }

    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.memory().map(memory, address)
    }

    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.memory().unmap(memory, address)
    }
}

/// What a pool has taken, as its upstream says.
pub(crate) fn taken_from_upstream(pool: &Pool) -> u64 {
    let usage = pool.upstream().usage();
    if pool.stats().page_size > 0 { usage.reserved } else { usage.live }
}

/// Trims the pool to nothing. Whether a stream is done with what it had borrowed is found out by an
/// event that the first question records; and a free that an upstream has queued for the second
/// trim has not executed before the third, where work runs late.
pub(crate) fn give_all_back(rig: &Rig, pool: &Pool) {
    for _ in 0..3 {
        rig.device().synchronize().unwrap();
        pool.trim_to(0).unwrap();
    }
}

/// The block again, for device work in a window that outlives it. Never given back.
pub(crate) fn shadow_of(block: &DeviceBlock) -> DeviceBlock {
    // SAFETY: only device work is done with it, inside of a window that keeps the memory.
    unsafe {
        DeviceBlock::from_parts(BlockParts {
            ptr: block.ptr(),
            bytes: block.bytes(),
            reserved_bytes: block.reserved_bytes(),
            alignment: block.alignment(),
            device_ordinal: block.device_ordinal(),
            alloc_stream: block.alloc_stream(),
            tag: block.tag(),
            generation: block.generation(),
            slot: block.id().slot(),
            state: BlockState::Live,
        })
    }
}
