//! Finds the GPU and Compute Sanitizer, and makes the tool's command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::rows::{Build, Row, Tool};
use crate::failure::Failure;

/// Makes the tool report each launch that it checks.
const LAUNCHES: &str = "--dump-kernel-launches";

const ELSEWHERE: &str = "To check on another machine, pack a bundle here with `cargo xtask sanitize \
                         --bundle` and start its sanitize.sh there.";

/// The machine that rows run on. A result counts on the same machine only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) gpu: String,
    pub(super) driver: String,
    /// The version of Compute Sanitizer.
    pub(super) tool: String,
}

/// The places in which NVIDIA's programs are searched for.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) nvidia_smi: PathBuf,
    /// In the order in which they are tried.
    pub(super) tools: Vec<PathBuf>,
}

impl Search {
    /// Searches for the tool of the command line; without one, on `PATH` and then in the CUDA
    /// toolkit.
    pub(super) fn new(tool: Option<&Path>) -> Self {
        let name = "compute-sanitizer";
        let tools = if let Some(tool) = tool {
            vec![tool.to_owned()]
        } else {
            let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
            let homes = homes.map(PathBuf::from).chain(["/usr/local/cuda".into()]);
            std::iter::once(PathBuf::from(name))
                .chain(homes.map(|home| home.join("bin").join(name)))
                .collect()
        };
        Self { nvidia_smi: "nvidia-smi".into(), tools }
    }

    /// Returns the machine and the path of the tool.
    ///
    /// # Errors
    ///
    /// There is no GPU, or no tool, or the tool is too old.
    pub(super) fn find(&self) -> Result<(Machine, PathBuf), Failure> {
        let query = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
        let gpus = output(&self.nvidia_smi, &query);
        let first = gpus.as_deref().and_then(|gpus| gpus.lines().next()?.split_once(", "));
        let Some((gpu, driver)) = first else {
            return Err(Failure::Setup(format!(
                "sanitize: no NVIDIA GPU found: nvidia-smi is missing or lists none. Nothing was \
                 checked. {ELSEWHERE}"
            )));
        };
        let found = self.tools.iter().find_map(|tool| Some((tool, output(tool, &["--version"])?)));
        let Some((path, version)) = found else {
            let tools: Vec<_> = self.tools.iter().map(|it| it.display().to_string()).collect();
            return Err(Failure::Setup(format!(
                "sanitize: compute-sanitizer not found (tried {}). Nothing was checked. Install \
                 NVIDIA's Compute Sanitizer (package cuda-sanitizer of the CUDA toolkit, or \
                 nvidia-cuda-sanitizer-api on PyPI), or name it with --tool PATH. {ELSEWHERE}",
                tools.join(", ")
            )));
        };
        let version = version.lines().find_map(|line| line.strip_prefix("Version "));
        let tool = version.and_then(|it| it.split_whitespace().next()).unwrap_or("?").to_owned();
        if !output(path, &["--help"]).is_some_and(|help| help.contains(LAUNCHES)) {
            return Err(Failure::Setup(format!(
                "sanitize: {} is version {tool}, which cannot report the kernels that it checked \
                 ({LAUNCHES}); 2026.4 and newer can. Nothing was checked. Install a newer one, for example \
                 nvidia-cuda-sanitizer-api of PyPI, and name it with --tool PATH.",
                path.display()
            )));
        }
        let machine = Machine { gpu: gpu.to_owned(), driver: driver.trim().to_owned(), tool };
        Ok((machine, path.clone()))
    }
}

/// Returns the standard output of a command; `None` if it fails.
fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the tool's options for a row, without the names of its files. There are no suppressions
/// and no filters.
pub(super) fn options(row: &Row) -> Vec<&'static str> {
    let mut options = vec![
        "--tool",
        row.tool.name(),
        "--target-processes",
        "all",
        // A fault ends the kernel and not the context, so that one fault makes one finding.
        "--destroy-on-device-error",
        "kernel",
        "--print-limit",
        "0",
        LAUNCHES,
        "--num-callers-host",
        "12",
    ];
    if row.tool == Tool::Memcheck {
        options.extend(["--leak-check", "full"]);
        options.extend(["--track-stream-ordered-races", "all"]);
        options.extend(["--report-api-errors", "explicit"]);
    }
    if row.tool == Tool::Initcheck {
        // Without it, initcheck misses writes of kernels while other threads call the driver.
        options.push("--force-blocking-launches");
    }
    if row.build == Build::PoolDirect {
        options.extend(["--nvtx", "yes"]);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sanitize::rows;

    fn options_of(id: &str) -> String {
        let rows = rows::tests();
        options(rows.iter().find(|row| row.id() == id).unwrap()).join(" ")
    }

    #[test]
    fn memcheck_looks_for_leaks_races_of_allocations_and_errors_of_calls() {
        let memcheck = options_of("memcheck.async");
        for part in [
            "--tool memcheck",
            "--leak-check full",
            "--track-stream-ordered-races all",
            "--report-api-errors explicit",
        ] {
            assert!(memcheck.contains(part), "{memcheck}");
        }
    }

    #[test]
    fn every_row_checks_every_process_and_kernel_and_prints_all() {
        for row in rows::tests() {
            let options = options(&row).join(" ");
            for part in ["--target-processes all", "--print-limit 0", LAUNCHES] {
                assert!(options.contains(part), "{options}");
            }
            for part in ["suppress", "kernel-name", "launch-skip", "launch-count", "exclude"] {
                assert!(!options.contains(part), "{options}");
            }
        }
    }

    #[test]
    fn initcheck_waits_for_kernels_and_the_visible_pool_has_nvtx() {
        assert!(options_of("initcheck.pool-direct").contains("--force-blocking-launches"));
        assert!(!options_of("memcheck.pool-direct").contains("--force-blocking-launches"));
        assert!(options_of("memcheck.pool-direct").contains("--nvtx yes"));
        assert!(!options_of("memcheck.direct-tracked").contains("--nvtx"));
    }
}
