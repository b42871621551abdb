//! Processes that fork, start programs, stop and die, and threads of one process.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks, and ends threads by system calls")]

use crate::common;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{GIB, Worker, config, directory, eventually, has_parent, join, report, tagged};
use dmr_shared_limit::{ChargeError, Largest, Problem, SharedLimit, SharedLimitConfig, accounts};

/// The limit of the workers of this file.
const LIMIT: u64 = 8 * GIB;

fn join_in_worker() -> SharedLimit {
    SharedLimit::join(&SharedLimitConfig::new(common::UUID, LIMIT)).unwrap()
}

/// Starts a process that runs an ignored test of this file.
fn start(test: &str, directory: &Path, variables: &[(&str, &str)]) -> Worker {
    Worker::start(&["--exact", test, "--ignored"], directory, variables)
}

fn problem(error: ChargeError) -> Problem {
    match error {
        ChargeError::Account(error) => error.problem,
        other => panic!("{other}"),
    }
}

#[test]
fn a_refusal_names_the_processes_by_pid_name_and_tag_most_bytes_first() {
    let directory = directory();
    let own = join(directory.path(), LIMIT);
    own.charge(GIB, tagged("rows", GIB)).unwrap();
    let mut worker =
        start("processes::charges_and_waits", directory.path(), &[("BYTES", "6442450944")]);
    worker.wait_for("charged");
    let Err(ChargeError::OverLimit(refusal)) = own.charge(GIB + 1, Largest::default()) else {
        panic!("charged above the limit");
    };
    assert_eq!((refusal.requested, refusal.limit, refusal.used), (GIB + 1, LIMIT, 7 * GIB));
    assert_eq!(refusal.remaining(), GIB);
    let pids: Vec<_> = refusal.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [worker.pid(), std::process::id()]);
    let name = std::fs::read_to_string(format!("/proc/{}/comm", worker.pid())).unwrap();
    let expected = format!(
        "over the shared limit: 1 GiB requested, 1 GiB of 8 GiB left; 6 GiB held by process {} ({}), \
         most of it by \"kv-cache\" (4 GiB); ",
        worker.pid(),
        name.trim_end()
    );
    assert!(refusal.to_string().starts_with(&expected), "{refusal}\n{expected}");
    // What was refused changed nothing; what fits is charged.
    own.charge(GIB, tagged("rows", 2 * GIB)).unwrap();
    let listed = accounts(Some(directory.path())).unwrap().remove(0).unwrap();
    assert_eq!((listed.limit, listed.used(), listed.group.as_str()), (LIMIT, LIMIT, "default"));
    assert_eq!(listed, own.usage().unwrap());
    worker.kill();
    own.charge(6 * GIB, Largest::default()).unwrap();
}

#[test]
#[ignore = "run by the other tests of this file"]
fn charges_and_waits() {
    let parent = std::os::unix::process::parent_id();
    let bytes: u64 = std::env::var("BYTES").unwrap().parse().unwrap();
    let limit = join_in_worker();
    limit.charge(bytes, tagged("kv-cache", 4 * GIB)).unwrap();
    report("charged");
    while has_parent(parent) {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn another_limit_is_refused_until_the_processes_with_the_first_one_have_ended() {
    let directory = directory();
    let mut worker = start("processes::charges_and_waits", directory.path(), &[("BYTES", "1")]);
    worker.wait_for("charged");
    let join = |limit| SharedLimit::join(&config(directory.path(), limit));
    let error = join(LIMIT / 2).unwrap_err();
    let Problem::LimitDiffers { limit, requested, set_by, .. } = &error.problem else {
        panic!("{error}")
    };
    assert_eq!((*limit, *requested, *set_by), (LIMIT, LIMIT / 2, worker.pid()));
    assert!(
        error.to_string().contains(&format!("8 GiB, set by process {}", worker.pid())),
        "{error}"
    );
    // Another group has an account of its own.
    SharedLimit::join(&config(directory.path(), 5).with_group("others")).unwrap();
    worker.kill();
    join(LIMIT / 2).unwrap();
}

#[test]
fn a_forked_child_charges_nothing_and_is_not_counted_whatever_threads_do_at_the_fork() {
    let directory = directory();
    let limit = join(directory.path(), LIMIT);
    limit.charge(GIB, Largest::default()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    limit.charge(GIB, Largest::default()).unwrap();
                    limit.release(GIB, Largest::default());
                }
            });
        }
        let statuses: Vec<_> = (0..20).map(|_| status_of_child(&limit)).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(statuses.iter().all(|status| *status == 0), "{statuses:?}");
    });
    assert_eq!(limit.usage().unwrap().used(), GIB);
    limit.charge(7 * GIB, Largest::default()).unwrap();
}

/// Makes each call in a forked child. Returns its status: 0 if each has refused.
fn status_of_child(limit: &SharedLimit) -> i32 {
    // SAFETY: the child makes calls that take no lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if a call waits.
        unsafe { libc::alarm(20) };
        let charged = limit.charge(1, Largest::default());
        let is_refused =
            matches!(charged, Err(ChargeError::Account(error)) if error.problem == Problem::Forked);
        limit.release(GIB, Largest::default());
        limit.charge_existing(GIB, Largest::default());
        let is_unreadable = limit.usage().is_err();
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(i32::from(!(is_refused && is_unreadable))) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_lock_ends_with_a_killed_process_although_its_forked_child_lives() {
    let directory = directory();
    // Much less than the child lives.
    let config = config(directory.path(), LIMIT).with_lock_timeout(Duration::from_secs(2));
    let limit = SharedLimit::join(&config).unwrap();
    let mut worker = start("processes::forks_and_charges", directory.path(), &[]);
    worker.wait_for("forked");
    worker.stop_with_lock();
    worker.kill();
    limit.charge(LIMIT, Largest::default()).unwrap();
}

#[test]
#[ignore = "run by the other tests of this file"]
fn forks_and_charges() {
    let parent = std::os::unix::process::parent_id();
    let limit = join_in_worker();
    // SAFETY: the child sleeps, and ends.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: as above.
        unsafe {
            // What reads the output of the tests need not wait for it.
            libc::close(1);
            libc::close(2);
            libc::sleep(8);
            libc::_exit(0);
        }
    }
    report("forked");
    while has_parent(parent) {
        limit.charge(GIB, Largest::default()).unwrap();
        limit.release(GIB, Largest::default());
    }
}

#[test]
fn a_program_that_is_started_has_no_account_open() {
    let directory = directory();
    let limit = join(directory.path(), LIMIT);
    let mut child = Command::new("sleep").arg("20").spawn().unwrap();
    let files = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let names: Vec<_> =
        files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("dmr-limit")), "{names:?}");
    drop(limit);
}

#[test]
fn a_process_whose_main_thread_has_ended_keeps_its_bytes() {
    let directory = directory();
    let limit = join(directory.path(), LIMIT);
    let mut worker = start("processes::ends_its_main_thread", directory.path(), &[]);
    worker.wait_for("charged");
    let is_zombie = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", worker.pid())).unwrap();
        stat.contains(") Z ")
    };
    eventually("the main thread has ended", is_zombie);
    limit.charge(1, Largest::default()).unwrap_err();
    assert_eq!(limit.usage().unwrap().used(), LIMIT);
    worker.kill();
    limit.charge(1, Largest::default()).unwrap();
}

#[test]
#[ignore = "run by the other tests of this file"]
fn ends_its_main_thread() {
    let parent = std::os::unix::process::parent_id();
    let limit = join_in_worker();
    limit.charge(LIMIT, Largest::default()).unwrap();
    report("charged");
    extern "C" fn end_thread(_: libc::c_int) {
        // SAFETY: ends the thread with the signal, not the process.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let handler: extern "C" fn(libc::c_int) = end_thread;
    // SAFETY: the handler makes one system call; the main thread waits for this one and owns
    // nothing else.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as libc::sighandler_t);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::getpid(), libc::SIGUSR1);
    }
    while has_parent(parent) {
        thread::sleep(Duration::from_millis(10));
    }
    std::process::exit(0);
}

#[test]
fn a_stopped_process_with_the_lock_is_named_and_what_is_released_meanwhile_is_not_lost() {
    let directory = directory();
    let config = config(directory.path(), LIMIT).with_lock_timeout(Duration::from_millis(200));
    let limit = SharedLimit::join(&config).unwrap();
    limit.charge(4 * GIB, Largest::default()).unwrap();
    let mut worker = start("processes::forks_and_charges", directory.path(), &[]);
    worker.wait_for("forked");
    worker.stop_with_lock();
    let start = Instant::now();
    let found = problem(limit.charge(GIB, Largest::default()).unwrap_err());
    let Problem::Busy { holder, .. } = &found else { panic!("{found}") };
    assert_eq!(*holder, Some(worker.pid()));
    assert!(
        found.to_string().contains(&format!("by process {}: continue or end", worker.pid())),
        "{found}"
    );
    limit.release(3 * GIB, Largest::default());
    limit.release(GIB / 2, Largest::default());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    worker.kill();
    eventually("released", || limit.usage().unwrap().used() == GIB / 2);
    limit.charge(GIB, Largest::default()).unwrap();
    assert_eq!(limit.usage().unwrap().used(), GIB + GIB / 2);
    limit.charge(LIMIT - GIB - GIB / 2, Largest::default()).unwrap();
}

#[test]
fn what_was_released_while_the_account_was_locked_is_charged_by_another_without_a_call_of_the_member()
 {
    let directory = directory();
    let config = config(directory.path(), LIMIT).with_lock_timeout(Duration::from_secs(1));
    let join = || SharedLimit::join(&config).unwrap();
    let idle = join();
    let dropped = join();
    let other = join();
    idle.charge(3 * GIB, Largest::default()).unwrap();
    dropped.charge(5 * GIB, Largest::default()).unwrap();
    let locked = common::locked(directory.path());
    idle.release(2 * GIB, Largest::default());
    idle.release(GIB, Largest::default());
    dropped.release(5 * GIB, Largest::default());
    drop((locked, dropped));
    eventually("charged", || other.charge(LIMIT, Largest::default()).is_ok());
    other.release(LIMIT, Largest::default());
    // A member that is dropped meanwhile leaves, and its record is not written when another member
    // has it.
    let leaves = join();
    leaves.charge(GIB, Largest::default()).unwrap();
    let locked = common::locked(directory.path());
    leaves.release(GIB, Largest::default());
    drop(leaves);
    drop(locked);
    let members = || {
        let bytes = std::fs::read(common::file_of(directory.path())).unwrap();
        bytes[256..].chunks(128).filter(|record| record.iter().any(|byte| *byte != 0)).count()
    };
    eventually("left", || members() == 2);
    let next = join();
    let pause = Duration::from_millis(200);
    next.charge(LIMIT, Largest::default()).unwrap();
    thread::sleep(pause);
    assert_eq!(other.usage().unwrap().used(), LIMIT);
}

#[test]
fn a_charge_waits_no_longer_than_the_lock_timeout_although_another_thread_waits_before_it() {
    let directory = directory();
    let patience = Duration::from_secs(3);
    let config = config(directory.path(), LIMIT).with_lock_timeout(patience);
    let limit = SharedLimit::join(&config).unwrap();
    let _locked = common::locked(directory.path());
    thread::scope(|scope| {
        scope.spawn(|| limit.charge(1, Largest::default()).unwrap_err());
        thread::sleep(patience / 2);
        let start = Instant::now();
        let found = problem(limit.charge(1, Largest::default()).unwrap_err());
        assert!(matches!(found, Problem::Busy { .. }), "{found}");
        assert!(start.elapsed() < patience * 7 / 5, "{:?}", start.elapsed());
    });
}

#[test]
fn threads_that_charge_at_random_never_exceed_the_limit() {
    let directory = directory();
    let limit = join(directory.path(), 1000);
    let held = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..8 {
            let limit = &limit;
            let held = &held;
            let refused = &refused;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut blocks = Vec::new();
                for _ in 0..1000 {
                    let bytes = random.u64(1..300);
                    if limit.charge(bytes, Largest::default()).is_ok() {
                        let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(now <= 1000, "{now} held of 1000");
                        blocks.push(bytes);
                    } else {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    if random.bool() && !blocks.is_empty() {
                        let bytes = blocks.swap_remove(random.usize(..blocks.len()));
                        held.fetch_sub(bytes, Ordering::SeqCst);
                        limit.release(bytes, Largest::default());
                    }
                }
                for bytes in blocks {
                    held.fetch_sub(bytes, Ordering::SeqCst);
                    limit.release(bytes, Largest::default());
                }
            });
        }
    });
    assert!(refused.into_inner() > 100);
    assert_eq!(limit.usage().unwrap().used(), 0);
    limit.charge(1000, Largest::default()).unwrap();
}

#[test]
fn two_members_of_a_process_have_charges_of_their_own_and_are_shown_as_one() {
    let directory = directory();
    let one = join(directory.path(), LIMIT);
    let two = join(directory.path(), LIMIT);
    one.charge(3 * GIB, tagged("a", 3 * GIB)).unwrap();
    two.charge(5 * GIB, tagged("b", 5 * GIB)).unwrap();
    one.charge(1, Largest::default()).unwrap_err();
    let usage = one.usage().unwrap();
    assert_eq!((usage.processes.len(), usage.used()), (1, LIMIT));
    assert_eq!((&*usage.processes[0].tag, usage.processes[0].tag_bytes), ("b", 5 * GIB));
    two.release(5 * GIB, Largest::default());
    drop(two);
    one.charge(5 * GIB, Largest::default()).unwrap();
}

#[test]
fn bytes_that_are_in_use_already_are_charged_and_nothing_more_until_it_fits() {
    let directory = directory();
    let one = join(directory.path(), LIMIT);
    let two = join(directory.path(), LIMIT);
    one.charge(6 * GIB, Largest::default()).unwrap();
    two.charge_existing(3 * GIB, tagged("(before the budget)", 3 * GIB));
    assert_eq!((one.usage().unwrap().used(), one.usage().unwrap().remaining()), (9 * GIB, 0));
    one.charge(0, Largest::default()).unwrap_err();
    one.release(GIB, Largest::default());
    one.charge(1, Largest::default()).unwrap_err();
    two.release(GIB, Largest::default());
    one.charge(GIB, Largest::default()).unwrap();
    two.charge(1, Largest::default()).unwrap_err();
}

#[test]
fn a_member_that_is_dropped_leaves_unless_bytes_are_charged() {
    let directory = directory();
    let keeper = join(directory.path(), LIMIT);
    let free_records = || std::fs::read(common::file_of(directory.path())).unwrap();
    let before = free_records();
    drop(join(directory.path(), LIMIT));
    let after = free_records();
    assert_eq!(after[..before.len()], before);
    assert!(after[before.len()..].iter().all(|byte| *byte == 0));
    let leaks = join(directory.path(), LIMIT);
    leaks.charge(GIB, Largest::default()).unwrap();
    drop(leaks);
    keeper.charge(LIMIT, Largest::default()).unwrap_err();
    keeper.charge(LIMIT - GIB, Largest::default()).unwrap();
}

#[test]
fn the_last_member_removes_the_account_and_a_member_that_joins_meanwhile_begins_a_new_one() {
    let directory = directory();
    let held = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let limit = join(directory.path(), 1);
                    if limit.charge(1, Largest::default()).is_ok() {
                        assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "two accounts");
                        thread::yield_now();
                        held.fetch_sub(1, Ordering::SeqCst);
                        limit.release(1, Largest::default());
                    } else {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(refused.into_inner() > 0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_eq!(accounts(Some(directory.path())).unwrap(), []);
}
