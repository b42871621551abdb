//! Processes, as `/proc` shows them: the calling one, and whether another one is alive.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::error::Problem;
use crate::layout::{Namespaces, ProcessId, Text};

/// The fields of `/proc/PID/stat` that identify a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    threads: u64,
    start: u64,
}

/// Returns the calling process.
pub(crate) fn current() -> Result<ProcessId, Problem> {
    let missing = |what: &str| Problem::NoProcesses { what: what.to_owned() };
    let pid = std::process::id();
    let shown = fs::read_link("/proc/self").map_err(|_| missing("/proc/self cannot be read"))?;
    if shown.as_os_str() != pid.to_string().as_str() {
        return Err(missing("/proc shows another pid namespace"));
    }
    let stat = stat(pid).ok_or_else(|| missing("/proc/self/stat cannot be read"))?;
    Ok(ProcessId { pid, start: stat.start, program: program() })
}

/// Returns a hash of `AT_RANDOM`, which changes at each exec; 0 if it cannot be read.
fn program() -> u64 {
    // The same in a forked child, and in every copy of this library in a process.
    static PROGRAM: OnceLock<u64> = OnceLock::new();
    *PROGRAM.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        random_bytes().map_or(0, |bytes| {
            bytes.hash(&mut hasher);
            hasher.finish()
        })
    })
}

/// Reads the random bytes of the calling program, whose address is in its auxiliary vector:
/// getauxval(3).
fn random_bytes() -> Option<[u8; 16]> {
    const AT_RANDOM: usize = 25;
    const WORD: usize = size_of::<usize>();
    let vector = fs::read("/proc/self/auxv").ok()?;
    let (words, _) = vector.as_chunks::<WORD>();
    let (pairs, _) = words.as_chunks::<2>();
    let of_random = |[key, _]: &&[[u8; WORD]; 2]| usize::from_ne_bytes(*key) == AT_RANDOM;
    let [_, address] = pairs.iter().find(of_random)?;
    let mut bytes = [0; 16];
    let memory = File::open("/proc/self/mem").ok()?;
    memory.read_exact_at(&mut bytes, usize::from_ne_bytes(*address) as u64).ok()?;
    Some(bytes)
}

/// Returns the name of the calling process.
pub(crate) fn name() -> Text<16> {
    let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    Text::new(name.trim_end())
}

/// Returns the namespaces of the calling process.
pub(crate) fn namespaces() -> Result<Namespaces, Problem> {
    let inode =
        |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map(|namespace| namespace.ino());
    let pid = inode("pid").map_err(|error| Problem::NoProcesses {
        what: format!("/proc/self/ns/pid cannot be read ({error})"),
    })?;
    // Older kernels have no time namespaces.
    Ok(Namespaces { pid, time: inode("time").unwrap_or(0) })
}

/// Returns whether a process may still have memory: `true` unless the system says that it has
/// ended, or that its pid has another process; or unless it is the calling process, before it
/// executed this program.
///
/// The system shows the new program of another process before it has closed the files of the old
/// one. Those of the calling process are closed: its code runs.
pub(crate) fn is_alive(process: &ProcessId) -> bool {
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return false };
    // `/proc` may hide a process that exists.
    let exists = || test_kill_process(pid) != Err(Errno::SRCH);
    if process.pid == std::process::id() && has_executed(process.program, program()) {
        return false;
    }
    match exists().then(|| stat(process.pid)) {
        None => false,
        Some(Some(stat)) => is_same(process, stat),
        Some(None) => exists(),
    }
}

fn is_same(process: &ProcessId, stat: Stat) -> bool {
    // The main thread of a process can end before the others: a zombie with threads is alive.
    let has_ended = matches!(stat.state, b'Z' | b'X') && stat.threads <= 1;
    process.start == stat.start && !has_ended
}

/// Returns whether a process has executed another program since.
fn has_executed(before: u64, now: u64) -> bool {
    before != 0 && now != 0 && before != now
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the text of `/proc/PID/stat`. Its second field is the name in parentheses, which may have
/// spaces, parentheses, and bytes that are not UTF-8.
fn parse(text: &[u8]) -> Option<Stat> {
    let end_of_name = text.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> =
        std::str::from_utf8(&text[end_of_name + 1..]).ok()?.split_whitespace().collect();
    // proc(5) numbers the fields from 1, and the one after the name is the third.
    let field = |number: usize| fields.get(number - 3).copied();
    let number = |at: usize| field(at)?.parse().ok();
    Some(Stat { state: *field(3)?.as_bytes().first()?, threads: number(20)?, start: number(22)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] =
        b"7 (a) b\xff) Z 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 2415 31 4 18 940 941 1407 0";

    #[test]
    fn a_name_may_have_spaces_and_parentheses() {
        assert_eq!(parse(LINE), Some(Stat { state: b'Z', threads: 3, start: 2415 }));
        assert_eq!(parse(b"7 (a) R 1"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_pid_that_was_reused_is_another_process() {
        let own = current().unwrap();
        assert!(is_alive(&own));
        assert!(!is_alive(&ProcessId { start: own.start + 1, ..own }));
    }

    #[test]
    fn a_program_that_the_calling_process_has_executed_before_has_ended_and_that_of_another_has_not()
     {
        let own = current().unwrap();
        assert!(own.program != 0 && !is_alive(&ProcessId { program: own.program ^ 1, ..own }));
        assert!(is_alive(&ProcessId { program: 0, ..own }));
        let parent = std::os::unix::process::parent_id();
        let start = stat(parent).unwrap().start;
        assert!(is_alive(&ProcessId { pid: parent, start, program: own.program ^ 1 }));
    }

    #[test]
    fn a_zombie_with_threads_is_alive_and_one_without_has_ended() {
        let process = ProcessId { pid: 7, start: 2415, program: 1 };
        let stat = parse(LINE).unwrap();
        assert!(is_same(&process, stat));
        assert!(!is_same(&process, Stat { threads: 1, ..stat }));
        assert!(!is_same(&process, Stat { start: 1, ..stat }));
    }

    #[test]
    fn a_child_that_was_waited_for_has_ended_and_so_has_a_zombie() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stat = stat(child.id()).unwrap();
        let process = ProcessId { pid: child.id(), start: stat.start, program: 0 };
        assert!(is_alive(&process));
        child.kill().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_alive(&process) {
            assert!(std::time::Instant::now() < until, "a zombie counts as alive");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_alive(&process));
    }
}
