//! A budget whose shared limit is locked by a process that is stopped: how long calls wait.
#![cfg(all(feature = "shared", target_os = "linux"))]
#![allow(unsafe_code, reason = "locks the account as a stopped process does")]

mod a2_support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_shared_limit::SharedLimitConfig;

const TAG: AllocTag = AllocTag::new("rows");

/// The lock timeout.
const PATIENCE: Duration = Duration::from_millis(300);

fn budget(directory: &Path) -> Budget {
    let config = SharedLimitConfig::new([3; 16], 1000).with_directory(directory);
    Budget::shared(&config.with_lock_timeout(PATIENCE)).unwrap()
}

/// Locks the account until it is dropped.
fn locked(directory: &Path) -> File {
    let account = std::fs::read_dir(directory).unwrap().next().unwrap().unwrap();
    let file = File::open(account.path()).unwrap();
    // SAFETY: a descriptor of our own.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    file
}

fn time(call: impl FnOnce()) -> Duration {
    let start = Instant::now();
    call();
    start.elapsed()
}

#[test]
fn an_allocation_waits_for_the_lock_timeout_once() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (budget, backend) = (budget(directory.path()), Arc::new(Backend::new()));
    let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
    let _locked = locked(directory.path());
    let waited = time(|| drop(resource.allocate(10, backend.stream(), TAG).unwrap_err()));
    assert!(waited < 2 * PATIENCE, "{waited:?}");
}

#[test]
fn a_reservation_with_a_longer_timeout_waits_for_the_lock_timeout_once() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let budget = budget(directory.path());
    let _locked = locked(directory.path());
    let waited = time(|| drop(budget.reserve(10, 10 * PATIENCE).unwrap_err()));
    assert!(waited < 2 * PATIENCE, "{waited:?}");
}

#[test]
fn a_release_does_not_wait_for_the_charges_of_other_threads() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (budget, backend) = (budget(directory.path()), Arc::new(Backend::new()));
    let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
    let block = resource.allocate(10, backend.stream(), TAG).unwrap();
    let _locked = locked(directory.path());
    let waited = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| drop(resource.allocate(10, backend.stream(), TAG).unwrap_err()));
        }
        thread::sleep(Duration::from_millis(50));
        time(|| assert!(resource.deallocate(block).is_ok()))
    });
    assert!(waited < PATIENCE, "{waited:?}");
}

#[test]
fn a_reservation_does_not_wait_for_the_account_after_its_timeout() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let budget = budget(directory.path());
    let held = locked(directory.path());
    let waited = time(|| drop(budget.reserve(10, PATIENCE / 10).unwrap_err()));
    assert!(waited < PATIENCE / 2, "{waited:?}");
    // A lock that is held for a moment is no reason to refuse.
    drop(held);
    let held = locked(directory.path());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(10));
            drop(held);
        });
        drop(budget.reserve(10, Duration::ZERO).unwrap());
    });
}

#[test]
fn the_bytes_that_are_left_are_read_in_bounded_time() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let budget = budget(directory.path());
    assert_eq!(budget.remaining(), 1000);
    let locked = locked(directory.path());
    let waited = time(|| assert_eq!(budget.remaining(), 0));
    assert!(waited < PATIENCE / 2, "{waited:?}");
    drop(locked);
    assert_eq!(budget.remaining(), 1000);
}
