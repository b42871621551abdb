//! A budget whose shared limit is locked by a process that is stopped: how long calls wait.
#![cfg(all(feature = "shared", target_os = "linux"))]
#![allow(unsafe_code, reason = "locks the account as a stopped process does")]

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceResult, StreamId, StreamPoolId, Usage,
};
use dmr_shared_limit::{Largest, SharedLimit, SharedLimitConfig};

const TAG: AllocTag = AllocTag::new("rows");

/// The lock timeout: much longer than a loaded machine delays a thread.
const PATIENCE: Duration = Duration::from_secs(2);

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
    let budget = budget(directory.path());
    let backend = Arc::new(Backend::new());
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
    let budget = budget(directory.path());
    let backend = Arc::new(Backend::new());
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
    drop(held);
    // A lock that is held for a moment is no reason to refuse. A loaded machine makes the moment
    // longer now and then.
    let is_reserved = || {
        let held = locked(directory.path());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(10));
                drop(held);
            });
            budget.reserve(10, Duration::ZERO).is_ok()
        })
    };
    assert!((0..20).any(|_| is_reserved()));
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

/// Calls a function at the nth query whether a block is retired.
struct AtQuery {
    backend: Backend,
    call: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    left: AtomicI64,
}

impl fmt::Debug for AtQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtQuery")
    }
}

impl DeviceMemoryResource for AtQuery {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.backend.allocate(bytes, stream, tag)
    }
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.backend.deallocate(block)
    }
    fn is_retired(&self, block: BlockId) -> bool {
        if self.left.fetch_sub(1, SeqCst) == 1
            && let Some(call) = self.call.lock().unwrap().take()
        {
            call();
        }
        self.backend.is_retired(block)
    }
    fn device_ordinal(&self) -> usize {
        0
    }
    fn stream_pool(&self) -> StreamPoolId {
        self.backend.stream_pool()
    }
    fn usage(&self) -> Usage {
        self.backend.usage()
    }
    fn try_reap(&self) -> ResourceResult<u64> {
        Ok(0)
    }
    fn reap_pending(&self) -> ResourceResult<u64> {
        Ok(0)
    }
}

/// Both requests are charged to one part. The account refuses the first one just before the second
/// one, which fits, would be refused because of it.
#[test]
fn a_charge_that_the_account_refuses_in_the_end_makes_no_other_request_fail() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let budget = budget(directory.path());
    let config = SharedLimitConfig::new([3; 16], 1000).with_directory(directory.path());
    let neighbour = SharedLimit::join(&config).unwrap();
    neighbour.charge(700, Largest::default()).unwrap();
    // After the third attempt, which is the last.
    let polls_before = 5;
    let call = Mutex::default();
    let left = AtomicI64::new(0);
    let upstream = Arc::new(AtQuery { backend: Backend::new().keeping(false), call, left });
    let stream = upstream.backend.stream();
    let part = budget.sub_budget(TAG, 310);
    let resource = BudgetLayer::on(&part).layer(Arc::clone(&upstream));
    let retired = resource.allocate(10, stream, TAG).unwrap();
    resource.deallocate(retired).unwrap();
    let held = locked(directory.path());
    thread::scope(|scope| {
        let other = on_backend(&part);
        let refused = scope.spawn(move || other.allocate(300, other.upstream().stream(), TAG));
        while part.reserved_bytes() < 310 {
            thread::yield_now();
        }
        let of_part = part.clone();
        *upstream.call.lock().unwrap() = Some(Box::new(move || {
            drop(held);
            while of_part.reserved_bytes() > 10 {
                thread::yield_now();
            }
        }));
        upstream.left.store(polls_before, SeqCst);
        let block = resource.allocate(150, stream, TAG).unwrap();
        refused.join().unwrap().unwrap_err();
        resource.deallocate(block).unwrap();
    });
    assert_eq!(upstream.left.load(SeqCst).signum(), -1, "no such query");
}

fn on_backend(budget: &Budget) -> BudgetResource<Backend> {
    BudgetLayer::on(budget).layer(Backend::new())
}
