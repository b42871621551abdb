//! `cargo xtask cuda-core`: builds dmr-cuda-core, which is outside of the workspace, checks it, and
//! runs its tests and examples on the simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::failure::Failure;
use crate::wheels;
use crate::workspace::Workspace;

const MANIFEST: &str = "crates/memory/dmr-cuda-core/Cargo.toml";

/// The minor version of Rust that cuda-core needs.
const OLDEST_RUST: u32 = 89;

/// The packages that bindgen needs besides the headers of CUDA.
const BINDGEN: [&str; 2] = ["nvidia-curand==10.4.5.25", "libclang==18.1.1"];

const MISSING: &str = "\
dmr-cuda-core needs the headers of CUDA 13 and libclang, which this gate fetches from PyPI by `python3 -m pip`
(nvidia-cuda-runtime 13.0.96, nvidia-cuda-crt 13.0.88, nvidia-curand 10.4.5.25, libclang 18.1.1): install pip, or set
CUDA_HOME to a folder with include/cuda.h and include/curand.h, and LIBCLANG_PATH to the folder of libclang.so";

/// The examples, which fail where memory of dmr is not there, or a use of it is refused.
const EXAMPLES: [&str; 2] = ["short_of_memory", "three_threads"];

/// The bytes of a simulated device in the examples: 1 GiB.
const CAPACITY: &str = "1073741824";

/// Checks and tests the crate.
pub(crate) fn run() -> Result<(), Failure> {
    require_rust(&command::capture(&mut command::cargo(&["--version"]))?)?;
    let target = Workspace::load()?.target_directory;
    let folder = target.join("cuda-core");
    let environment = Environment {
        needs: Needs::find(&folder)?,
        sim: wheels::simulator(&target, &folder)?,
        build: folder.join("target"),
    };
    command::show(&mut command::cargo(&["fmt", "--check", "--manifest-path", MANIFEST]))?;
    let deny = ["--", "-D", "warnings"];
    command::show(environment.cargo(&["clippy", "--all-targets"]).args(deny))?;
    command::show(&mut environment.cargo(&["test"]))?;
    for example in EXAMPLES {
        let mut run = environment.cargo(&["run", "--quiet", "--example", example]);
        command::show(run.env("DMR_SIM_CAPACITY", CAPACITY))?;
    }
    Ok(())
}

/// Refuses a cargo that is too old: `cargo 1.89.0 (...)` is not.
fn require_rust(version: &str) -> Result<(), Failure> {
    let minor = version.split(['.', ' ']).nth(2).and_then(|minor| minor.parse::<u32>().ok());
    match minor {
        Some(minor) if minor >= OLDEST_RUST => Ok(()),
        _ => Err(Failure::Setup(format!(
            "dmr-cuda-core needs Rust 1.{OLDEST_RUST} or newer, and this is {}: `rustup toolchain install stable`, \
             then `cargo +stable xtask cuda-core`",
            version.trim()
        ))),
    }
}

/// The headers and the library that the crate is built with.
struct Needs {
    cuda: PathBuf,
    libclang: PathBuf,
    headers_of_gcc: String,
}

impl Needs {
    /// Returns what the environment names, or what pip fetches.
    fn find(folder: &Path) -> Result<Self, Failure> {
        let headers_of_gcc = wheels::headers_of_gcc()?;
        let named = |name| std::env::var_os(name).map(PathBuf::from);
        if let (Some(cuda), Some(libclang)) = (named("CUDA_HOME"), named("LIBCLANG_PATH")) {
            return Ok(Self { cuda, libclang, headers_of_gcc });
        }
        let packages = [wheels::CUDA, BINDGEN].concat();
        let site = wheels::fetch(folder, &packages, MISSING)?;
        let cuda = site.join("nvidia/cu13");
        Ok(Self { cuda, libclang: site.join("clang/native"), headers_of_gcc })
    }
}

/// The folders of a build, and its variables.
struct Environment {
    needs: Needs,
    /// The simulated driver.
    sim: PathBuf,
    /// The target folder, which is not the workspace's: the crate has a lock file of its own.
    build: PathBuf,
}

impl Environment {
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = command::cargo(arguments);
        let includes = format!("-isystem {}", self.needs.headers_of_gcc);
        command
            .args(["--manifest-path", MANIFEST, "--target-dir"])
            .arg(&self.build)
            .env("CUDA_HOME", &self.needs.cuda)
            .env("LIBCLANG_PATH", &self.needs.libclang)
            .env("BINDGEN_EXTRA_CLANG_ARGS", includes)
            .env("LD_LIBRARY_PATH", &self.sim)
            .env("CARGO_INCREMENTAL", "0");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_rust_is_refused() {
        assert!(require_rust("cargo 1.89.0 (c24e10642 2026-06-23)").is_ok());
        assert!(require_rust("cargo 1.95.0-nightly (x)").is_ok());
        let refused = require_rust("cargo 1.88.0 (873a06493 2025-05-10)").unwrap_err();
        assert!(refused.to_string().contains("Rust 1.89 or newer"), "{refused}");
    }
}
