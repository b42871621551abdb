//! Copies files into the bundle, strips executables, and packs the bundle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cannot;
use crate::command;
use crate::failure::Failure;

/// The maximum size of a packed bundle.
const MOST_BYTES: u64 = 60 << 20;

/// The options of xz. The executables have most of their code in common: a dictionary larger than
/// several of them reduces the size more than a higher preset.
const XZ_OPTIONS: &str = "--lzma2=preset=3,dict=128MiB";

/// A packed bundle.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

impl Archive {
    /// Returns an error unless it is small enough to be copied to another machine.
    pub(crate) fn check_size(&self) -> Result<(), Failure> {
        if self.bytes <= MOST_BYTES {
            return Ok(());
        }
        let most = MOST_BYTES >> 20;
        Err(Failure::Setup(format!("{}: more than {most} MiB", self.path.display())))
    }
}

/// Copies an executable without its debug information. Symbols stay: backtraces need them.
pub(crate) fn executable(from: &Path, to: &Path) -> Result<(), Failure> {
    copy(from, to)?;
    if has("strip") {
        command::capture(Command::new("strip").arg("--strip-debug").arg(to))?;
    }
    Ok(())
}

/// Copies the traces of a folder.
pub(crate) fn traces(from: &Path, to: &Path) -> Result<(), Failure> {
    let entries = fs::read_dir(from).map_err(|error| cannot("read", from, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| cannot("read", from, &error))?.path();
        let name = path.file_name().unwrap_or_default();
        if name.to_string_lossy().ends_with(".csv.gz") {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

/// Writes an executable script.
pub(crate) fn script(text: &str, to: &Path) -> Result<(), Failure> {
    fs::write(to, text).map_err(|error| cannot("write", to, &error))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(to, mode).map_err(|error| cannot("write", to, &error))?;
    }
    Ok(())
}

/// Packs a folder of `parent`: with xz if it is installed, otherwise with gzip.
pub(crate) fn archive(parent: &Path, folder: &str) -> Result<Archive, Failure> {
    let (flag, suffix) = if has("xz") { ("-J", "tar.xz") } else { ("-z", "tar.gz") };
    let path = parent.join(format!("{folder}.{suffix}"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", flag, "-cf"]).arg(&path);
    tar.arg("-C").arg(parent).arg(folder).env("XZ_OPT", XZ_OPTIONS);
    command::capture(&mut tar)?;
    let bytes = fs::metadata(&path).map_err(|error| cannot("read", &path, &error))?.len();
    Ok(Archive { path, bytes })
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(|error| cannot("make", parent, &error))?;
    }
    if to.exists() {
        return Err(Failure::Setup(format!("{}: two files of one name", to.display())));
    }
    fs::copy(from, to).map(drop).map_err(|error| cannot("copy", from, &error))
}

/// Returns whether a program is installed.
fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_that_is_too_large_is_refused() {
        let archive = |bytes| Archive { path: "x.tar.xz".into(), bytes };
        assert!(archive(MOST_BYTES).check_size().is_ok());
        let failure = archive(MOST_BYTES + 1).check_size().unwrap_err().to_string();
        assert!(failure.contains("x.tar.xz: more than 60 MiB"), "{failure}");
    }
}
