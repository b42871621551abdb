//! `cargo xtask compare-ptx`: compiles the kernels of candle-kernels with NVRTC, runs them on the
//! simulator, and checks the results against those that a GPU has recorded.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command;
use crate::failure::Failure;

/// The crate of the kernels.
const KERNELS: &str = "candle-kernels";
const VERSION: &str = "0.9.2";

/// The Python packages of the compiler and its headers: results were recorded with these versions.
const PACKAGES: [&str; 3] = [
    "nvidia-cuda-nvrtc-cu12==12.9.86",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-cccl-cu12==12.9.27",
];

/// The two ways to compile: the name of each, its option, and the recorded results.
const WAYS: [(&str, &str); 2] = [("unfused", "--fmad=false"), ("fused", "--fmad=true")];

/// The folder of the recorded results.
const RECORDED: &str = "crates/tools/dmr-ptx-compare/recorded";

/// Compiles, runs, checks.
pub(crate) fn run() -> Result<(), Failure> {
    let folder = command::root().join("target/compare-ptx");
    std::fs::create_dir_all(&folder).map_err(|error| Failure::Setup(error.to_string()))?;
    let sources = sources(&folder)?;
    let site = compiler(&folder)?;
    command::show(&mut command::cargo(&["build", "-p", "dmr-ptx-compare"]))?;
    let program = command::root().join("target/debug/dmr-ptx-compare");
    for (way, option) in WAYS {
        let ptx = folder.join(way);
        let mut compile = Command::new(&program);
        compile.arg("compile").args(files(&sources, "cu")?).arg("--out").arg(&ptx);
        compile.arg("--nvrtc").arg(site.join("cuda_nvrtc/lib/libnvrtc.so.12"));
        for headers in ["cuda_runtime/include", "cuda_cccl/include"] {
            compile.arg("--include").arg(site.join(headers));
        }
        compile.arg("--include").arg(&sources).arg(format!("--option={option}"));
        command::show(&mut compile)?;
        let results = folder.join(way).with_extension("results");
        let mut run = Command::new(&program);
        run.arg("run").args(files(&ptx, "ptx")?).arg("--out").arg(&results);
        command::show(run.env("DMR_DRIVER", "sim"))?;
        let recorded =
            command::root().join(RECORDED).join(format!("{KERNELS}-{VERSION}-{way}.txt"));
        command::show(Command::new(&program).arg("check").arg(recorded).arg(results))?;
    }
    Ok(())
}

/// Returns the folder of the sources of the kernels, which cargo fetches.
fn sources(folder: &Path) -> Result<PathBuf, Failure> {
    let unwritable = |error: std::io::Error| Failure::Setup(error.to_string());
    let package = folder.join("fetch");
    std::fs::create_dir_all(package.join("src")).map_err(unwritable)?;
    std::fs::write(package.join("src/lib.rs"), "").map_err(unwritable)?;
    let manifest = package.join("Cargo.toml");
    let text = format!(
        "[package]\nname = \"fetch\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n{KERNELS} = \"={VERSION}\"\n"
    );
    std::fs::write(&manifest, text).map_err(unwritable)?;
    let mut metadata = command::cargo(&["metadata", "--format-version=1", "--manifest-path"]);
    let text = command::capture(metadata.arg(&manifest))?;
    let parsed: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::Setup(format!("cargo metadata: {error}")))?;
    let packages = parsed["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let found = packages.iter().find(|package| package["name"] == KERNELS);
    let manifest = found.and_then(|package| package["manifest_path"].as_str());
    let folder = manifest.and_then(|path| Path::new(path).parent());
    folder
        .map(|folder| folder.join("src"))
        .ok_or_else(|| Failure::Setup(format!("cargo metadata does not name {KERNELS}")))
}

/// Returns the folder of the compiler and of its headers, which pip fetches.
fn compiler(folder: &Path) -> Result<PathBuf, Failure> {
    let site = folder.join("site");
    if !site.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
            .arg(&site)
            .args(PACKAGES);
        command::show(&mut pip)?;
    }
    Ok(site.join("nvidia"))
}

/// Returns the files of a folder with this extension, sorted.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let unreadable =
        |error: std::io::Error| Failure::Setup(format!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        files.push(entry.map_err(unreadable)?.path());
    }
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}
