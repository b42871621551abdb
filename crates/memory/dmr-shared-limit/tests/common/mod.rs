//! Processes of the tests, and where their accounts are.

#![cfg(target_os = "linux")]
#![allow(dead_code, unsafe_code, reason = "each test file uses a part; signals and `flock`")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dmr_shared_limit::{Largest, SharedLimit, SharedLimitConfig};
use tempfile::TempDir;

pub(crate) const UUID: [u8; 16] = *b"a GPU of a test.";
pub(crate) const GIB: u64 = 1 << 30;

/// Returns a directory for accounts that no other test uses.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

pub(crate) fn config(directory: &Path, limit: u64) -> SharedLimitConfig {
    SharedLimitConfig::new(UUID, limit).with_directory(directory)
}

pub(crate) fn join(directory: &Path, limit: u64) -> SharedLimit {
    SharedLimit::join(&config(directory, limit)).expect("an account")
}

/// Returns the one account file of a directory.
pub(crate) fn file_of(directory: &Path) -> PathBuf {
    let is_account = |path: &PathBuf| path.to_string_lossy().contains("dmr-limit.");
    let entries = std::fs::read_dir(directory).expect("the directory");
    let mut paths = entries.map(|entry| entry.expect("an entry").path()).filter(is_account);
    paths.next().expect("an account")
}

/// Locks the account of a directory until the file is dropped, as a stopped process does.
pub(crate) fn locked(directory: &Path) -> File {
    let file = File::open(file_of(directory)).expect("the account");
    // SAFETY: a descriptor of our own.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    file
}

pub(crate) const fn tagged(tag: &str, bytes: u64) -> Largest<'_> {
    Largest { tag, bytes }
}

/// A process that runs an ignored test of the same file; killed when dropped.
pub(crate) struct Worker(pub(crate) Child);

impl Worker {
    /// Starts a process that runs the tests that these arguments choose, with the account's
    /// directory in the library's own variable.
    pub(crate) fn start(tests: &[&str], directory: &Path, variables: &[(&str, &str)]) -> Self {
        let program = std::env::current_exe().expect("the test program");
        let mut command = Command::new(program);
        command.args(tests).args(["--nocapture", "--test-threads=1", "-q"]);
        command.env(SharedLimitConfig::VARIABLE, directory).envs(variables.iter().copied());
        Self(command.stdout(Stdio::piped()).spawn().expect("a process"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until the process prints a line that ends with `text`.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let output = self.0.stdout.as_mut().expect("a pipe");
        let mut lines = BufReader::with_capacity(1, output).lines();
        while !lines.next().expect("a line more").expect("text").ends_with(text) {}
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child that was not waited for, so the pid is its own.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
    }

    /// Stops the process, and waits until it is.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: waits for our own child, and leaves it as it is.
        let pid = unsafe { libc::waitpid(self.pid() as i32, &mut status, libc::WUNTRACED) };
        assert_eq!(pid, self.pid() as i32);
        assert!(libc::WIFSTOPPED(status), "ended with {status}");
    }

    /// Stops the process while it has the lock of an account. It takes the lock again and again.
    pub(crate) fn stop_with_lock(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            assert!(Instant::now() < until, "is never found with the lock");
            self.stop();
            if self.has_lock() {
                return;
            }
            self.signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Returns whether the process has a file locked.
    pub(crate) fn has_lock(&self) -> bool {
        let locks = std::fs::read_to_string("/proc/locks").expect("/proc/locks");
        let pid = self.pid().to_string();
        locks.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.get(1) == Some(&"FLOCK") && fields.get(4) == Some(&pid.as_str())
        })
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("a child");
        self.0.wait().expect("a child");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns whether the process that started this one still runs; a worker ends when it does not.
pub(crate) fn has_parent(parent: u32) -> bool {
    std::os::unix::process::parent_id() == parent
}

/// Says in a worker that something has happened.
pub(crate) fn report(text: &str) {
    use std::io::Write;
    let mut output = std::io::stdout().lock();
    writeln!(output, "\n{text}").and_then(|()| output.flush()).expect("a pipe");
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
