//! Processes with a runtime each share the limit of one GPU, while some of them are killed.
//!
//! On a GPU the driver's own figure is checked: memory in use stays within the limit and what the
//! processes' contexts take. On the simulated driver each process has a GPU of its own, and
//! compares its figure with what it has charged.
#![cfg(all(feature = "shared", feature = "pool", target_os = "linux"))]
#![allow(clippy::print_stdout, reason = "a process says that it is ready; the figures of a run")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dmr::dmr_shared_limit::{Problem, SharedLimitConfig, accounts};
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 512 * MIB;
const PROCESSES: usize = 3;
const KILLS: usize = 6;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A process that runs the ignored test `allocates_until_it_is_killed`.
struct Process(Child);

impl Process {
    /// Starts a process, and waits until it has a runtime.
    fn start(directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "shared_budget::allocates_until_it_is_killed",
            "--ignored",
            "--nocapture",
            "-q",
        ]);
        command.env(SharedLimitConfig::VARIABLE, directory);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits until the process has a runtime.
    fn wait_until_ready(&mut self) {
        let lines = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")), "no runtime");
    }

    /// Lets the process allocate.
    fn go(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Process {
    /// Kills the process, which must not have ended by itself.
    fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "a process has failed: see its output");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the bytes that the driver reports as used.
fn used(device: &Device) -> u64 {
    let (free, total) = device.memory_info().unwrap();
    total - free
}

#[test]
#[ignore = "run by the other test of this file"]
fn allocates_until_it_is_killed() {
    let rig = Rig::new();
    let is_simulated = rig.simulator().is_some();
    let gpu = DeviceRuntime::builder(rig.ordinal())
        .backend(Backend::Pool)
        .shared_budget(LIMIT)
        .build()
        .unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let before = used(rig.device());
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let mut random = fastrand::Rng::with_seed(u64::from(std::process::id()));
    let mut buffers = Vec::new();
    let mut refusals = 0_u64;
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        let bytes = random.u64(1..LIMIT / 8) as usize;
        match DeviceBuffer::<u8>::uninit(&gpu, &stream, bytes) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => {
                refusals += 1;
                assert!(error.to_string().contains("held by process"), "{error}");
                buffers.clear();
                gpu.resource().reap_pending().unwrap();
            }
        }
        if random.u8(..3) == 0 && !buffers.is_empty() {
            drop(buffers.swap_remove(random.usize(..buffers.len())));
        }
        if random.u8(..8) == 0 {
            gpu.resource().trim_to(0).unwrap();
        }
        if is_simulated {
            let charged = gpu.budget().unwrap().reserved_bytes();
            assert!(
                used(rig.device()) - before <= charged,
                "{charged} charged, {refusals} refusals"
            );
        }
    }
}

#[test]
fn processes_on_one_gpu_stay_within_one_limit_while_some_are_killed() {
    let directory = directory();
    let rig = Rig::new();
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| Process::start(directory.path())).collect();
    processes.iter_mut().for_each(Process::wait_until_ready);
    // With the contexts of all processes, and no memory. A context that starts while another ends
    // may take a little more for a moment.
    let contexts = used(rig.device()) + 64 * MIB;
    processes.iter_mut().for_each(Process::go);
    let mut most_used = 0;
    let mut most_charged = 0;
    let mut looks = 0;
    // Looks for at least 300 ms, and on until more than `bytes` have been charged at once.
    let mut look_until_charged = |bytes: u64| {
        let start = Instant::now();
        let is_over = |charged| charged > bytes || start.elapsed() > Duration::from_secs(60);
        while start.elapsed() < Duration::from_millis(300) || !is_over(most_charged) {
            let now = used(rig.device());
            assert!(now <= contexts + LIMIT, "{now} used, {contexts} of it by contexts");
            for account in accounts(Some(directory.path())).unwrap() {
                let account = account.unwrap();
                assert!(account.used() <= LIMIT, "{account:?}");
                most_charged = most_charged.max(account.used());
            }
            most_used = most_used.max(now.saturating_sub(contexts));
            looks += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for kill in 0..KILLS {
        look_until_charged(0);
        processes.remove(kill % PROCESSES).kill();
        let mut process = Process::start(directory.path());
        process.wait_until_ready();
        process.go();
        processes.push(process);
    }
    look_until_charged(LIMIT / 2);
    processes.into_iter().for_each(Process::kill);
    println!(
        "{looks} looks: at most {most_charged} charged and {most_used} used beside contexts, of {LIMIT}"
    );
    assert!(most_charged > LIMIT / 2, "{most_charged} charged at most: the limit was not reached");
    for account in accounts(Some(directory.path())).unwrap() {
        assert_eq!(account.unwrap().processes, []);
    }
    rig.assert_clean();
}

#[test]
fn a_shared_budget_is_refused_with_another_limit_and_a_group_has_its_own() {
    let rig = Rig::new();
    // No other test and no other process names these groups.
    let group = format!("test-{}", std::process::id());
    let builder = || DeviceRuntime::builder(rig.ordinal());
    let one = builder().shared_budget_of(&group, LIMIT).build().unwrap();
    let two = builder().shared_budget_of(&group, LIMIT).build().unwrap();
    let error = builder().shared_budget_of(&group, LIMIT + 1).build().unwrap_err();
    let RuntimeError::SharedLimit(error) = error else { panic!("{error}") };
    assert!(matches!(error.problem, Problem::LimitDiffers { limit: LIMIT, .. }), "{error}");
    let error = builder().shared_budget_of("a b", LIMIT).build().unwrap_err();
    assert!(error.to_string().contains("is no group name"), "{error}");
    builder().shared_budget_of(format!("{group}-b"), LIMIT + 1).build().unwrap();
    // Runtimes of one process have one account.
    let stream = one.streams().acquire().unwrap();
    let block = one.resource().allocate(300 << 20, stream.id(), AllocTag::new("rows")).unwrap();
    let charged = one.budget().unwrap().reserved_bytes();
    assert!(charged >= 300 * MIB);
    assert_eq!(two.budget().unwrap().reserved_bytes(), charged);
    let other = two.streams().acquire().unwrap();
    let error = two.resource().allocate(300 << 20, other.id(), AllocTag::new("keys")).unwrap_err();
    let ResourceError::OutOfBudget { shared: Some(shared), .. } = &error else { panic!("{error}") };
    // The pool may have had some pages before the limit refused one.
    assert_eq!(shared.processes[0].pid, std::process::id());
    assert!(shared.processes[0].bytes >= charged, "{error}");
    // The pool takes memory under the tag that it is for.
    assert_eq!(&*shared.processes[0].tag, "rows");
    one.resource().deallocate(block).unwrap();
    drop((one, two, stream, other));
    rig.assert_clean();
}
