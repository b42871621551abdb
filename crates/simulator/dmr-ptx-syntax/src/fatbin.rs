//! Module images: PTX text, alone or in a fat binary, where it may be compressed.
//!
//! The format of fat binaries is not documented; what is read here is what nvcc 11 to 13 writes. A
//! container has a header of 16 bytes and entries, each with a header of its own: PTX or machine
//! code of one architecture, as it is or compressed with LZ4 or Zstandard. With `nvcc -concat` one
//! entry holds several that are compressed together.

mod compressed;
mod error;

use std::borrow::Cow;
use std::fmt;

pub use error::FatbinError;

/// The first bytes of a fat binary.
pub const MAGIC: u32 = 0xBA55_ED50;
/// The first bytes of a wrapper: four bytes of version, and the address of a fat binary, follow.
pub const WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// The bytes of a fat binary that [`size`] needs.
pub const HEAD: usize = 16;

/// The first bytes of an ELF file: machine code.
const ELF: &[u8] = b"\x7fELF";
/// The length of the fields that every entry's header has.
const ENTRY: usize = 64;

const PTX: u16 = 1;
const MACHINE_CODE: u16 = 2;
/// Several entries, compressed together.
const CONCATENATED: u16 = 0x100;

const ARCHITECTURE_SPECIFIC: u64 = 0x10_0000;
const FAMILY_SPECIFIC: u64 = 0x20_0000;

/// Returns the size in bytes of the fat binary that begins with `head`; `None` if it is none.
#[must_use]
pub fn size(head: &[u8]) -> Option<u64> {
    if read_u32(head, 0)? != MAGIC {
        return None;
    }
    u64::from(read_u16(head, 6)?).checked_add(read_u64(head, 8)?)
}

/// Returns the PTX text of a module image, for a device of compute capability `sm / 10`.`sm % 10`
/// (90 for `sm_90`).
///
/// The image is PTX text, which is returned as it is, or a fat binary: of its PTX entries the one
/// is taken that the driver would compile, the newest that the device supports. The text is not
/// parsed, and ends in front of its first NUL byte.
///
/// # Errors
///
/// - [`FatbinError::MachineCode`]: the image has no PTX.
/// - [`FatbinError::TooNew`]: its PTX is for newer devices only.
/// - [`FatbinError::Damaged`], [`FatbinError::Compression`], [`FatbinError::TooLarge`]: it cannot
///   be read.
pub fn ptx(image: &[u8], sm: u32) -> Result<Cow<'_, [u8]>, FatbinError> {
    if image.starts_with(ELF) {
        return Err(FatbinError::MachineCode { found: elf_target(image) });
    }
    if read_u32(image, 0) != Some(MAGIC) {
        return Ok(Cow::Borrowed(until_nul(image)));
    }
    let entries = entries(image)?;
    let texts = || entries.iter().filter(|entry| entry.kind == PTX);
    let supported = texts().filter(|entry| entry.target.runs_on(sm));
    match supported.max_by_key(|entry| entry.target) {
        Some(entry) => entry.text(),
        None if texts().next().is_none() => {
            Err(FatbinError::MachineCode { found: list(entries.iter()) })
        }
        None => Err(FatbinError::TooNew { found: list(texts()), sm }),
    }
}

/// An architecture, in the order of preference: `sm_90` before `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    number: u32,
    variant: Variant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Generic,
    Family,
    Architecture,
}

impl Target {
    fn new(number: u32, flags: u64) -> Self {
        let variant = if flags & ARCHITECTURE_SPECIFIC != 0 {
            Variant::Architecture
        } else if flags & FAMILY_SPECIFIC != 0 {
            Variant::Family
        } else {
            Variant::Generic
        };
        Self { number, variant }
    }

    /// Returns whether PTX of this target can be compiled for the device.
    fn runs_on(self, sm: u32) -> bool {
        match self.variant {
            Variant::Generic => self.number <= sm,
            Variant::Family => self.number <= sm && self.number / 10 == sm / 10,
            Variant::Architecture => self.number == sm,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.variant {
            Variant::Generic => "",
            Variant::Family => "f",
            Variant::Architecture => "a",
        };
        write!(f, "{}{suffix}", self.number)
    }
}

/// One entry of a fat binary.
struct Entry<'i> {
    kind: u16,
    target: Target,
    flags: u64,
    payload: &'i [u8],
    /// The length of the payload once it is not compressed; 0 if it is not compressed.
    length: u64,
    /// The part of the payload that is this entry, if it is one of several.
    part: Option<Part>,
}

/// A range of bytes.
struct Part {
    start: u64,
    length: u64,
}

impl<'i> Entry<'i> {
    fn text(&self) -> Result<Cow<'i, [u8]>, FatbinError> {
        let bytes = compressed::expand(self.payload, self.flags, self.length)?;
        let Some(part) = &self.part else {
            return Ok(match bytes {
                Cow::Borrowed(bytes) => Cow::Borrowed(until_nul(bytes)),
                Cow::Owned(bytes) => Cow::Owned(until_nul(&bytes).to_vec()),
            });
        };
        let bytes = slice(&bytes, part.start, part.length)
            .ok_or(FatbinError::Damaged("an entry is cut off"))?;
        Ok(Cow::Owned(until_nul(bytes).to_vec()))
    }
}

fn entries(image: &[u8]) -> Result<Vec<Entry<'_>>, FatbinError> {
    let cut = || FatbinError::Damaged("it is shorter than its header says");
    let start = u64::from(read_u16(image, 6).ok_or_else(cut)?);
    let length = read_u64(image, 8).ok_or_else(cut)?;
    let mut rest = slice(image, start, length).ok_or_else(cut)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let damaged = || FatbinError::Damaged("an entry is cut off");
        let head_length = u64::from(read_u32(rest, 4).ok_or_else(damaged)?);
        let stored = read_u64(rest, 8).ok_or_else(damaged)?;
        let head =
            slice(rest, 0, head_length).filter(|head| head.len() >= ENTRY).ok_or_else(damaged)?;
        let payload = slice(rest, head_length, stored).ok_or_else(damaged)?;
        add_entries(&mut entries, head, payload).ok_or_else(damaged)?;
        rest = &rest[head.len() + payload.len()..];
    }
    Ok(entries)
}

/// Adds what one header of at least [`ENTRY`] bytes describes; `None` if it is damaged.
fn add_entries<'i>(entries: &mut Vec<Entry<'i>>, head: &'i [u8], payload: &'i [u8]) -> Option<()> {
    let kind = read_u16(head, 0)?;
    let flags = read_u64(head, 40)?;
    let length = read_u64(head, 56)?;
    // The stored payload is padded; the field is 0 if nothing is compressed.
    let used = match read_u32(head, 16)? {
        0 => payload,
        used => slice(payload, 0, used.into())?,
    };
    if kind != CONCATENATED {
        let target = Target::new(read_u32(head, 28)?, flags);
        entries.push(Entry { kind, target, flags, payload: used, length, part: None });
        return Some(());
    }
    let count = read_u32(head, ENTRY)? as usize;
    let records = head.get(ENTRY + 8..)?;
    // A record takes at least as much as a header, so that the count is bounded by the image.
    let size = records.len().checked_div(count)?;
    if size < ENTRY {
        return None;
    }
    for record in records.chunks_exact(size).take(count) {
        let part_flags = read_u64(record, 40)?;
        entries.push(Entry {
            kind: read_u16(record, 0)?,
            target: Target::new(read_u32(record, 28)?, part_flags),
            flags,
            payload: used,
            length,
            part: Some(Part { start: read_u32(record, 4)?.into(), length: read_u64(record, 8)? }),
        });
    }
    Some(())
}

/// Returns the architecture of machine code alone.
fn elf_target(image: &[u8]) -> String {
    let flags = read_u32(image, 48).unwrap_or(0);
    // The version of CUDA's ABI; since 8 the architecture is one byte further up.
    let newer = image.get(8).is_some_and(|&version| version >= 8);
    let number = if newer { flags >> 8 & 0xFF } else { flags & 0xFF };
    format!("machine code for sm_{number}")
}

/// Returns the kinds and architectures of entries, as an error message shows them.
fn list<'e, 'i: 'e>(entries: impl Iterator<Item = &'e Entry<'i>>) -> String {
    let mut names: Vec<String> = Vec::new();
    for entry in entries.take(16) {
        let target = entry.target;
        names.push(match entry.kind {
            PTX => format!("PTX for compute_{target}"),
            MACHINE_CODE => format!("machine code for sm_{target}"),
            _ => format!("intermediate code for compute_{target}"),
        });
    }
    names.dedup();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

fn slice(bytes: &[u8], start: u64, length: u64) -> Option<&[u8]> {
    let start = usize::try_from(start).ok()?;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    bytes.get(start..end)
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
