//! `cargo xtask valgrind`: the programs in C of dmr-capi, on the simulated driver under valgrind.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

const MISSING: &str = "valgrind is not installed (on Debian: `apt-get install valgrind`)";

/// The crate with the header and the programs.
const CRATE: &str = "crates/memory/dmr-capi";

/// The libraries, and the names that the programs have for them.
const LIBRARIES: [(&str, &str); 2] =
    [("libdmr_capi.so", "libdmr_capi.so"), ("libdmr_sim_library.so", "libcuda.so.1")];

/// The exit status for an error that valgrind has found.
const FOUND: i32 = 9;

/// The programs. The last one commits a fault that valgrind must find, with the argument
/// [`CONTROL`].
const PROGRAMS: [&str; 2] = ["arrow", "program"];

const CONTROL: &str = "uninitialised";

/// Builds the libraries and the programs, and runs them: without an error, and one of them with
/// one.
pub(crate) fn run() -> Result<(), Failure> {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|it| it.status.success()) {
        return Err(Failure::Setup(MISSING.to_owned()));
    }
    let build = ["build", "-p", "dmr-capi", "-p", "dmr-sim-library"];
    command::show(&mut command::cargo(&build))?;
    let target = Workspace::load()?.target_directory;
    let folder = target.join("valgrind");
    fs::create_dir_all(&folder).map_err(|error| cannot("create", &folder, &error))?;
    for (library, name) in LIBRARIES {
        link(&target.join("debug").join(library), &folder.join(name))?;
    }
    let mut program = PathBuf::new();
    for name in PROGRAMS {
        program = compile(name, &folder)?;
        command::show(&mut under_valgrind(&program, &folder))?;
    }
    let mut control = under_valgrind(&program, &folder);
    let output = control.arg(CONTROL).output();
    let output = output.map_err(|error| cannot("run", &program, &error))?;
    match output.status.code() {
        Some(FOUND) => Ok(()),
        other => {
            let text = String::from_utf8_lossy(&output.stderr);
            let message =
                format!("valgrind has not found the fault `{CONTROL}`: {other:?}\n{text}");
            Err(Failure::Setup(message))
        }
    }
}

fn compile(name: &str, folder: &Path) -> Result<PathBuf, Failure> {
    let program = folder.join(name);
    let source = command::root().join(CRATE);
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-std=gnu17", "-g", "-I"]).arg(source.join("include"));
    compile.arg(source.join(format!("tests/c/{name}.c"))).arg("-o").arg(&program);
    compile.arg("-L").arg(folder).args(["-ldmr_capi", "-ldl", "-pthread"]);
    command::show(&mut compile)?;
    Ok(program)
}

fn under_valgrind(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    command.args(["--show-leak-kinds=definite", &format!("--error-exitcode={FOUND}")]).arg(program);
    command.env("LD_LIBRARY_PATH", folder).env_remove("DMR_BACKEND");
    command
}

fn link(library: &Path, name: &Path) -> Result<(), Failure> {
    match fs::remove_file(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(cannot("remove", name, &error));
        }
        _ => {}
    }
    symlink(library, name).map_err(|error| cannot("link", name, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Setup(format!("cannot {what} {}: {error}", path.display()))
}
