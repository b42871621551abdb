//! A program that boots runs on the simulated driver, and with a race it ends with a status of its own.
//!
//! The programs are tests of this file that are ignored: each runs in a process of its own.

use std::process::{Command, Output};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use dmr_sim_boot as _;

/// Runs one of the ignored tests, with variables.
fn run(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    for name in ["DEVICES", "CAPACITY", "SEED", "POLICY", "BACKTRACE", "LEAKS"] {
        command.env_remove(format!("DMR_SIM_{name}"));
    }
    command.env("DMR_DRIVER", "sim").envs(variables.iter().copied()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes on one stream, and reads on another; in order, or not.
#[allow(unsafe_code)]
fn write_and_read(in_order: bool) {
    let gpu = CudaContext::new(0).unwrap();
    // SAFETY: the streams are ordered here, or not, as the test wants.
    unsafe { gpu.disable_event_tracking() };
    let streams: [Arc<CudaStream>; 2] = [gpu.new_stream().unwrap(), gpu.new_stream().unwrap()];
    let bytes = streams[0].clone_htod(&[7_u32; 16]).unwrap();
    if in_order {
        streams[1].join(&streams[0]).unwrap();
    }
    assert_eq!(streams[1].clone_dtoh(&bytes).unwrap().len(), 16);
    streams[1].synchronize().unwrap();
    streams[0].synchronize().unwrap();
}

#[test]
#[ignore = "a program of these tests"]
fn a_program_in_order() {
    write_and_read(true);
}

#[test]
#[ignore = "a program of these tests"]
fn a_program_with_a_race() {
    write_and_read(false);
}

#[test]
#[ignore = "a program of these tests"]
fn a_program_that_leaks() {
    let stream = CudaContext::new(0).unwrap().default_stream();
    std::mem::forget(stream.alloc_zeros::<u8>(1).unwrap());
}

#[test]
#[ignore = "a program of these tests"]
fn a_program_that_forks_with_a_race() {
    write_and_read(false);
    // SAFETY: the child only exits.
    #[allow(unsafe_code)]
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: the child is this process's.
    #[allow(unsafe_code)]
    unsafe {
        libc::waitpid(child, &raw mut status, 0)
    };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

#[test]
fn a_program_in_order_ends_as_without_the_simulator() {
    let output = run("a_program_in_order", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(!text(&output).contains("dmr-sim"), "{}", text(&output));
}

#[test]
fn a_race_is_reported_at_the_exit_with_the_name_of_the_test() {
    let output = run("a_program_with_a_race", &[]);
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS), "{}", text(&output));
    assert!(text(&output).contains("read-after-write race"), "{}", text(&output));
    assert!(text(&output).contains(r#"thread "a_program_with_a_race""#), "{}", text(&output));
    // The output of the test harness is not lost.
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
fn a_leak_is_a_finding_only_if_it_is_asked_for() {
    assert_eq!(run("a_program_that_leaks", &[]).status.code(), Some(0));
    let output = run("a_program_that_leaks", &[("DMR_SIM_LEAKS", "1")]);
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS));
    assert!(text(&output).contains("memory was never freed"), "{}", text(&output));
}

#[test]
fn a_forked_child_reports_nothing() {
    let output = run("a_program_that_forks_with_a_race", &[]);
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS), "{}", text(&output));
    assert_eq!(text(&output).matches("dmr-sim:").count(), 1, "{}", text(&output));
}

#[test]
fn the_environment_configures_the_devices() {
    let output = run("a_program_in_order", &[("DMR_SIM_DEVICES", "many")]);
    assert!(text(&output).contains(r#"DMR_SIM_DEVICES is "many""#), "{}", text(&output));
    let output = run("a_program_with_a_race", &[("DMR_SIM_CAPACITY", "16")]);
    assert!(text(&output).contains("OUT_OF_MEMORY"), "{}", text(&output));
    for policy in ["eager", "lazy", "random"] {
        let output = run("a_program_with_a_race", &[("DMR_SIM_POLICY", policy)]);
        assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS), "{policy}");
    }
}
