//! T6: outstanding is live + retired, in requested bytes, exact whenever no call is under way.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn every_requested_byte_is_live_retired_or_freed() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let allocate = |bytes| resource.allocate(bytes, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let a = allocate(100);
    let b = allocate(1000);
    let usage = resource.usage();
    assert_eq!((usage.live, usage.retired, usage.reserved), (1100, 0, 1100));
    resource.deallocate(a).unwrap();
    let usage = resource.usage();
    assert_eq!((usage.live, usage.retired, usage.reserved), (1000, 100, 1100));
    assert_eq!(resource.bytes_outstanding(), 1100);
    assert_eq!(resource.try_reap().unwrap(), 100);
    assert_eq!(resource.try_reap().unwrap(), 0);
    let usage = resource.usage();
    assert_eq!((usage.live, usage.retired, usage.reserved), (1000, 0, 1000));
    assert_eq!((usage.total_allocated, usage.total_freed), (1100, 100));
    resource.deallocate(b).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn threads_leave_the_accounting_exact() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 50;
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let resource = &resource;
            scope.spawn(move || {
                let stream = StreamId::DEFAULT;
                let mut held = Vec::new();
                for round in 0..ROUNDS {
                    let bytes = 1 + (thread * ROUNDS + round) * 7;
                    held.push(resource.allocate(bytes, stream, AllocTag::UNTAGGED).unwrap());
                    if round % 3 != 0 {
                        resource.deallocate(held.swap_remove(round % held.len())).unwrap();
                    }
                    if round % 10 == thread {
                        resource.try_reap().unwrap();
                    }
                }
                for block in held {
                    resource.deallocate(block).unwrap();
                }
            });
        }
    });
    let requested: usize = (0..THREADS * ROUNDS).map(|i| 1 + i * 7).sum();
    let usage = resource.usage();
    assert_eq!((usage.live, usage.total_allocated), (0, requested as u64));
    assert_eq!(usage.retired, usage.total_allocated - usage.total_freed);
    assert_eq!(usage.reserved, usage.retired);
    resource.reap_pending().unwrap();
    assert_eq!((resource.usage().reserved, resource.usage().total_freed), (0, requested as u64));
    drop(resource);
    rig.assert_clean();
}
