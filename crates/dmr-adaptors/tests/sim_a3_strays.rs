//! A3, T4: a block whose poison fails and that upstream fails to deallocate is not lost: a
//! reap deallocates it.

#![cfg(feature = "debug-guard")]

mod a3;
mod scripted;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use a3::TAG;
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_core::{
    DeviceBlock, DeviceMemoryResource, DeviceOps, PatternMismatch, ResourceError, ResourceResult,
    StreamId,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::PatternOps;
use dmr_testkit::Rig;
use scripted::Scripted;

/// Operations whose fills can be switched off.
#[derive(Debug)]
struct Ops {
    inner: PatternOps,
    fails: AtomicBool,
}

fn failure() -> ResourceError {
    ResourceError::driver("cuMemsetD32Async", 2, "CUDA_ERROR_OUT_OF_MEMORY", 0)
}

impl DeviceOps for Ops {
    fn fill_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
    ) -> ResourceResult<()> {
        if self.fails.load(SeqCst) {
            return Err(failure());
        }
        self.inner.fill_pattern(block, range, pattern, stream)
    }

    fn check_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
        key: u64,
    ) -> ResourceResult<()> {
        self.inner.check_pattern(block, range, pattern, stream, key)
    }

    fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
        self.inner.collect()
    }

    fn library_stream(&self, block: &DeviceBlock) -> ResourceResult<StreamId> {
        self.inner.library_stream(block)
    }

    fn join_home_stream(&self, block: &DeviceBlock) -> ResourceResult<bool> {
        self.inner.join_home_stream(block)
    }

    fn synchronize(&self, stream: StreamId) -> ResourceResult<()> {
        self.inner.synchronize(stream)
    }
}

#[test]
fn what_was_neither_poisoned_nor_taken_back_goes_back_at_a_reap() {
    for all in [false, true] {
        let rig = Rig::simulated();
        let ops = PatternOps::new(Arc::clone(rig.streams())).unwrap();
        let ops = Arc::new(Ops { inner: ops, fails: AtomicBool::new(true) });
        let inner = Scripted::new(DirectCudaResource::new(Arc::clone(rig.streams())));
        let layer = DebugGuardLayer::new(Arc::clone(&ops) as Arc<dyn DeviceOps>);
        let guard = a3::guarded(inner, layer);
        let stream = rig.stream();

        guard.upstream().fail("deallocate", failure());
        assert!(guard.allocate(1000, stream.id(), TAG).is_err());
        ops.fails.store(false, SeqCst);
        assert!(guard.upstream().usage().live > 0, "the inner resource has it");
        assert_eq!(guard.usage().outstanding(), 0, "the program has not");

        // Refused again, it is kept, and the reap says so.
        let reap = || if all { guard.reap_pending() } else { guard.try_reap() };
        guard.upstream().fail("deallocate", failure());
        assert!(reap().is_err());
        assert!(guard.upstream().usage().live > 0);
        reap().unwrap();
        assert_eq!(guard.upstream().usage().live, 0);
        let calls = guard.upstream().calls();
        assert_eq!(calls.iter().filter(|call| **call == "deallocate").count(), 3);
        guard.reap_pending().unwrap();
        assert_eq!(guard.upstream().bytes_outstanding(), 0);
        drop((guard, stream));
        rig.assert_clean();
    }
}

#[test]
fn it_also_goes_back_with_the_guard() {
    let rig = Rig::simulated();
    let ops = PatternOps::new(Arc::clone(rig.streams())).unwrap();
    let ops: Arc<dyn DeviceOps> = Arc::new(Ops { inner: ops, fails: AtomicBool::new(true) });
    let inner = Scripted::new(DirectCudaResource::new(Arc::clone(rig.streams())));
    let guard = a3::guarded(inner, DebugGuardLayer::new(ops));
    let stream = rig.stream();
    guard.upstream().fail("deallocate", failure());
    assert!(guard.allocate(1000, stream.id(), TAG).is_err());
    let inner = guard.into_upstream();
    inner.reap_pending().unwrap();
    assert_eq!(inner.bytes_outstanding(), 0);
    drop((inner, stream));
    rig.assert_clean();
}
