//! A program that boots runs on the simulated driver, and with a race it ends with a status of its
//! own.
//!
//! Each test runs itself once more in a process of its own, where it is the program.

use std::io::Write;
use std::process::{Command, Output};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, LaunchConfig};
use dmr_sim_boot as _;

/// The variable that makes a test the program.
const PROGRAM: &str = "DMR_SIM_BOOT_PROGRAM";

fn is_program() -> bool {
    std::env::var_os(PROGRAM).is_some()
}

/// Runs a test as the program, with variables.
fn run(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PROGRAM, "1");
    for name in
        ["DEVICES", "CAPACITY", "SEED", "POLICY", "BACKTRACE", "CHECKS", "INSTRUCTIONS", "REPORT"]
    {
        command.env_remove(format!("DMR_SIM_{name}"));
    }
    // Tests that run on the main thread have no thread of their name.
    command.env_remove("RUST_TEST_THREADS").env_remove("CUDA_VISIBLE_DEVICES");
    command.env("DMR_DRIVER", "sim").envs(variables.iter().copied()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes on one stream, and reads on another; in order, or not.
#[allow(unsafe_code)]
fn write_and_read(in_order: bool) {
    let gpu = CudaContext::new(0).unwrap();
    // SAFETY: the streams are ordered here, or that they are not is what is reported.
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

/// Forks a child that exits at once, and waits for it.
#[allow(unsafe_code)]
fn fork() {
    // SAFETY: the child only exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: the child is this process's.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

#[test]
fn a_program_in_order_ends_as_without_the_simulator() {
    if is_program() {
        return write_and_read(true);
    }
    let output = run("a_program_in_order_ends_as_without_the_simulator", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(!text(&output).contains("dmr-sim"), "{}", text(&output));
}

#[test]
fn a_race_is_reported_at_the_exit_with_the_name_of_the_test() {
    const NAME: &str = "a_race_is_reported_at_the_exit_with_the_name_of_the_test";
    if is_program() {
        return write_and_read(false);
    }
    let output = run(NAME, &[]);
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS), "{}", text(&output));
    assert!(text(&output).contains("read-after-write race"), "{}", text(&output));
    assert!(text(&output).contains(&format!("thread {NAME:?}")), "{}", text(&output));
    // The output of the test harness is not lost.
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
fn the_findings_are_written_to_the_file_that_a_variable_names() {
    const NAME: &str = "the_findings_are_written_to_the_file_that_a_variable_names";
    if is_program() {
        return write_and_read(std::env::var_os("DMR_TEST_IN_ORDER").is_some());
    }
    let path = std::env::temp_dir().join(format!("{NAME}-{}.csv", std::process::id()));
    let file = path.to_str().unwrap();
    let output = run(NAME, &[("DMR_SIM_REPORT", file)]);
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS), "{}", text(&output));
    let table = std::fs::read_to_string(&path).unwrap();
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[0].starts_with("finding,kind,race,message,"), "{table}");
    assert!(table.contains("\n2,read-after-write,yes,\"read-after-write race: "), "{table}");
    assert!(rows[1].contains(",first,") && rows[2].contains(",second,"), "{table}");
    // A run without findings replaces it.
    let output = run(NAME, &[("DMR_SIM_REPORT", file), ("DMR_TEST_IN_ORDER", "1")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    std::fs::remove_file(&path).unwrap();
    // A file that cannot be written is named, and the findings are on the standard error still.
    let output = run(NAME, &[("DMR_SIM_REPORT", "/nowhere/report.csv")]);
    assert!(text(&output).contains("DMR_SIM_REPORT: /nowhere/report.csv: "), "{}", text(&output));
    assert!(text(&output).contains("read-after-write race"), "{}", text(&output));
}

#[test]
fn a_leak_is_a_finding_only_if_it_is_asked_for() {
    if is_program() {
        let stream = CudaContext::new(0).unwrap().default_stream();
        return std::mem::forget(stream.alloc_zeros::<u8>(1).unwrap());
    }
    let run = |variables| run("a_leak_is_a_finding_only_if_it_is_asked_for", variables);
    assert_eq!(run(&[]).status.code(), Some(0));
    let output = run(&[("DMR_SIM_CHECKS", "leak")]);
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS));
    assert!(text(&output).contains("memory was never freed"), "{}", text(&output));
}

/// Loads a module, and launches a kernel of it.
#[allow(unsafe_code)]
fn launch(name: &str) {
    const PTX: &str =
        ".version 8.0\n.target sm_80\n.address_size 64\n.global .texref image; .global .u32 word;
        .visible .entry race() { .reg .b32 %r; mov.u32 %r, %tid.x; st.global.u32 [word], %r; ret; }
        .visible .entry textured() { .reg .b32 %r<9>; mov.u32 %r5, 0;
            tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [image, {%r5}]; ret; }
        .visible .entry endless() { again: bra again; }
        .global .align 8 .b8 bytes[16];
        .visible .entry misaligned() { st.global.u32 [bytes+2], 1; ret; }
        .visible .entry beyond() { .shared .u32 tile[1]; st.shared.u32 [tile+4], 1; ret; }
        .visible .entry unwritten() { .shared .u32 tile[1]; .reg .b32 %r; .reg .pred %p;
            ld.shared.u32 %r, [tile]; setp.eq.u32 %p, %r, 0; @%p bra end; end: ret; }";
    let gpu = CudaContext::new(0).unwrap();
    let stream = gpu.default_stream();
    let module = gpu.load_module(cudarc::nvrtc::Ptx::from_src(PTX)).unwrap();
    let kernel = module.load_function(name).unwrap();
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel has no arguments; what it does wrong is what is reported.
    let _ = unsafe { stream.launch_builder(&kernel).launch(config) };
    let _ = stream.synchronize();
}

#[test]
fn checks_are_switched_off_by_name() {
    if is_program() {
        return launch("race");
    }
    let run = |checks| run("checks_are_switched_off_by_name", &[("DMR_SIM_CHECKS", checks)]);
    let output = run("");
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS));
    assert!(text(&output).contains("kernel race: race: "), "{}", text(&output));
    for checks in ["no-global-races", "equal-writes,no-kernel-fault"] {
        assert_eq!(run(checks).status.code(), Some(0), "{checks}");
    }
    let output = run("no-races");
    assert!(text(&output).contains(r#"DMR_SIM_CHECKS is "no-races""#), "{}", text(&output));
    // It names those that exist, of both kinds.
    assert!(text(&output).contains("global-races, kernel-fault,"), "{}", text(&output));
}

#[test]
fn a_check_of_accesses_is_switched_off_by_name() {
    const CASES: [(&str, &str, &str); 3] = [
        ("misaligned", "no-misaligned", "misaligned 4-byte access to global memory"),
        ("beyond", "no-out-of-bounds", "4-byte access out of bounds to shared memory"),
        ("unwritten", "no-uninitialised", "read of uninitialised shared memory"),
    ];
    if is_program() {
        return launch(&std::env::var("DMR_TEST_KERNEL").unwrap());
    }
    for (kernel, off, text_of_fault) in CASES {
        for (_, checks, _) in CASES {
            let variables = [("DMR_SIM_CHECKS", checks), ("DMR_TEST_KERNEL", kernel)];
            let output = run("a_check_of_accesses_is_switched_off_by_name", &variables);
            let status = if checks == off { 0 } else { dmr_sim::EXIT_STATUS };
            assert_eq!(output.status.code(), Some(status), "{kernel}, {checks}: {}", text(&output));
            assert!(checks == off || text(&output).contains(text_of_fault), "{}", text(&output));
        }
    }
}

#[test]
fn a_limit_of_instructions_ends_a_kernel() {
    if is_program() {
        return launch("endless");
    }
    let variables = [("DMR_SIM_INSTRUCTIONS", "5000")];
    let output = run("a_limit_of_instructions_ends_a_kernel", &variables);
    assert!(text(&output).contains("limit of 5000 warp instructions"), "{}", text(&output));
}

#[test]
fn an_unsupported_kernel_is_reported_at_once_with_its_line() {
    if is_program() {
        launch("textured");
        std::process::abort();
    }
    let output = run("an_unsupported_kernel_is_reported_at_once_with_its_line", &[]);
    let text = text(&output);
    for call in ["cuModuleLoadData", "cuLaunchKernel"] {
        let line = format!("dmr-sim: {call}: kernel `textured` cannot run: ");
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
    assert!(text.contains("`tex.1d.v4.s32.s32`") && text.contains("(line 7)"), "{text}");
}

#[test]
fn a_forked_child_reports_nothing() {
    if is_program() {
        write_and_read(false);
        return fork();
    }
    let output = run("a_forked_child_reports_nothing", &[]);
    assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS), "{}", text(&output));
    assert_eq!(text(&output).matches("dmr-sim:").count(), 1, "{}", text(&output));
}

#[test]
fn the_environment_configures_the_devices() {
    if is_program() {
        return write_and_read(false);
    }
    let run = |name, value| run("the_environment_configures_the_devices", &[(name, value)]);
    let output = run("DMR_SIM_DEVICES", "many");
    assert!(text(&output).contains(r#"DMR_SIM_DEVICES is "many""#), "{}", text(&output));
    let output = run("DMR_SIM_CAPACITY", "16");
    assert!(text(&output).contains("OUT_OF_MEMORY"), "{}", text(&output));
    for policy in ["eager", "lazy", "random"] {
        let output = run("DMR_SIM_POLICY", policy);
        assert_eq!(output.status.code(), Some(dmr_sim::EXIT_STATUS), "{policy}");
    }
}

#[test]
fn devices_are_hidden_as_by_the_driver() {
    const NAME: &str = "devices_are_hidden_as_by_the_driver";
    if is_program() {
        let text = format!("devices: {:?}\n", CudaContext::device_count());
        return std::io::stdout().write_all(text.as_bytes()).unwrap();
    }
    let cases = [("0,1", 2), ("1", 1), (" 0", 1), ("1,7,0", 1), ("0,none,1", 1)];
    for (value, devices) in cases {
        let output = run(NAME, &[("CUDA_VISIBLE_DEVICES", value)]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains(&format!("devices: Ok({devices})")), "{value:?}: {stdout}");
    }
    for value in ["", "7", "none", "0,0"] {
        let output = run(NAME, &[("CUDA_VISIBLE_DEVICES", value)]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("NO_DEVICE"), "{value:?}: {stdout}");
    }
}
