//! Eight processes allocate at random up to the limit while at least 1,000 of them are killed.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "locks the account like a member, without the code of one")]
#![allow(clippy::print_stdout, reason = "the figures of a run, for `--nocapture`")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{UUID, Worker, config, directory, eventually, file_of, has_parent, join};
use dmr_shared_limit::{ChargeError, Largest, SharedLimit, SharedLimitConfig};

const LIMIT: u64 = 1000;
const WORKERS: usize = 8;
/// The least number of processes that are killed.
const KILLS: usize = 1000;
/// The time after which a run that has killed as many is not continued.
const LONG: Duration = Duration::from_secs(60);

/// Where a worker writes how much it has: never more than is charged for it.
const HAS: &str = "DMR_TEST_HAS";

/// The arguments that choose the test that workers run.
const ALLOCATES: [&str; 3] = ["--exact", "killed::allocates_at_random", "--ignored"];

/// A worker and the file with what it has.
struct Allocator {
    worker: Worker,
    has: File,
}

impl Allocator {
    fn start(directory: &Path, number: usize) -> Self {
        let path = directory.join(format!("has-{number}"));
        let has = File::create_new(&path).unwrap();
        has.write_all_at(&0_u64.to_le_bytes(), 0).unwrap();
        let variables = [(HAS, path.to_str().unwrap())];
        Self { worker: Worker::start(&ALLOCATES, directory, &variables), has }
    }

    /// Returns what the worker has; 0 once it has ended.
    fn has(&self) -> u64 {
        let bytes = read_u64(&self.has, 0);
        // After it was read: a worker that lives now lived then.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.worker.pid())).unwrap();
        let state = stat[stat.rfind(')').unwrap() + 2..].chars().next();
        if state == Some('Z') { 0 } else { bytes }
    }
}

fn read_u64(file: &File, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
#[ignore = "run by the other test of this file"]
fn allocates_at_random() {
    let parent = std::os::unix::process::parent_id();
    let path = PathBuf::from(std::env::var_os(HAS).unwrap());
    let file = File::options().write(true).open(path).unwrap();
    let set = |bytes: u64| file.write_all_at(&bytes.to_le_bytes(), 0).unwrap();
    let limit = SharedLimit::join(&SharedLimitConfig::new(UUID, LIMIT)).unwrap();
    let mut random = fastrand::Rng::with_seed(u64::from(std::process::id()));
    let mut blocks = Vec::new();
    let mut has = 0;
    while has_parent(parent) {
        let bytes = random.u64(1..=LIMIT / 4);
        match limit.charge(bytes, Largest { tag: "blocks", bytes: has + bytes }) {
            Ok(()) => {
                has += bytes;
                set(has);
                blocks.push(bytes);
            }
            Err(ChargeError::OverLimit(refusal)) => assert!(refusal.used <= LIMIT, "{refusal}"),
            Err(error) => panic!("{error}"),
        }
        if blocks.is_empty() || random.u8(..3) > 0 {
            continue;
        }
        let bytes: u64 = blocks.swap_remove(random.usize(..blocks.len()));
        has -= bytes;
        set(has);
        limit.release(bytes, Largest { tag: "blocks", bytes: has });
    }
}

/// Locks the account, and returns the sum of its records and the sum of what the workers have.
fn look(account: &File, allocators: &Mutex<Vec<Allocator>>) -> (u64, u64) {
    const HEADER: u64 = 256;
    const RECORD: u64 = 128;
    const BYTES_OF_RECORD: u64 = 24;
    let allocators = allocators.lock().unwrap();
    // SAFETY: a descriptor of our own.
    assert_eq!(unsafe { libc::flock(account.as_raw_fd(), libc::LOCK_EX) }, 0);
    let records = (account.metadata().unwrap().len() - HEADER) / RECORD;
    let recorded = (0..records).map(|i| read_u64(account, HEADER + i * RECORD + BYTES_OF_RECORD));
    let recorded = recorded.sum();
    let had = allocators.iter().map(Allocator::has).sum();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::flock(account.as_raw_fd(), libc::LOCK_UN) }, 0);
    (recorded, had)
}

#[test]
fn processes_that_are_killed_at_random_never_exceed_the_limit_and_lose_nothing() {
    let directory = directory();
    // Keeps the limit while workers come and go.
    let keeper = join(directory.path(), LIMIT);
    let account = File::open(file_of(directory.path())).unwrap();
    let mut started = 0;
    let mut start = || {
        started += 1;
        Allocator::start(directory.path(), started)
    };
    let allocators = Mutex::new((0..WORKERS).map(|_| start()).collect::<Vec<_>>());
    let is_over = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    let most_had = AtomicU64::new(0);
    let mut random = fastrand::Rng::with_seed(7);
    let mut kills = 0;
    let mut with_lock = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let (recorded, had) = look(&account, &allocators);
                if recorded > LIMIT || had > recorded {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("{recorded} recorded, {had} had by the workers, of {LIMIT}");
                }
                most_had.fetch_max(had, Ordering::Relaxed);
                looks.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(300));
            }
        });
        let until = Instant::now() + LONG;
        while !is_over.load(Ordering::Relaxed) {
            // On a loaded machine few workers have joined when they are killed.
            let is_enough = with_lock > 5
                && looks.load(Ordering::Relaxed) > 100
                && most_had.load(Ordering::Relaxed) > LIMIT * 3 / 4;
            if kills >= KILLS && (is_enough || Instant::now() > until) {
                break;
            }
            thread::sleep(Duration::from_micros(random.u64(..4000)));
            let victim = random.usize(..WORKERS);
            let pid = allocators.lock().unwrap()[victim].worker.pid() as i32;
            // Every other one is stopped first, to see whether it has the lock.
            if kills % 2 == 0 {
                let allocators = allocators.lock().unwrap();
                allocators[victim].worker.stop();
                with_lock += u32::from(allocators[victim].worker.has_lock());
            }
            // SAFETY: a child that was not waited for, so the pid is its own.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
            let mut allocators = allocators.lock().unwrap();
            allocators[victim].worker.0.wait().unwrap();
            allocators[victim] = start();
            kills += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for allocator in allocators.lock().unwrap().iter_mut() {
        allocator.worker.kill();
    }
    keeper.charge(LIMIT, Largest::default()).unwrap();
    let usage = keeper.usage().unwrap();
    assert_eq!((usage.used(), usage.processes.len()), (LIMIT, 1));
    keeper.release(LIMIT, Largest::default());
    drop(keeper);
    eventually("another limit", || SharedLimit::join(&config(directory.path(), 1)).is_ok());
    let looks = looks.into_inner();
    let most_had = most_had.into_inner();
    println!(
        "{kills} killed, {with_lock} of {} with the lock; {looks} looks, at most {most_had} of {LIMIT}",
        kills / 2
    );
    assert!(
        most_had > LIMIT * 3 / 4 && looks > 100,
        "{most_had} had, {looks} looks: not at the limit"
    );
    assert!(with_lock > 5, "{with_lock} killed with the lock");
}
