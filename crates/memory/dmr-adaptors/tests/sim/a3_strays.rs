//! A3, T4: a block that cannot be filled and that upstream refuses to take is not lost: it stays in
//! quarantine.

#![cfg(feature = "debug-guard")]

use crate::a3;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::a3::{Hooked, Moment, TAG};
use crate::scripted::Scripted;
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_core::{DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

fn failure() -> ResourceError {
    ResourceError::driver("cuMemsetD32Async", 2, "CUDA_ERROR_OUT_OF_MEMORY", 0)
}

/// Operations whose fills fail while `fails`.
fn ops(rig: &Rig, fails: &Arc<AtomicBool>) -> Arc<dyn DeviceOps> {
    let fails = Arc::clone(fails);
    Hooked::new(rig, move |moment| match moment {
        Moment::BeforeFill(_) if fails.load(SeqCst) => Err(failure()),
        _ => Ok(()),
    })
}

#[test]
fn a_block_that_upstream_refused_is_deallocated_when_the_quarantine_is_emptied() {
    for has_quarantine in [false, true] {
        let rig = Rig::simulated();
        let fails = Arc::new(AtomicBool::new(true));
        let inner = Scripted::new(DirectCudaResource::new(Arc::clone(rig.streams())));
        let mut layer = DebugGuardLayer::new(ops(&rig, &fails));
        if !has_quarantine {
            layer = layer.with_quarantine(0, 0);
        }
        let guard = a3::guarded(inner, layer);
        let stream = rig.stream();

        guard.upstream().fail("deallocate", failure());
        assert!(guard.allocate(1000, stream.id(), TAG).is_err());
        fails.store(false, SeqCst);
        assert!(guard.upstream().usage().live > 0, "the inner resource has it");
        assert_eq!(guard.usage().outstanding(), 0, "the program has not");

        // Refused again, it is kept, and the reap says so.
        let reap = || if has_quarantine { guard.reap_pending() } else { guard.try_reap() };
        guard.upstream().fail("deallocate", failure());
        assert!(reap().is_err());
        assert!(guard.upstream().usage().live > 0);
        reap().unwrap();
        assert_eq!(guard.upstream().usage().live, 0);
        let calls = guard.upstream().calls();
        assert_eq!(calls.iter().filter(|call| **call == "deallocate").count(), 3);
        guard.reap_pending().unwrap();
        assert_eq!(guard.upstream().bytes_outstanding(), 0);
        assert_eq!(guard.violations(), [], "it was not filled");
        drop((guard, stream));
        rig.assert_clean();
    }
}

#[test]
fn it_also_goes_back_with_the_guard() {
    let rig = Rig::simulated();
    let inner = Scripted::new(DirectCudaResource::new(Arc::clone(rig.streams())));
    let layer = DebugGuardLayer::new(ops(&rig, &Arc::new(AtomicBool::new(true))));
    let guard = a3::guarded(inner, layer);
    let stream = rig.stream();
    guard.upstream().fail("deallocate", failure());
    assert!(guard.allocate(1000, stream.id(), TAG).is_err());
    let inner = guard.into_upstream();
    inner.reap_pending().unwrap();
    assert_eq!(inner.bytes_outstanding(), 0);
    drop((inner, stream));
    rig.assert_clean();
}
