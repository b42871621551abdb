//! D6: when the process ends normally, the memory that runtimes keep is returned to the driver, and
//! their logs are whole, although a `static` is never dropped.

#![cfg(all(feature = "logging", feature = "pool"))]
#![allow(unsafe_code, reason = "registers an exit handler, and forks")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dmr::dmr_adaptors::logging::{AllocationRecord, CsvSink, LoggingSink, SinkError};
use dmr::dmr_core::{Generation, MemoryObserver};
use dmr::prelude::*;
use dmr_sim::Universe;

const MIB: usize = 1 << 20;
/// The arguments of the child process: what to do, and the folder for what it leaves behind.
const CHILD: &str = "DMR_EXITS";
const ENDS: [(&str, i32); 3] = [("returns", 0), ("exits", 3), ("panics", 101)];

/// The remains of a child: the bytes that the driver still had allocated when only the handlers
/// registered before the runtime were left to run, and the rows of its log.
struct Left {
    bytes: u64,
    rows: usize,
    took: Duration,
}

/// Runs a child that does `what` and ends in this way.
fn run(what: &str, (end, code): (&str, i32)) -> Left {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "sim_d6_at_exit::child"])
        .env(CHILD, format!("{what} {end} {}", folder.path().display()))
        .env_remove("DMR_BACKEND")
        .output()
        .unwrap();
    let took = start.elapsed();
    assert_eq!(output.status.code(), Some(code), "{what} {end}: {output:?}");
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let bytes = read("left").parse().expect("the driver was asked");
    let rows = read("log.csv").lines().count().saturating_sub(1);
    Left { bytes, rows, took }
}

#[test]
fn the_pool_of_the_process_gives_its_memory_back_however_the_process_ends() {
    for end in ENDS {
        assert_eq!(run("frees", end).bytes, 0, "{end:?}");
    }
}

#[test]
fn memory_whose_last_work_is_still_under_way_is_freed_too() {
    assert_eq!(run("frees-early", ENDS[0]).bytes, 0);
}

/// A driver's handlers are registered when it is initialised: after the log, before the runtime.
#[test]
fn a_log_that_was_made_first_does_not_delay_the_free_of_memory() {
    assert_eq!(run("logs-first", ENDS[0]).bytes, 0);
}

/// It may be in use by whatever still runs.
#[test]
fn what_is_not_freed_is_left_alone() {
    assert_eq!(run("holds", ENDS[0]).bytes, 32 * MIB as u64);
}

#[test]
fn a_runtime_in_a_static_of_the_program_frees_its_memory_and_has_a_whole_log() {
    for end in ENDS {
        let left = run("logs", end);
        assert_eq!((left.bytes, left.rows), (0, 200), "{end:?}");
    }
}

#[test]
fn threads_that_allocate_while_the_process_ends_neither_hang_nor_break_it() {
    for round in 0..50 {
        let left = run("busy", ENDS[round % 2]);
        assert!(left.took < Duration::from_secs(20), "{:?}", left.took);
        assert!(left.rows >= 600, "{} rows", left.rows);
    }
}

/// The observer is called with locks of the pool held, which returning its memory needs.
#[test]
fn a_thread_that_exits_inside_a_callback_of_the_runtime_ends_the_process() {
    for callback in ["exits-in-sink", "exits-in-observer"] {
        let left = run(callback, ENDS[1]);
        assert!(left.took < Duration::from_secs(20), "{callback}: {:?}", left.took);
    }
}

#[test]
fn a_forked_child_that_exits_gives_nothing_back() {
    let left = run("forks", ENDS[1]);
    assert_eq!((left.bytes, left.rows), (0, 200));
}

#[test]
fn without_a_device_the_process_ends_as_ever() {
    for what in ["loses", "ends-universe", "fails"] {
        assert!(run(what, ENDS[0]).took < Duration::from_secs(20), "{what}");
    }
}

static LEFT: OnceLock<(Device, PathBuf)> = OnceLock::new();

/// Registered before the runtime is built, so it runs when the runtime's handlers have.
extern "C" fn ask_the_driver() {
    let Some((device, folder)) = LEFT.get() else { return };
    let (free, total) = device.memory_info().unwrap_or_default();
    let _ = fs::write(folder.join("left"), (total - free).to_string());
}

#[test]
#[ignore = "run by the other tests of this file, in a process of its own"]
fn child() {
    let told = std::env::var(CHILD).unwrap();
    let [what, end, folder] = told.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let universe: &Universe = Box::leak(Box::new(Universe::new().unwrap()));
    LEFT.get_or_init(|| (Device::open(universe.ordinal(0)).unwrap(), PathBuf::from(folder)));
    if what == "logs-first" {
        std::mem::forget(CsvSink::create(Path::new(folder).join("log.csv")).unwrap());
    }
    // SAFETY: the handler lets no panic out: what it calls does not panic.
    assert_eq!(unsafe { libc::atexit(ask_the_driver) }, 0);
    act(what, universe, Path::new(folder));
    match end {
        "returns" => {}
        "exits" => std::process::exit(3),
        _ => panic!("as planned"),
    }
}

fn act(what: &str, universe: &Universe, folder: &Path) {
    static OWN: OnceLock<DeviceRuntime> = OnceLock::new();
    let ordinal = universe.ordinal(0);
    let logged = || {
        OWN.get_or_init(|| {
            DeviceRuntime::builder(ordinal).log_csv(folder.join("log.csv")).build().unwrap()
        })
    };
    match what {
        "frees" | "logs-first" => drop(churn(DeviceRuntime::try_get(ordinal).unwrap(), 100)),
        "frees-early" => {
            let gpu = DeviceRuntime::try_get(ordinal).unwrap();
            let a = gpu.streams().acquire().unwrap();
            let b = gpu.streams().acquire().unwrap();
            let ops = PatternOps::new(Arc::clone(gpu.streams())).unwrap();
            for stream in [&a, &b] {
                let block = allocate(gpu, stream.id());
                ops.delay(stream.id(), 20_000_000).unwrap();
                ops.fill_pattern(&block, 0..MIB, 1, stream.id()).unwrap();
                gpu.resource().deallocate(block).unwrap();
            }
        }
        "holds" => {
            let gpu = DeviceRuntime::try_get(ordinal).unwrap();
            let stream = churn(gpu, 100);
            let _leaked = allocate(gpu, stream.id());
        }
        "logs" => drop(churn(logged(), 100)),
        "busy" => {
            let gpu = logged();
            let threads = [(); 3].map(|()| {
                std::thread::spawn(move || {
                    let stream = churn(gpu, 100);
                    std::thread::spawn(move || {
                        loop {
                            let block = allocate(gpu, stream.id());
                            gpu.resource().deallocate(block).unwrap();
                        }
                    });
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        "exits-in-sink" | "exits-in-observer" => {
            let builder = DeviceRuntime::builder(ordinal);
            let builder = match what {
                "exits-in-sink" => builder.log_to(Arc::new(Exits)),
                _ => builder.observer(Arc::new(Exits)),
            };
            drop(churn(OWN.get_or_init(|| builder.build().unwrap()), 1));
        }
        "forks" => {
            drop(churn(logged(), 100));
            // SAFETY: the child does nothing but exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                std::process::exit(0);
            }
            let mut status = 0;
            // SAFETY: waits for the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        "loses" => {
            drop(churn(DeviceRuntime::try_get(ordinal).unwrap(), 100));
            universe.lose_device(0, 700);
        }
        "ends-universe" => {
            let another = Universe::new().unwrap();
            drop(churn(DeviceRuntime::try_get(another.ordinal(0)).unwrap(), 100));
        }
        "fails" => {
            // As a driver returns that has been shut down already.
            const DEINITIALIZED: i32 = 4;
            drop(churn(DeviceRuntime::try_get(ordinal).unwrap(), 100));
            (1..100).for_each(|nth| universe.fail_call_number(nth, DEINITIALIZED));
        }
        other => panic!("{other}"),
    }
}

fn allocate(gpu: &DeviceRuntime, stream: StreamId) -> DeviceBlock {
    gpu.resource().allocate(MIB, stream, AllocTag::new("churn")).unwrap()
}

/// A sink and an observer that end the process.
#[derive(Debug)]
struct Exits;

impl LoggingSink for Exits {
    fn record(&self, _: &AllocationRecord) -> Result<(), SinkError> {
        std::process::exit(3)
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

impl MemoryObserver for Exits {
    fn heap_created(&self, _: u64, _: usize) {}

    fn heap_destroyed(&self, _: u64) {}

    fn region_allocated(&self, _: u64, _: usize, _: AllocTag, _: Generation) {}

    fn region_freed(&self, _: u64, _: Generation) {
        std::process::exit(3)
    }
}

/// Allocates and frees on a stream of its own.
fn churn(gpu: &DeviceRuntime, times: usize) -> StreamLease {
    let stream = gpu.streams().acquire().unwrap();
    for _ in 0..times {
        let block = allocate(gpu, stream.id());
        gpu.resource().deallocate(block).unwrap();
    }
    stream
}
