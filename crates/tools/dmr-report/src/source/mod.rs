//! Reads a file of any format into a model.

mod log;
mod pickle;
mod pytorch;
mod recording;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::ReportError;
use crate::findings;
use crate::model::{Format, Model, Source};

/// Reads a file: its first bytes say which format it has.
///
/// # Errors
///
/// The file cannot be read, or is of no known format; the error names the byte or the line.
pub fn open(path: impl AsRef<Path>) -> Result<Model, ReportError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let failed = |source| ReportError::Read { file: name.clone(), source };
    let mut start = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(16).read_to_end(&mut start).map_err(failed)?;
    let source = |format| Source { name: name.clone(), format, ..Source::default() };
    if start.starts_with(findings::START) {
        let text = std::fs::read(path).map_err(failed)?;
        let findings = findings::parse(&name, &text)?;
        return Ok(Model { source: source(Format::Findings), findings, ..Model::default() });
    }
    if start.starts_with(&dmr_recording::MAGIC) {
        return recording::read(path, source(Format::Recording));
    }
    if is_pickle(&start) {
        let bytes = std::fs::read(path).map_err(failed)?;
        return pytorch::read(&bytes, source(Format::PyTorch));
    }
    let is_gzip = start.starts_with(&[0x1F, 0x8B]);
    if start.contains(&0) && !is_gzip {
        return Err(ReportError::Unknown { file: name });
    }
    log::read(path, source(Format::Log))
}

/// Returns whether a file starts as a pickle of protocol 2 or later does.
fn is_pickle(start: &[u8]) -> bool {
    matches!(start, [0x80, 2..=5, ..])
}
