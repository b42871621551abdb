//! Refuses an output that would overwrite the trace it is made from.

use std::io;
use std::path::Path;

use crate::TraceError;

/// Checks that `output` and `trace` are not the same file, also through links. A program that reads
/// one and writes the other calls this before it opens the output. A path where no file exists
/// passes.
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
        // A file whose metadata cannot be read cannot be opened either, and that error has its own
        // message.
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn is_same_file(a: &Path, b: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let a = a.metadata()?;
    let b = b.metadata()?;
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Hard links are not recognised.
#[cfg(not(unix))]
fn is_same_file(a: &Path, b: &Path) -> io::Result<bool> {
    Ok(a.canonicalize()? == b.canonicalize()?)
}
