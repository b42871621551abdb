//! `cargo xtask rmm`: RMM below dmr and above it. Builds the library of dmr-rmm with RMM's package,
//! and for the simulated driver with RMM's sources; runs the tests of the crate, the program in C++
//! and those of the Python module there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::failure::Failure;
use crate::wheels;
use crate::workspace::Workspace;

const CRATE: &str = "crates/memory/dmr-rmm";

/// The release that programs get, and that is measured.
const RMM: [&str; 2] = ["librmm-cu13==26.10.0", "rapids-logger==0.3.0"];

/// The release that is compiled from its sources: the package has CUDA's runtime library linked in,
/// which does not run on the simulated driver.
const SIMULATED: [&str; 2] = ["librmm-cu13==26.6.0", "rapids-logger==0.2.3"];
const SOURCES: &str = "https://github.com/rapidsai/rmm";
const TAG: &str = "v26.06.00";

/// RMM's package for Python, and what it imports.
const PYTHON: [&str; 6] = [
    "rmm-cu13==26.6.0",
    "librmm-cu13==26.6.0",
    "rapids-logger==0.2.3",
    "numpy==2.4.6",
    "cuda-bindings==13.5.0",
    "cuda-pathfinder==1.9.1",
];

const MISSING: &str = "\
this gate fetches librmm-cu13 and rmm-cu13 (26.10.0, 26.6.0), rapids-logger, nvidia-cuda-runtime 13.0.96 and
nvidia-cuda-crt 13.0.88 from PyPI by `python3 -m pip`, and needs Python 3.11 or newer and a C++20 compiler (g++ 12)";

const NO_SOURCES: &str = "\
the sources of RMM are not there: this gate clones tag v26.06.00 of https://github.com/rapidsai/rmm by git; where that
cannot be reached, set RMM_SOURCE to a checkout of that tag";

/// The order in which the simulated driver executes work.
const POLICIES: [&str; 3] = ["random", "eager", "lazy"];

/// Builds and tests.
pub(crate) fn run() -> Result<(), Failure> {
    let target = Workspace::load()?.target_directory;
    let folder = target.join("rmm");
    fs::create_dir_all(&folder).map_err(|error| cannot("create", &folder, &error))?;
    let build = ["build", "-p", "dmr-capi", "-p", "dmr-sim-library"];
    command::show(&mut command::cargo(&build))?;
    let capi = target.join("debug");

    let sdk = wheels::fetch(&folder.join("sdk"), &[&RMM[..], &wheels::CUDA].concat(), MISSING)?;
    let lib = folder.join("lib");
    command::show(script("shim/build.sh").env("SDK", &sdk).env("OUT", &lib))?;
    let runtime = lib.join("libcudart.so.13");
    compile(&sdk, &lib, &capi, Some(&runtime), &folder.join("on_a_gpu"))?;

    let packages = [&SIMULATED[..], &wheels::CUDA].concat();
    let sdk = wheels::fetch(&folder.join("simulated-sdk"), &packages, MISSING)?;
    let lib = folder.join("simulated");
    let source = sources(&folder)?;
    let mut simulated = script("tests/simulated/build.sh");
    command::show(simulated.env("SDK", &sdk).env("OUT", &lib).env("SOURCE", &source))?;

    let tests = ["test", "-p", "dmr-rmm", "--test", "it", "--test", "sim", "--test", "process"];
    let library = lib.join("libdmr_rmm.so");
    command::show(command::cargo(&tests).env("DMR_RMM_LIBRARY", library))?;

    let program = folder.join("simulated_program");
    compile(&sdk, &lib, &capi, None, &program)?;
    let sim = simulator(&capi, &folder)?;
    for policy in POLICIES {
        let mut run = Command::new(&program);
        command::show(run.env("LD_LIBRARY_PATH", &sim).env("DMR_SIM_POLICY", policy))?;
    }
    test_python(&capi, &lib, &sim, &folder)
}

fn script(path: &str) -> Command {
    Command::new(command::root().join(CRATE).join(path))
}

/// Compiles the program in C++. `runtime` is CUDA's runtime library, where RMM's library has none.
fn compile(
    sdk: &Path,
    lib: &Path,
    capi: &Path,
    runtime: Option<&Path>,
    program: &Path,
) -> Result<(), Failure> {
    let root = command::root();
    let mut compile = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    compile.args(["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"]);
    compile.arg(root.join("crates/memory/dmr-capi/include"));
    let headers = ["librmm/include", "librmm/include/rapids", "rapids_logger/include"];
    for include in headers.into_iter().chain(["nvidia/cu13/include"]) {
        compile.arg("-isystem").arg(sdk.join(include));
    }
    compile.arg(root.join(CRATE).join("tests/cpp/resource.cpp")).arg("-o").arg(program);
    compile.arg("-L").arg(lib).args(["-lrmm", "-lrapids_logger"]).args(runtime);
    compile.arg("-L").arg(capi).arg("-ldmr_capi");
    for folder in [lib, capi] {
        compile.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    command::show(&mut compile)
}

/// Returns a checkout of RMM's sources.
fn sources(folder: &Path) -> Result<PathBuf, Failure> {
    let checkout = match std::env::var_os("RMM_SOURCE") {
        Some(named) => PathBuf::from(named),
        None => folder.join("source"),
    };
    if !checkout.join("cpp/src/error.cpp").exists() {
        let mut clone = Command::new("git");
        clone.args(["clone", "--quiet", "--depth", "1", "--branch", TAG, SOURCES]).arg(&checkout);
        command::show(&mut clone)
            .map_err(|failure| Failure::Setup(format!("{failure}\n{NO_SOURCES}")))?;
    }
    Ok(checkout)
}

/// Makes a folder in which the simulated driver has the name of NVIDIA's.
fn simulator(built: &Path, folder: &Path) -> Result<PathBuf, Failure> {
    let sim = folder.join("sim");
    wheels::link(&built.join("libdmr_sim_library.so"), &sim)?;
    Ok(sim)
}

/// Runs the tests of the Python module, with RMM's package and the library for the simulated
/// driver.
fn test_python(capi: &Path, lib: &Path, sim: &Path, folder: &Path) -> Result<(), Failure> {
    let site = wheels::fetch(&folder.join("python"), &PYTHON, MISSING)?;
    let package = folder.join("package/dmr");
    let libraries = package.join("lib");
    fs::create_dir_all(&libraries).map_err(|error| cannot("create", &libraries, &error))?;
    let sources = command::root().join("python/dmr");
    for entry in fs::read_dir(&sources).map_err(|error| cannot("read", &sources, &error))? {
        let path = entry.map_err(|error| cannot("read", &sources, &error))?.path();
        let (true, Some(name)) = (path.is_file(), path.file_name()) else { continue };
        fs::copy(&path, package.join(name)).map_err(|error| cannot("copy", &path, &error))?;
    }
    let library = capi.join("libdmr_capi.so");
    fs::copy(&library, libraries.join("libdmr_capi.so"))
        .map_err(|error| cannot("copy", &library, &error))?;
    let paths = [folder.join("package"), site];
    let join = |paths: &[PathBuf]| {
        let joined = std::env::join_paths(paths);
        joined.map_err(|error| Failure::Setup(format!("a path has a separator: {error}")))
    };
    let mut test = Command::new("python3");
    test.arg("-B").arg(command::root().join("python/gpu/test_rmm.py"));
    // RMM loads its own library from its package otherwise.
    test.env("RAPIDS_LIBRMM_PREFER_SYSTEM_LIBRARY", "1");
    test.env("PYTHONPATH", join(&paths)?);
    test.env("LD_LIBRARY_PATH", join(&[lib.to_owned(), sim.to_owned()])?);
    command::show(&mut test)
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Setup(format!("cannot {what} {}: {error}", path.display()))
}
