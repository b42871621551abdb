//! A budget within a limit that processes share: what it charges there, and what its refusals say.
#![cfg(all(feature = "shared", target_os = "linux"))]
#![allow(unsafe_code, reason = "locks the account as a stopped process does")]

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_shared_limit::{Largest, Problem, SharedLimit, SharedLimitConfig};
use tempfile::TempDir;

const TAG: AllocTag = AllocTag::new("probe-keys");
const LIMIT: u64 = 1000;

fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn config(directory: &Path) -> SharedLimitConfig {
    SharedLimitConfig::new([3; 16], LIMIT).with_directory(directory)
}

#[test]
fn what_is_charged_to_the_budget_is_charged_to_the_limit_under_its_tag() {
    let directory = directory();
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let neighbour = SharedLimit::join(&config(directory.path())).unwrap();
    let backend = Arc::new(Backend::new());
    let layer = BudgetLayer::on(&budget);
    let resource = layer.layer(Arc::clone(&backend));
    let keys = resource.allocate(500, backend.stream(), TAG).unwrap();
    let rows = resource.allocate(100, backend.stream(), AllocTag::new("rows")).unwrap();
    let usage = neighbour.usage().unwrap();
    assert_eq!((usage.used(), usage.limit, usage.processes.len()), (600, LIMIT, 1));
    assert_eq!((&*usage.processes[0].tag, usage.processes[0].tag_bytes), ("probe-keys", 500));
    assert_eq!((budget.reserved_bytes(), budget.remaining()), (600, 400));
    neighbour.charge(300, Largest::default()).unwrap();
    assert_eq!((budget.reserved_bytes(), budget.remaining()), (600, 100));
    resource.deallocate(keys).unwrap();
    let usage = neighbour.usage().unwrap();
    assert_eq!((usage.used(), &*usage.processes[0].tag), (400, "rows"));
    resource.deallocate(rows).unwrap();
    assert_eq!(neighbour.usage().unwrap().used(), 300);
}

#[test]
fn a_refusal_of_the_limit_names_the_processes_and_leaves_nothing_charged() {
    let directory = directory();
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let neighbour = SharedLimit::join(&config(directory.path())).unwrap();
    neighbour.charge(700, Largest { tag: "kv-cache", bytes: 600 }).unwrap();
    let backend = Arc::new(Backend::new());
    let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
    let error = resource.allocate(301, backend.stream(), TAG).unwrap_err();
    let ResourceError::OutOfBudget { limit, remaining, shared: Some(shared), .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*limit, *remaining, shared.problem.as_deref()), (LIMIT, 300, None));
    assert_eq!((shared.processes[0].pid, shared.processes[0].bytes), (std::process::id(), 700));
    let expected = format!("700 B held by process {} (", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    assert!(error.to_string().contains("most of it by \"kv-cache\" (600 B)"), "{error}");
    assert_eq!((budget.reserved_bytes(), neighbour.usage().unwrap().used()), (0, 700));
    // What was refused is not counted for its tag.
    let block = resource.allocate(300, backend.stream(), AllocTag::new("rows")).unwrap();
    neighbour.release(700, Largest::default());
    assert_eq!(&*neighbour.usage().unwrap().processes[0].tag, "rows");
    resource.deallocate(block).unwrap();
}

#[test]
fn a_refusal_counts_other_processes_also_where_this_one_would_exceed_the_limit_alone() {
    let directory = directory();
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let neighbour = SharedLimit::join(&config(directory.path())).unwrap();
    neighbour.charge(300, Largest::default()).unwrap();
    let backend = Arc::new(Backend::new());
    let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
    let block = resource.allocate(600, backend.stream(), TAG).unwrap();
    let error = resource.allocate(500, backend.stream(), TAG).unwrap_err();
    assert!(
        matches!(&error, ResourceError::OutOfBudget { remaining: 100, shared: Some(_), .. }),
        "{error}"
    );
    // A limit of this process that was lowered refuses by itself, and charges nothing.
    budget.set_limit(650);
    let error = resource.allocate(60, backend.stream(), TAG).unwrap_err();
    assert!(
        matches!(
            &error,
            ResourceError::OutOfBudget { limit: 650, remaining: 50, shared: None, .. }
        ),
        "{error}"
    );
    assert_eq!(neighbour.usage().unwrap().used(), 900);
    resource.deallocate(block).unwrap();
}

#[test]
fn a_retired_block_is_reaped_before_the_limit_refuses() {
    let directory = directory();
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let backend = Arc::new(Backend::new().keeping(true));
    let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
    let block = resource.allocate(600, backend.stream(), TAG).unwrap();
    resource.deallocate(block).unwrap();
    assert_eq!(budget.remaining(), 400);
    let block = resource.allocate(600, backend.stream(), TAG).unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(budget.remaining(), LIMIT);
}

#[test]
fn a_share_and_a_reservation_are_charged_to_the_limit_once() {
    let directory = directory();
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let neighbour = SharedLimit::join(&config(directory.path())).unwrap();
    let backend = Arc::new(Backend::new());
    let reserved = budget.reserve(400, Duration::ZERO).unwrap();
    assert_eq!(neighbour.usage().unwrap().used(), 400);
    let resource = BudgetLayer::on(&reserved).layer(Arc::clone(&backend));
    let block = resource.allocate(400, backend.stream(), TAG).unwrap();
    assert_eq!(neighbour.usage().unwrap().used(), 400);
    drop(reserved);
    resource.deallocate(block).unwrap();
    drop(resource);
    assert_eq!(neighbour.usage().unwrap().used(), 0);
    // What the block took of the reservation is no longer shown as reserved.
    let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
    let block = resource.allocate(100, backend.stream(), AllocTag::new("rows")).unwrap();
    assert_eq!(&*neighbour.usage().unwrap().processes[0].tag, "rows");
    resource.deallocate(block).unwrap();
    neighbour.charge(900, Largest::default()).unwrap();
    budget.reserve(200, Duration::ZERO).unwrap_err();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| budget.reserve(200, Duration::from_secs(20)));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!waiting.is_finished());
        neighbour.release(900, Largest::default());
        drop(waiting.join().unwrap().unwrap());
    });
}

#[test]
fn a_process_has_one_budget_for_each_configuration_and_one_limit_for_each_gpu() {
    let directory = directory();
    let config = config(directory.path());
    let [one, two] = [(); 2].map(|()| Budget::shared(&config).unwrap());
    let reserved = one.reserve(400, Duration::ZERO).unwrap();
    assert_eq!((two.reserved_bytes(), two.limit()), (400, LIMIT));
    let other = SharedLimitConfig::new([3; 16], LIMIT + 1).with_directory(directory.path());
    let error = Budget::shared(&other).unwrap_err();
    assert!(
        matches!(error.problem, Problem::LimitDiffers { set_by, .. } if set_by == std::process::id()),
        "{error}"
    );
    drop((one, two, reserved));
    Budget::shared(&other).unwrap();
}

#[test]
fn a_budget_that_waits_for_its_account_does_not_delay_a_budget_of_another_one() {
    let one = directory();
    let other = directory();
    let in_one = |patience| config(one.path()).with_lock_timeout(patience);
    let _member = SharedLimit::join(&config(one.path())).unwrap();
    let account = std::fs::read_dir(one.path()).unwrap().next().unwrap().unwrap();
    let locked = std::fs::File::open(account.path()).unwrap();
    // SAFETY: a descriptor of our own.
    assert_eq!(unsafe { libc::flock(locked.as_raw_fd(), libc::LOCK_EX) }, 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Budget::shared(&in_one(Duration::from_secs(5))));
        std::thread::sleep(Duration::from_millis(100));
        Budget::shared(&config(other.path())).unwrap();
        assert!(!waiting.is_finished());
        drop(locked);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn an_account_that_cannot_be_used_refuses_and_says_why() {
    let directory = directory();
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let backend = Arc::new(Backend::new());
    let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let error = resource.allocate(1, backend.stream(), TAG).unwrap_err();
    let ResourceError::OutOfBudget { shared: Some(shared), remaining: 0, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        shared.problem.as_deref().unwrap().contains("was removed by another program"),
        "{error}"
    );
    assert!(error.to_string().contains("restart the processes that share it"), "{error}");
    assert_eq!(budget.reserved_bytes(), 0);
}

#[test]
fn blocks_that_were_there_before_are_charged_to_the_limit() {
    let directory = directory();
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let backend = Arc::new(Backend::new());
    let block = backend.allocate(800, backend.stream(), TAG).unwrap();
    let layer = BudgetLayer::on(&budget).with_charge_existing(true);
    let resource = layer.layer(Arc::clone(&backend));
    assert_eq!(budget.remaining(), 200);
    let neighbour = SharedLimit::join(&config(directory.path())).unwrap();
    assert_eq!(neighbour.usage().unwrap().used(), 800);
    resource.allocate(201, backend.stream(), TAG).unwrap_err();
    resource.deallocate(block).unwrap();
    assert_eq!(budget.remaining(), LIMIT);
}

#[test]
fn blocks_that_are_retired_when_the_budget_and_its_resource_are_dropped_are_released() {
    let directory = directory();
    let neighbour = SharedLimit::join(&config(directory.path())).unwrap();
    let backend = Arc::new(Backend::new().keeping(true));
    let stream = backend.stream();
    let lives = Arc::downgrade(&backend);
    let budget = Budget::shared(&config(directory.path())).unwrap();
    let resource = BudgetLayer::on(&budget).layer(backend);
    let block = resource.allocate(600, stream, TAG).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, budget));
    assert!(lives.upgrade().is_none());
    assert_eq!(neighbour.usage().unwrap().used(), 0);
}

#[test]
fn a_part_is_refused_by_the_limit_as_the_whole_is_and_leaves_nothing_charged() {
    let directory = directory();
    let whole = Budget::shared(&config(directory.path())).unwrap();
    let neighbour = SharedLimit::join(&config(directory.path())).unwrap();
    let part = whole.sub_budget(TAG, 900);
    let backend = Arc::new(Backend::new());
    let layer = BudgetLayer::on(&part);
    let resource = layer.layer(Arc::clone(&backend));
    let block = resource.allocate(200, backend.stream(), TAG).unwrap();
    neighbour.charge(600, Largest::default()).unwrap();
    assert_eq!((part.remaining(), whole.remaining()), (200, 200));
    let error = resource.allocate(300, backend.stream(), TAG).unwrap_err();
    assert!(
        matches!(&error, ResourceError::OutOfBudget { remaining: 200, shared: Some(_), .. }),
        "{error}"
    );
    assert_eq!((whole.reserved_bytes(), part.reserved_bytes()), (200, 200));
    resource.deallocate(block).unwrap();
    assert_eq!(neighbour.usage().unwrap().used(), 600);
    // More than the limit, however much is charged: no reservation waits for that.
    whole.reserve(LIMIT + 1, Duration::from_secs(60)).unwrap_err();
}
