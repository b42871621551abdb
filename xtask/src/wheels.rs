//! Headers and libraries that pip fetches for a gate, once, into the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::failure::Failure;

/// The headers of CUDA's driver and of its runtime library.
pub(crate) const CUDA: [&str; 2] = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"];

/// Returns a folder with the content of these packages, fetched for this machine if they are not
/// there. `missing` says what to do where pip cannot fetch them.
pub(crate) fn fetch(folder: &Path, packages: &[&str], missing: &str) -> Result<PathBuf, Failure> {
    let site = folder.join("site");
    let marker = folder.join("packages");
    let wanted = packages.join("\n");
    if fs::read_to_string(&marker).is_ok_and(|fetched| fetched == wanted) {
        return Ok(site);
    }
    let cannot =
        |error| Failure::Setup(format!("cannot make the folder {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(cannot)?;
    if site.exists() {
        fs::remove_dir_all(&site).map_err(cannot)?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--target"])
        .arg(&site)
        .args(packages);
    command::show(&mut pip).map_err(|failure| Failure::Setup(format!("{failure}\n{missing}")))?;
    fs::write(&marker, wanted).map_err(cannot)?;
    Ok(site)
}

/// Returns the folder of gcc's own headers, which libclang's package lacks.
pub(crate) fn headers_of_gcc() -> Result<String, Failure> {
    let mut find = Command::new("g++");
    find.arg("-print-file-name=include");
    Ok(command::capture(&mut find)?.trim().to_owned())
}

/// Makes a folder in which the simulated driver has the name of NVIDIA's, `libcuda.so.1`.
pub(crate) fn simulator(target: &Path, folder: &Path) -> Result<PathBuf, Failure> {
    command::show(&mut command::cargo(&["build", "--release", "-p", "dmr-sim-library"]))?;
    let sim = folder.join("sim");
    link(&target.join("release/libdmr_sim_library.so"), &sim)?;
    Ok(sim)
}

/// Links the names of NVIDIA's driver, in a new folder, to the simulated driver.
pub(crate) fn link(library: &Path, folder: &Path) -> Result<(), Failure> {
    let cannot =
        |error| Failure::Setup(format!("cannot make the folder {}: {error}", folder.display()));
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(cannot)?;
    }
    fs::create_dir_all(folder).map_err(cannot)?;
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::os::unix::fs::symlink(library, folder.join(name)).map_err(cannot)?;
    }
    Ok(())
}
