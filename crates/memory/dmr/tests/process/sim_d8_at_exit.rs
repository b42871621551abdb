//! D8: at the end of the process no thread calls the driver for a future, and a future still does
//! not hang.

#![cfg(all(unix, feature = "pool"))]
#![allow(unsafe_code, reason = "registers an exit handler")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dmr::dmr_streams::Completed;
use dmr::prelude::*;
use dmr_sim::Universe;
use dmr_testkit::{CountedWakes, HeldStream, block_on};

/// The argument of the child process: how it ends, and the file for what it finds.
const CHILD: &str = "DMR_ENDS_WITH_FUTURES";

struct AtTheEnd {
    file: PathBuf,
    universe: Universe,
    held: HeldStream,
    completed: Completed,
}

static AT_THE_END: Mutex<Option<AtTheEnd>> = Mutex::new(None);

#[test]
fn a_process_ends_with_futures_that_wait() {
    for (end, code) in [("returns", 0), ("exits", 3)] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("found");
        let start = Instant::now();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "sim_d8_at_exit::child"])
            .env(CHILD, format!("{end} {}", file.display()))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{end}: {output:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{end}: {:?}", start.elapsed());
        assert_eq!(fs::read_to_string(file).unwrap(), "0 calls, then Ok(())", "{end}");
    }
}

/// Registered before the first future, so it runs after the library's handlers, as the driver's
/// would.
extern "C" fn look() {
    let Some(AtTheEnd { file, universe, held, completed }) = AT_THE_END.lock().unwrap().take()
    else {
        return;
    };
    let before = universe.calls().total();
    std::thread::sleep(Duration::from_millis(20));
    let calls = universe.calls().total() - before;
    held.release();
    let outcome = block_on(completed);
    fs::write(file, format!("{calls} calls, then {outcome:?}")).unwrap();
    std::mem::forget(held);
}

#[test]
#[ignore = "run by the other test of this file, in a process of its own"]
fn child() {
    let told = std::env::var(CHILD).unwrap();
    let (end, file) = told.split_once(' ').unwrap();
    let universe = Universe::new().unwrap();
    let gpu = DeviceRuntime::builder(universe.ordinal(0)).build().unwrap();
    // SAFETY: the handler lets no panic out that this test survives.
    assert_eq!(unsafe { libc::atexit(look) }, 0);
    let stream = gpu.streams().acquire().unwrap();
    let held = HeldStream::hold(gpu.streams(), &stream);
    let mut completed = gpu.streams().completed(&stream);
    let wakes = std::sync::Arc::new(CountedWakes::default());
    assert!(wakes.poll(&mut completed).is_pending());
    let file = PathBuf::from(file);
    *AT_THE_END.lock().unwrap() = Some(AtTheEnd { file, universe, held, completed });
    std::mem::forget((stream, gpu));
    if end == "exits" {
        std::process::exit(3);
    }
}
