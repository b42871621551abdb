//! Runs a process with a time limit, after which it is killed with its children.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited(ExitStatus),
    /// Killed after the time limit.
    TimedOut,
}

const POLL: Duration = Duration::from_millis(20);

/// Runs `command` with both outputs in the file `output`, for at most `limit`.
pub(super) fn run(command: &mut Command, output: &Path, limit: Duration) -> Result<End, Failure> {
    let program = command.get_program().display().to_string();
    let ended = start(command, output).and_then(|mut child| {
        let ended = wait(&mut child, limit);
        if !matches!(ended, Ok(End::Exited(_))) {
            kill(&mut child);
        }
        ended
    });
    ended.map_err(|error| Failure::Setup(format!("cannot run {program}: {error}")))
}

fn start(command: &mut Command, output: &Path) -> io::Result<Child> {
    let file = File::create(output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    command.spawn()
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<End> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Exited(status));
        }
        if started.elapsed() >= limit {
            return Ok(End::TimedOut);
        }
        std::thread::sleep(POLL);
    }
}

/// Kills the process with its group, so that no child is left.
fn kill(child: &mut Child) {
    let group = format!("-{}", child.id());
    // An error means that the group has ended.
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.kill();
    let _ = child.wait();
}
