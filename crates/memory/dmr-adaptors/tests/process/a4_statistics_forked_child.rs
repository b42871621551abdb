//! In a forked child statistics are empty, and no call waits for a lock that a thread of the parent
//! holds.

#![cfg(all(unix, feature = "statistics"))]
#![allow(unsafe_code, reason = "forks")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::statistics::{Statistics, StatisticsLayer};
use dmr_core::conformance::Harness;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_fake::FakeHarness;
use dmr_testkit::exit_code;

#[test]
fn a_forked_child_counts_nothing_and_does_not_hang() {
    let harness = FakeHarness::wrapped(true, |fake, _| StatisticsLayer::new().layer(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    // A snapshot of many tags holds the lock for long, so that most forks find it locked.
    for n in 0..2000 {
        resource.allocate(0, x, AllocTag::intern(&format!("tag {n}"))).unwrap_err();
    }
    let scope = resource.push(AllocTag::new("scope"));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                assert_eq!(resource.snapshot().by_tag.len(), 2000);
            }
        });
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(1));
            // SAFETY: the child makes a few calls and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "fork");
            if child == 0 {
                let failed = resource.allocate(0, x, AllocTag::UNTAGGED).is_err();
                resource.reset_peaks();
                drop(resource.push(AllocTag::UNTAGGED));
                let is_empty = resource.snapshot() == Statistics::default();
                let is_zero = scope.so_far().failures == 0;
                // SAFETY: ends the child, without the parent's handlers.
                unsafe { libc::_exit(i32::from(!(failed && is_empty && is_zero))) };
            }
            if exit_code(child) != Some(0) {
                is_done.store(true, Ordering::Relaxed);
                panic!("the child failed or hung");
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!((resource.snapshot().failures, scope.pop().failures), (2000, 0));
}
