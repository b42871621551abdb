//! The file of results.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::element::Element;
use crate::launch::Launch;

/// The result of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The kernel.
    pub kernel: String,
    /// The launch.
    pub variant: String,
    /// The bytes of each output, or why there are none.
    pub outcome: Result<Vec<Vec<u8>>, String>,
}

/// Returns the digest of the outputs of a launch, with one NaN for all, and without the outputs
/// that differ with the order of additions.
#[must_use]
pub fn digest(launch: &Launch, outputs: &[Vec<u8>]) -> u64 {
    let ordered = launch.outputs().zip(outputs).filter(|(output, _)| output.bounds.is_none());
    let canonical = ordered.flat_map(|(output, bytes)| canonical(output.element, bytes));
    canonical.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn canonical(element: Element, bytes: &[u8]) -> Vec<u8> {
    element.bytes(element.each(bytes).map(|bits| element.canonical(bits)))
}

/// Writes a file of results.
///
/// # Errors
///
/// The file cannot be written.
pub fn write(path: &Path, records: &[Record]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for record in records {
        block(&mut file, record.kernel.as_bytes())?;
        block(&mut file, record.variant.as_bytes())?;
        match &record.outcome {
            Ok(outputs) => {
                file.write_all(&(outputs.len() as u32).to_le_bytes())?;
                for output in outputs {
                    block(&mut file, output)?;
                }
            }
            Err(reason) => {
                file.write_all(&u32::MAX.to_le_bytes())?;
                block(&mut file, reason.as_bytes())?;
            }
        }
    }
    file.flush()
}

/// Reads a file of results.
///
/// # Errors
///
/// The file cannot be read, or is not one of results.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut records = Vec::new();
    loop {
        let kernel = match text(&mut file) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(records),
            kernel => kernel?,
        };
        let variant = text(&mut file)?;
        let outcome = match word(&mut file)? {
            u32::MAX => Err(text(&mut file)?),
            count => Ok((0..count).map(|_| bytes(&mut file)).collect::<io::Result<_>>()?),
        };
        records.push(Record { kernel, variant, outcome });
    }
}

fn block(file: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    file.write_all(&(bytes.len() as u32).to_le_bytes())?;
    file.write_all(bytes)
}

fn word(file: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn bytes(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = word(file)?;
    let mut bytes = Vec::new();
    file.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() == length as usize { Ok(bytes) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn text(file: &mut impl Read) -> io::Result<String> {
    String::from_utf8(bytes(file)?).map_err(|_| io::ErrorKind::InvalidData.into())
}
