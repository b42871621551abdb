//! Refuses an output that would overwrite the trace it is made from.

use std::io;
use std::path::Path;

use crate::TraceError;

/// Checks that writing `output` does not overwrite `trace`: that the two paths do not lead to the
/// same file, by links either. A program that reads one and writes the other calls this before it
/// opens the output. A path where no file exists passes.
///
/// # Errors
///
/// [`Overwrites`](TraceError::Overwrites).
pub fn refuse_overwrite(trace: &Path, output: &Path) -> Result<(), TraceError> {
    match is_same_file(trace, output) {
        Ok(true) => Err(TraceError::Overwrites {
            trace: trace.display().to_string(),
            output: output.display().to_string(),
        }),
        // Opening a file that cannot be looked at fails by itself, with a message of its own.
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn is_same_file(a: &Path, b: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Hard links are not recognised.
#[cfg(not(unix))]
fn is_same_file(a: &Path, b: &Path) -> io::Result<bool> {
    Ok(a.canonicalize()? == b.canonicalize()?)
}
