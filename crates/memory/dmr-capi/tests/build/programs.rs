//! C1 to C8: a program in C, compiled with the checked-in header and linked with the library, runs
//! on the simulated driver without a finding. `cargo xtask valgrind` runs it under valgrind.
//!
//! It needs a C compiler, as Rust's linker does.

use std::path::PathBuf;
use std::process::{Command, Output};

use dmr::dmr_shared_limit::SharedLimitConfig;
use tempfile::TempDir;

/// A folder with the program, the library and the simulated driver, under their names.
struct Built {
    folder: TempDir,
}

impl Built {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let links =
            [("libdmr_sim_library.so", "libcuda.so.1"), ("libdmr_capi.so", "libdmr_capi.so")];
        for (library, name) in links {
            let test = std::env::current_exe().unwrap();
            let library = test.with_file_name(library);
            assert!(library.exists(), "{library:?} was not built");
            std::os::unix::fs::symlink(library, folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles the program as a language, which refuses each warning.
    fn compile(&self, compiler: &str, flags: &[&str]) -> PathBuf {
        self.compile_of("program", compiler, flags)
    }

    fn compile_of(&self, name: &str, compiler: &str, flags: &[&str]) -> PathBuf {
        let program = self.path(name);
        let mut compile = Command::new(compiler);
        compile.args(flags).args(["-Wall", "-Wextra", "-Werror", "-Iinclude"]);
        compile.arg(format!("tests/c/{name}.c")).arg("-o").arg(&program);
        compile.arg("-L").arg(self.folder.path()).args(["-ldmr_capi", "-ldl", "-pthread"]);
        let output = compile.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// Runs a command on the simulated driver, with a policy and no other setting.
    fn run(&self, command: &mut Command, policy: Option<&str>) -> Output {
        for name in ["DEVICES", "CAPACITY", "SEED", "POLICY", "BACKTRACE", "CHECKS", "INSTRUCTIONS"]
        {
            command.env_remove(format!("DMR_SIM_{name}"));
        }
        if let Some(policy) = policy {
            command.env("DMR_SIM_POLICY", policy);
        }
        command.env_remove("DMR_BACKEND").env("LD_LIBRARY_PATH", self.folder.path());
        command.output().unwrap()
    }
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

const C: [&str; 1] = ["-std=gnu17"];

#[track_caller]
fn is_good(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "good\n", "{text}");
}

#[test]
fn the_program_in_c_runs_without_a_finding() {
    let built = Built::new();
    let program = built.compile(&compiler(), &C);
    for policy in ["eager", "lazy", "random"] {
        let output = built.run(&mut Command::new(&program), Some(policy));
        is_good(&output);
        assert!(output.stderr.is_empty(), "{policy}: {output:?}");
    }
}

#[test]
fn a_wait_that_the_program_leaves_out_is_a_race() {
    let built = Built::new();
    let program = built.compile(&compiler(), &C);
    let output = built.run(Command::new(program).arg("unordered"), None);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{text}");
    assert!(text.contains("read-after-write race"), "{text}");
}

#[test]
fn the_program_joins_a_limit_that_processes_share() {
    let built = Built::new();
    let program = built.compile(&compiler(), &C);
    let accounts = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = Command::new(program);
    command.arg("share").env(SharedLimitConfig::VARIABLE, accounts.path());
    is_good(&built.run(&mut command, None));
}

#[test]
fn the_log_is_complete_at_the_end_of_a_program_that_destroys_nothing() {
    let built = Built::new();
    let program = built.compile(&compiler(), &C);
    let path = built.path("log.csv");
    is_good(&built.run(Command::new(program).arg("log").arg(&path), None));
    let log = std::fs::read_to_string(path).unwrap();
    assert_eq!(log.matches("12345").count(), 2, "{log}");
}

#[test]
fn c10_columns_go_from_and_to_a_program_in_c() {
    let built = Built::new();
    let program = built.compile_of("arrow", &compiler(), &C);
    for policy in ["eager", "lazy", "random"] {
        let output = built.run(&mut Command::new(&program), Some(policy));
        is_good(&output);
        assert!(output.stderr.is_empty(), "{policy}: {output:?}");
    }
}

#[test]
fn c10_without_the_events_there_is_a_race_each_way() {
    let built = Built::new();
    let program = built.compile_of("arrow", &compiler(), &C);
    for mode in ["unordered", "early"] {
        let output = built.run(Command::new(&program).arg(mode), Some("lazy"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(66), "{mode}: {text}");
        assert!(text.contains("read-after-write race"), "{mode}: {text}");
    }
}
