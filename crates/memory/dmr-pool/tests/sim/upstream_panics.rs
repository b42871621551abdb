//! A panic of upstream under a call of the pool: no page and no chunk of another call is lost. Nor
//! is a page mapped of another size than the pool has asked for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmr_core::{
    AddressRange, AllocTag, DestroyError, DeviceBlock, DeviceMemoryResource, PhysicalMemory,
    ReleaseError, ResourceError, ResourceResult, StreamId, VirtualMemory,
};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

const MIB: u64 = 1 << 20;

/// Panics in one of its calls, before it does anything.
#[derive(Debug)]
struct Panicking {
    inner: VirtualCudaResource,
    /// The number of calls until then.
    left: AtomicUsize,
    /// It creates twice the memory that it is asked for.
    doubles: bool,
}

impl Panicking {
    fn call(&self) -> &dyn VirtualMemory {
        assert!(self.left.fetch_sub(1, Ordering::SeqCst) != 0, "the planned panic");
        self.memory()
    }

    fn memory(&self) -> &dyn VirtualMemory {
        self.inner.virtual_memory().unwrap()
    }
}

impl VirtualMemory for Panicking {
    fn granularity(&self) -> u64 {
        self.memory().granularity()
    }

    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        self.call().reserve(bytes)
    }

    fn release(&self, range: AddressRange) -> Result<(), Box<ReleaseError>> {
        self.memory().release(range)
    }

    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        self.call().create(if self.doubles { 2 * bytes } else { bytes }, tag)
    }

    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<DestroyError>> {
        self.memory().destroy(memory)
    }

    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.call().map(memory, address)
    }

    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()> {
        self.call().unmap(memory, address)
    }
}

impl DeviceMemoryResource for Panicking {
    fn allocate(&self, n: usize, at: StreamId, tag: AllocTag) -> ResourceResult<DeviceBlock> {
        self.call();
        self.inner.allocate(n, at, tag)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }

    dmr_core::forward!(
        inner: deallocate, is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending, trim_to,
    );
}

/// Reserves, moves and trims memory, with a panic in the given call of upstream. Returns whether
/// there was one.
fn panics_in(call: usize, page_size: u64) -> bool {
    let rig = Rig::simulated();
    let streams = rig.streams();
    let inner = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new()).unwrap();
    let upstream = Panicking { inner, left: AtomicUsize::new(call), doubles: false };
    let config = PoolConfig::fast().with_page_size(page_size).with_maximum_size(32 * MIB);
    let pool = PoolResource::new(upstream, Arc::clone(streams), config).unwrap();
    let [a, b] = [rig.stream(), rig.stream()];
    let mut has_panicked = false;
    let mut attempt = |act: &mut dyn FnMut()| {
        has_panicked |= catch_unwind(AssertUnwindSafe(act)).is_err();
    };
    let mut blocks = Vec::new();
    for _ in 0..4 {
        attempt(&mut || blocks.extend(pool.allocate(8 << 20, a.id(), AllocTag::UNTAGGED)));
    }
    // Every second one, so that pages of two places make the next one.
    for at in (0..blocks.len()).rev().step_by(2) {
        pool.deallocate(blocks.remove(at)).unwrap();
    }
    attempt(&mut || blocks.extend(pool.allocate(14 << 20, b.id(), AllocTag::UNTAGGED)));
    rig.device().synchronize().unwrap();
    attempt(&mut || drop(pool.trim_to(16 * MIB)));
    for block in blocks {
        pool.deallocate(block).unwrap();
    }
    rig.device().synchronize().unwrap();
    attempt(&mut || drop(pool.trim_to(0)));
    pool.upstream().left.store(usize::MAX, Ordering::SeqCst);
    pool.trim_to(0).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.reserved, stats.in_use), (0, 0), "after a panic in call {call}");
    // All of it serves again.
    let block = pool.allocate(32 << 20, a.id(), AllocTag::UNTAGGED).unwrap();
    pool.deallocate(block).unwrap();
    drop(pool);
    has_panicked
}

#[test]
fn a_panic_of_upstream_loses_no_page() {
    let calls = (0..).take_while(|&call| panics_in(call, 2 * MIB)).count();
    assert!(calls > 50, "only {calls} calls of upstream");
}

#[test]
fn a_panic_of_upstream_loses_no_segment() {
    let calls = (0..).take_while(|&call| panics_in(call, 0)).count();
    assert!(calls > 3, "only {calls} calls of upstream");
}

/// A larger page would be mapped over its neighbour's addresses.
#[test]
fn memory_of_another_size_than_a_page_goes_back_to_upstream() {
    let rig = Rig::simulated();
    let streams = rig.streams();
    let inner = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new()).unwrap();
    let upstream = Panicking { inner, left: AtomicUsize::new(usize::MAX), doubles: true };
    let config = PoolConfig::fast().with_page_size(2 * MIB);
    let pool = PoolResource::new(upstream, Arc::clone(streams), config).unwrap();
    let home = rig.stream();
    let refused = pool.allocate(8 << 20, home.id(), AllocTag::UNTAGGED).unwrap_err();
    assert!(matches!(refused, ResourceError::WrongMemory { .. }), "{refused}");
    assert_eq!((pool.stats().reserved, pool.upstream().usage().reserved), (0, 0));
    drop((pool, home));
    rig.assert_clean();
}
