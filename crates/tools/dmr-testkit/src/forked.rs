//! The end of a forked child.

#![allow(unsafe_code, reason = "waits for a process, and kills it")]

use std::time::{Duration, Instant};

/// Waits for a forked child of this process. Returns its exit code; `None` if a signal has ended
/// it, or if it has not ended within a minute: then it is killed.
pub fn exit_code(child: libc::pid_t) -> Option<i32> {
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if start.elapsed() > Duration::from_secs(60) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
