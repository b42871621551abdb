//! Tests of the script that runs a bundle, on bundles of shell scripts.
#![cfg(all(test, unix))]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{SCRIPT, pack};

const PASSES: &str = "echo 'test result: ok. 3 passed; 0 failed'";

static ALONE: Mutex<()> = Mutex::new(());

/// Serializes the tests that write and start scripts: a process that another thread starts at that
/// time would inherit a script that is still open for writing, and Linux refuses to run such a
/// file.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a bundle in which all executables pass, except for the given ones: path and shell script.
fn run(given: &[(&str, &str)], arguments: &[&str]) -> Output {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        pack::script(&format!("#!/bin/sh\n{text}\n"), &path).unwrap();
    };
    for (path, text) in [
        ("tests/a.b", PASSES),
        ("examples/e", "true"),
        ("bin/dmr", "true"),
        ("bin/dmr-bench", "true"),
        ("traces/t.csv.gz", ""),
    ]
    .iter()
    .chain(given)
    {
        put(path, text);
    }
    pack::script(SCRIPT, &folder.path().join("run.sh")).unwrap();
    let logs = folder.path().join("logs");
    start(&folder.path().join("run.sh"), arguments, &logs)
}

fn start(script: &Path, arguments: &[&str], logs: &Path) -> Output {
    Command::new(script).args(arguments).env("LOGS", logs).current_dir("/").output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn everything_runs_on_both_drivers_and_is_counted() {
    let output = run(&[], &[]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for line in ["sim: 5 executables, 3 tests passed, 0 failed", "cuda: 5 executables, 3 tests"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("total: 10 runs, 6 tests passed, 0 failed, 0 left out"), "{text}");
}

#[test]
fn a_failure_is_named_with_what_it_printed_and_the_others_still_run() {
    let output = run(&[("tests/0.first", "echo why; exit 101")], &["sim"]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAILED sim 0.first: exit status 101") && text.contains("    why"));
    assert!(text.contains("sim: 6 executables, 3 tests passed, 1 failed"), "{text}");
}

#[test]
fn an_executable_that_runs_no_test_is_a_failure() {
    for nothing in ["echo 'test result: ok. 0 passed; 0 failed'", "true"] {
        let output = run(&[("tests/none", nothing)], &["sim"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output).contains("FAILED sim none: ran no test"), "{}", text(&output));
    }
}

#[test]
fn examples_and_programs_must_succeed_too() {
    for path in ["examples/e", "bin/dmr", "bin/dmr-bench"] {
        let output = run(&[(path, "exit 3")], &["sim"]);
        assert_eq!(output.status.code(), Some(1), "{path}: {}", text(&output));
    }
}

#[test]
fn tests_on_the_gpu_run_one_by_one_and_know_their_driver_and_bundle() {
    let info = "echo device 0; echo device 1";
    let check = "[ \"$DMR_DRIVER\" = cuda ] && [ \"$*\" = --test-threads=1 ] \
                 && [ -x \"$DMR_BUNDLE/bin/dmr\" ] && echo 'test result: ok. 1 passed; 0 failed'";
    let simulated = "[ $# = 0 ] && echo 'test result: ok. 1 passed; 0 failed'";
    let mut given = vec![("tests/a.it", check), ("bin/dmr", info)];
    given.extend(NO_GPU.map(|path| (path, simulated)));
    let output = run(&given, &["cuda"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Test executables that use no GPU.
const NO_GPU: [&str; 4] =
    ["tests/a.sim", "tests/a.sim_boot", "tests/a.unit-b", "tests/dmr-ptx-arith.it"];

#[test]
fn tests_that_use_no_gpu_run_beside_the_others_and_are_counted() {
    // In the folder of the logs: each waits for the other.
    let meet = |own: &str, other: &str| {
        format!("touch {own}; until [ -e {other} ]; do sleep 0.01; done; {PASSES}")
    };
    for path in NO_GPU {
        let [here, there] = [meet("here", "there"), meet("there", "here")];
        let output = run(&[("tests/a.it", &here), (path, &there)], &["cuda"]);
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("cuda: 7 executables, 9 tests passed, 0 failed"), "{text}");
        let output = run(&[(path, "echo why; exit 101")], &["cuda"]);
        let text = self::text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(": exit status 101") && text.contains("    why"), "{text}");
        assert!(text.contains("cuda: 6 executables, 3 tests passed, 1 failed"), "{text}");
    }
}

#[test]
fn what_needs_two_gpus_is_left_out_by_name_where_there_are_fewer() {
    let counts = "test \"$DMR_DRIVER\" = cuda";
    let filters = "case \"$*\" in *'--skip peers_'*) n=2 ;; *) n=0 ;; esac; \
                   echo \"test result: ok. 1 passed; 0 failed; 0 measured; $n filtered out; 0.1s\"";
    let only_peers = "case \"$*\" in *--skip*) p=0 f=1 ;; *) p=1 f=0 ;; esac; \
                      echo \"test result: ok. $p passed; 0 failed; $f filtered out\"";
    for (gpus, left_out) in [(1, 4), (2, 0)] {
        let info = (0..gpus).map(|gpu| format!("echo device {gpu} NVIDIA; ")).collect::<String>();
        let given = [
            ("tests/a.it", filters),
            ("tests/b.it", only_peers),
            ("examples/two_gpus", counts),
            ("bin/dmr", info.as_str()),
        ];
        let output = run(&given, &["cuda"]);
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        // Of the four, one is an example; the tests are parts of executables.
        let ran = 8 - left_out / 4;
        let total = format!("total: {ran} runs, ");
        assert!(
            text.contains(&total) && text.contains(&format!(", {left_out} left out")),
            "{text}"
        );
        let named = text.contains("left out cuda 2 of a.it: needs 2 GPUs, and there are 1")
            && text.contains("left out cuda two_gpus: needs 2 GPUs, and there are 1");
        assert_eq!(named, gpus < 2, "{text}");
        let on_simulator = run(&given, &["sim"]);
        assert!(
            !self::text(&on_simulator).contains("left out sim"),
            "the simulator has two devices"
        );
    }
}

#[test]
fn an_unknown_driver_is_refused() {
    assert_eq!(run(&[], &["rocm"]).status.code(), Some(2));
}
