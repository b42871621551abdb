//! T9, S3: a trim drops RMM's resource if no block is live, and the drop of the resource leaks it
//! if one is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps};
use dmr_rmm::RmmKind;
use dmr_testkit::Rig;

use crate::support::{resource, small, tracked};

const POOLS: [RmmKind; 4] = [RmmKind::CudaAsync, RmmKind::Pool, RmmKind::Arena, RmmKind::Binning];

#[test]
fn a_trim_returns_what_no_block_has_and_the_next_allocation_takes_it_again() {
    for kind in POOLS {
        let rig = Rig::small();
        let resource = resource(rig.streams(), small(kind));
        let stream = rig.stream();
        let allocate = || resource.allocate(1 << 20, stream.id(), AllocTag::UNTAGGED).unwrap();
        let block = allocate();
        let reserved = resource.usage().reserved;
        assert_eq!(resource.trim_to(0).unwrap(), 0, "{kind}: a block is live");
        assert_eq!(resource.usage().reserved, reserved, "{kind}");
        resource.deallocate(block).unwrap();
        assert_eq!(resource.trim_to(reserved).unwrap(), 0, "{kind}: it may keep all");
        assert_eq!(resource.trim_to(0).unwrap(), reserved, "{kind}");
        assert_eq!(resource.usage().reserved, 0, "{kind}");
        resource.deallocate(allocate()).unwrap();
        assert_eq!(resource.usage().reserved, reserved, "{kind}");
        drop((resource, stream));
        rig.assert_clean();
    }
}

#[test]
fn threads_allocate_while_another_trims() {
    for kind in POOLS {
        let rig = Rig::simulated();
        let resource = tracked(rig.streams(), small(kind));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    resource.trim_to(0).unwrap();
                    thread::yield_now();
                }
            });
            let threads: Vec<_> = (0..3_u32)
                .map(|word| {
                    let stream = rig.stream();
                    let rig = &rig;
                    let resource = &resource;
                    scope.spawn(move || {
                        for _ in 0..100 {
                            let block =
                                resource.allocate(5000, stream.id(), AllocTag::UNTAGGED).unwrap();
                            rig.ops().fill_pattern(&block, 0..5000, word, stream.id()).unwrap();
                            resource.deallocate(block).unwrap();
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let usage = resource.usage();
        assert_eq!((usage.live, usage.total_allocated), (0, 3 * 100 * 5000), "{kind}");
        drop(resource);
        rig.assert_clean();
    }
}

#[test]
fn a_live_block_outlives_the_resource() {
    for kind in RmmKind::ALL {
        let rig = Rig::simulated();
        let resource = resource(rig.streams(), small(kind));
        let stream = rig.stream();
        let block = resource.allocate(5000, stream.id(), AllocTag::UNTAGGED).unwrap();
        drop(resource);
        rig.ops().fill_pattern(&block, 0..5000, 7, stream.id()).unwrap();
        rig.device().synchronize().unwrap();
        assert_eq!(rig.verdict(), Ok(()), "{kind}");
    }
}
