//! T4: a panic of the observer costs its report, and no memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmr_core::{AllocTag, DeviceMemoryResource, Generation, MemoryObserver};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::{HeldStream, Rig};

const MIB: usize = 1 << 20;

/// Panics in one of its calls.
#[derive(Debug)]
struct Panicking(AtomicUsize);

impl Panicking {
    fn call(&self) {
        assert!(self.0.fetch_sub(1, Ordering::SeqCst) != 0, "the planned panic");
    }
}

impl MemoryObserver for Panicking {
    fn heap_created(&self, _: u64, _: usize) {
        self.call();
    }

    fn heap_destroyed(&self, _: u64) {
        self.call();
    }

    fn region_allocated(&self, _: u64, _: usize, _: AllocTag, _: Generation) {
        self.call();
    }

    fn region_freed(&self, _: u64, _: Generation) {
        self.call();
    }
}

/// Several blocks are done at once, so the report of one comes before those of others.
#[test]
fn every_block_is_freed_whichever_report_panics() {
    let mut calls = 0;
    loop {
        let rig = Rig::new();
        let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
        let config = PoolConfig::fast().with_page_size(0);
        let pool = PoolResource::new(direct, Arc::clone(rig.streams()), config).unwrap();
        let observer = Arc::new(Panicking(AtomicUsize::new(calls)));
        let pool = pool.with_observer(Arc::<Panicking>::clone(&observer));
        let stream = rig.stream();
        let allocate = || pool.allocate(32 * MIB, stream.id(), AllocTag::UNTAGGED).unwrap();
        let blocks = [(); 4].map(|()| allocate());
        let held = HeldStream::hold(rig.streams(), &stream);
        for block in blocks {
            pool.deallocate(block).unwrap();
        }
        drop(held);
        pool.reap_pending().unwrap();
        pool.trim_to(0).unwrap();
        assert_eq!(pool.usage().outstanding(), 0, "call {calls}");
        assert_eq!(pool.usage().reserved, 0, "call {calls}");
        let has_panicked = observer.0.load(Ordering::SeqCst) > calls;
        assert_eq!(pool.observer_panics(), u64::from(has_panicked));
        drop((pool, stream));
        rig.assert_clean();
        if !has_panicked {
            break;
        }
        calls += 1;
    }
    assert!(calls >= 12, "{calls} reports");
}
