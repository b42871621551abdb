//! Programs in C and Python that know nothing of this project run on the library, and their races
//! are reported.
//!
//! They need a C compiler, as Rust's linker does, and `python3`.

#[path = "../src/functions.rs"]
mod functions;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns a new folder with the library under the driver's name.
fn library_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libdmr_sim_library.so");
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).unwrap();
    folder
}

fn source(name: &str) -> PathBuf {
    Path::new("tests/programs").join(name) // cargo runs tests in the crate's folder
}

/// Compiles a program in C, and returns the command that runs it with an argument.
fn compiled(name: &str, folder: &Path, argument: Option<&str>) -> Command {
    let program = folder.join(name);
    if !program.exists() {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut compile = Command::new(compiler);
        compile.arg("-o").arg(&program).arg(source(name).with_extension("c"));
        assert!(compile.args(["-ldl", "-pthread"]).status().unwrap().success());
    }
    let mut command = Command::new(program);
    command.args(argument);
    command
}

/// Runs a program on the library, without a variable that configures it.
fn run(mut command: Command, folder: &Path) -> Output {
    for name in ["DEVICES", "CAPACITY", "SEED", "POLICY", "BACKTRACE", "CHECKS", "INSTRUCTIONS"] {
        command.env_remove(format!("DMR_SIM_{name}"));
    }
    command.env("LD_LIBRARY_PATH", folder).output().unwrap()
}

#[track_caller]
fn has_a_race(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{text}");
    assert_eq!(text.matches("dmr-sim: 1 finding\n").count(), 1, "{text}");
    assert!(text.contains("read-after-write race") && text.contains("64 bytes"), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("read "), "{output:?}");
}

#[track_caller]
fn is_right(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "read 9");
    assert!(output.stderr.is_empty());
}

/// Defines a function that returns the names of the library's list.
macro_rules! export {
    ($($name:ident)*) => {
        fn exported() -> &'static [&'static str] {
            &[$(stringify!($name)),*]
        }
    };
}

functions::functions!(export);

#[test]
fn the_library_exports_each_function_of_the_simulator_and_no_other() {
    let mut simulated: Vec<_> = dmr_sim::driver_functions().into_iter().map(|f| f.0).collect();
    simulated.sort_unstable();
    assert_eq!(exported(), simulated, "correct `src/functions.rs`, which is sorted");
}

#[test]
fn a_program_in_c_runs_and_its_race_is_reported() {
    let folder = library_folder();
    let program = |argument| compiled("two_streams", folder.path(), argument);
    has_a_race(&run(program(None), folder.path()));
    is_right(&run(program(Some("in-order")), folder.path()));
}

#[test]
fn the_null_stream_of_a_program_compiled_for_per_thread_default_streams_is_the_threads_own() {
    let folder = library_folder();
    let program = |argument| compiled("default_streams", folder.path(), argument);
    has_a_race(&run(program(None), folder.path()));
    is_right(&run(program(Some("in-order")), folder.path()));
    is_right(&run(program(Some("legacy")), folder.path()));
}

#[test]
fn a_program_in_python_runs_and_its_race_is_reported() {
    let folder = library_folder();
    let python = |argument: Option<&str>| {
        let mut command = Command::new("python3");
        command.arg(source("two_streams.py")).args(argument);
        command
    };
    has_a_race(&run(python(None), folder.path()));
    is_right(&run(python(Some("in-order")), folder.path()));
}

/// Returns the line of the first call of a function in the program in Python.
fn line_of(call: &str) -> usize {
    let text = std::fs::read_to_string(source("two_streams.py")).unwrap();
    text.lines().position(|line| line.contains(call)).unwrap() + 1
}

#[test]
fn a_race_of_a_program_in_python_names_its_lines() {
    let folder = library_folder();
    for (setting, callers) in [("1", false), ("full", true)] {
        let mut command = Command::new("python3");
        command.arg(source("two_streams.py")).env("DMR_SIM_BACKTRACE", setting);
        let output = command.env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
        has_a_race(&output);
        let text = String::from_utf8_lossy(&output.stderr);
        let calling = format!("two_streams.py:{}\n", line_of("getattr(driver"));
        assert_eq!(text.matches(&calling).count(), 2, "{text}");
        for caller in ["cuMemsetD8Async", "cuMemcpyDtoHAsync"] {
            let place = format!("two_streams.py:{}", line_of(caller));
            let is_named =
                |line: &str| line.starts_with("    called at ") && line.ends_with(&place);
            assert_eq!(text.lines().any(is_named), callers, "{text}");
        }
    }
}

/// `ctypes` releases Python's lock for functions of a `CDLL`, and keeps it for those of a `PyDLL`.
/// The last thread calls while Python ends.
#[test]
fn threads_of_python_whose_lines_are_read_do_not_wait_for_each_other_for_ever() {
    const PROGRAM: &str = "import ctypes, threading, time
releasing, keeping = ctypes.CDLL('libcuda.so.1'), ctypes.PyDLL('libcuda.so.1')
context, size = ctypes.c_void_p(), ctypes.c_size_t(64)
releasing.cuInit(0)
releasing.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
def work(library, times):
    memory, stream = ctypes.c_uint64(), ctypes.c_void_p()
    library.cuCtxSetCurrent(context)
    library.cuMemAlloc_v2(ctypes.byref(memory), size)
    library.cuStreamCreate(ctypes.byref(stream), 1)
    for _ in range(times):
        library.cuMemsetD8Async(memory, 9, size, stream)
        library.cuStreamQuery(stream)
    library.cuStreamSynchronize(stream)
threads = [threading.Thread(target=work, args=(library, 300)) for library in (releasing, keeping) * 2]
for thread in threads: thread.start()
for thread in threads: thread.join()
threading.Thread(target=work, args=(releasing, 10 ** 9), daemon=True).start()
time.sleep(0.05)
print('end')";
    let folder = library_folder();
    for _ in 0..5 {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).env("DMR_SIM_BACKTRACE", "full");
        let output = command.env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "end", "{output:?}");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn a_refused_call_is_named_also_without_a_context() {
    const PROGRAM: &str = "import ctypes
cuda, table = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
print('read', cuda.cuInit(0), cuda.cuGetExportTable(ctypes.byref(table), bytes(range(16))), cuda.cuArrayDestroy(None))";
    let folder = library_folder();
    let mut python = Command::new("python3");
    python.args(["-c", PROGRAM]);
    let output = run(python, folder.path());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "read 0 500 801");
    let words = "dmr-sim: cuGetExportTable: the table of functions 000102030405060708090a0b0c0d0e0f is not documented
dmr-sim: cuArrayDestroy: the simulated driver does not have this function
";
    assert_eq!(String::from_utf8_lossy(&output.stderr), words);
}

#[test]
fn a_call_before_the_driver_is_initialised_is_refused() {
    const PROGRAM: &str = "import ctypes
cuda, count = ctypes.CDLL('libcuda.so.1'), ctypes.c_int()
calls = [lambda: cuda.cuDeviceGetCount(ctypes.byref(count)), lambda: cuda.cuDeviceGet(ctypes.byref(count), 0)]
print('read', [call() for call in calls], cuda.cuInit(1), cuda.cuInit(0), [call() for call in calls])";
    let folder = library_folder();
    let mut python = Command::new("python3");
    python.args(["-c", PROGRAM]);
    let output = run(python, folder.path());
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "read [3, 3] 1 0 [0, 0]");
}
