//! Processes that execute another program: their bytes are charged until their files are closed.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "sets how long a socket takes to close, and locks a file")]

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{UUID, Worker, directory, eventually, join, report};
use dmr_shared_limit::{Largest, SharedLimit, SharedLimitConfig};

const LIMIT: u64 = 100;

/// Where a worker finds what it needs.
const DIRECTORY: &str = "DMR_TEST_DIRECTORY";
const PORT: &str = "DMR_TEST_PORT";
const STAGE: &str = "DMR_TEST_STAGE";

fn start(test: &str, directory: &Path, variables: &[(&str, &str)]) -> Worker {
    Worker::start(&["--exact", test, "--ignored"], directory, variables)
}

fn charge_all() -> SharedLimit {
    let limit = SharedLimit::join(&SharedLimitConfig::new(UUID, LIMIT)).unwrap();
    limit.charge(LIMIT, Largest::default()).unwrap();
    limit
}

fn lock(file: &File, operation: i32) -> bool {
    // SAFETY: a descriptor of our own.
    unsafe { libc::flock(file.as_raw_fd(), operation) == 0 }
}

#[test]
fn the_bytes_of_a_process_that_executes_another_program_are_charged_until_its_files_are_closed() {
    let directory = directory();
    let limit = join(directory.path(), LIMIT);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let variables = [(PORT, &*port), (DIRECTORY, directory.path().to_str().unwrap())];
    let mut worker =
        start("executes::executes_with_a_file_that_closes_slowly", directory.path(), &variables);
    // Reads nothing, so that the worker's socket takes its time to close.
    let _peer = listener.accept().unwrap();
    worker.wait_for("charged");
    let driver = File::open(directory.path().join("driver")).unwrap();
    eventually("released", || limit.charge(LIMIT, Largest::default()).is_ok());
    assert!(lock(&driver, libc::LOCK_EX | libc::LOCK_NB), "released while the files are open");
}

#[test]
#[ignore = "run by the other tests of this file"]
fn executes_with_a_file_that_closes_slowly() {
    let _limit = charge_all();
    // Stands for a driver, which frees the memory of a process when its file is closed.
    let path = PathBuf::from(std::env::var_os(DIRECTORY).unwrap()).join("driver");
    let driver = File::create(path).unwrap();
    assert!(lock(&driver, libc::LOCK_EX));
    let address = format!("127.0.0.1:{}", std::env::var(PORT).unwrap());
    let mut slow = TcpStream::connect(address).unwrap();
    slow.set_nonblocking(true).unwrap();
    while slow.write(&[0; 1 << 16]).is_ok() {}
    slow.set_nonblocking(false).unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: 2 };
    let option = (&raw const linger).cast();
    let bytes = size_of::<libc::linger>() as u32;
    // SAFETY: a socket of our own, and an option of that size.
    let set = unsafe {
        libc::setsockopt(slow.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, bytes)
    };
    assert_eq!(set, 0);
    report("charged");
    panic!("{}", Command::new("sleep").arg("1").exec());
}

#[test]
fn a_program_that_joins_releases_what_its_process_charged_before_it_executed_the_program() {
    let directory = directory();
    let mut worker = start("executes::executes_itself", directory.path(), &[(STAGE, "1")]);
    worker.wait_for("charged again");
}

#[test]
#[ignore = "run by the other tests of this file"]
fn executes_itself() {
    let stage = std::env::var(STAGE).unwrap();
    let execute = |stage: &str| {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(std::env::args_os().skip(1)).env(STAGE, stage);
        panic!("{}", again.exec());
    };
    if stage == "1" {
        // SAFETY: from the next program on, all addresses are those of the program before, if the
        // system permits it.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        execute("2");
    }
    let limit = charge_all();
    if stage == "2" {
        execute("3");
    }
    report("charged again");
    drop(limit);
}
