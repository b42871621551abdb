//! Module images: the PTX texts in the bytes that a program loads, or the reason why there are
//! none.

use std::ffi::CStr;

use dmr_ptx::fatbin::{self, FatbinError};
use dmr_ptx::{LoadError, Program};

use crate::abi::*;
use crate::kernel::LogBuffers;

/// The first bytes of an image that `cuLinkComplete` makes. The length of the rest follows in 8
/// bytes, then PTX texts, each ended by a null byte.
const LINKED: [u8; 8] = *b"\x7fdmrPTX\x01";
const LINKED_HEADER: usize = LINKED.len() + 8;

const ELF: [u8; 4] = *b"\x7fELF";
const ELF_HEADER: usize = 64;

/// The address of the fat binary in a wrapper (`__fatBinC_Wrapper_t`).
const WRAPPED_AT: usize = 8;
const WRAPPER: usize = 24;

/// The reason why an image cannot be loaded, and the result of the call.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: Code,
    pub(crate) reason: String,
    /// The line of the PTX text.
    pub(crate) line: Option<u32>,
}

impl Refused {
    pub(crate) fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), line: None }
    }
}

impl From<FatbinError> for Refused {
    fn from(error: FatbinError) -> Self {
        let code = match error {
            FatbinError::MachineCode { .. } | FatbinError::TooNew { .. } => ERROR_NO_BINARY_FOR_GPU,
            _ => ERROR_INVALID_IMAGE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LoadError> for Refused {
    fn from(error: LoadError) -> Self {
        let (code, line) = match &error {
            LoadError::Parse { line, .. } => (ERROR_INVALID_PTX, Some(*line)),
            LoadError::Unsupported { line, .. } => (ERROR_NOT_SUPPORTED, Some(*line)),
            _ => (ERROR_INVALID_PTX, None),
        };
        Self { code, reason: error.to_string(), line }
    }
}

/// Returns the bytes of an image: PTX, a fat binary, the one of a wrapper, or an image of this
/// driver; of machine code the header.
///
/// # Safety
///
/// The image is null, a C string, or a binary that is as long as its header says, and lives for
/// `'a`; the address in a wrapper is null or that of a fat binary, which lives for `'a`.
pub(crate) unsafe fn bytes_of<'a>(image: *const u8) -> Result<&'a [u8], Refused> {
    if image.is_null() {
        return Err(Refused::new(ERROR_INVALID_VALUE, "no image"));
    }
    // SAFETY: by this function's contract; one byte after the other is read, and none after a null.
    let head = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
    // SAFETY: a binary has a whole header, and as many bytes after it as that says; none of the
    // magic numbers has a null, so that no C string is taken for one by chance.
    unsafe {
        if head.starts_with(&fatbin::MAGIC.to_le_bytes()) {
            fat_binary(image)
        } else if head.starts_with(&fatbin::WRAPPER_MAGIC.to_le_bytes()) {
            unwrap(std::slice::from_raw_parts(image, WRAPPER))
        } else if head.starts_with(&LINKED) {
            let length = image.add(LINKED.len()).cast::<u64>().read_unaligned();
            Ok(std::slice::from_raw_parts(image, LINKED_HEADER + length as usize))
        } else if head.starts_with(&ELF) {
            Ok(std::slice::from_raw_parts(image, ELF_HEADER))
        } else {
            Ok(head)
        }
    }
}

/// Returns the fat binary of a wrapper; other images as they are.
///
/// # Safety
///
/// The address in a wrapper is null or that of a fat binary, which lives as long as the wrapper.
pub(crate) unsafe fn unwrap(image: &[u8]) -> Result<&[u8], Refused> {
    if !image.starts_with(&fatbin::WRAPPER_MAGIC.to_le_bytes()) {
        return Ok(image);
    }
    let address = image.get(WRAPPED_AT..).and_then(|rest| rest.first_chunk());
    let address = u64::from_le_bytes(address.copied().unwrap_or_default());
    if address == 0 {
        return Err(Refused::new(ERROR_INVALID_IMAGE, "the wrapper has no fat binary"));
    }
    // SAFETY: by this function's contract.
    unsafe { fat_binary(std::ptr::with_exposed_provenance(address as usize)) }
}

/// # Safety
///
/// `image` has the header of a fat binary, and as many bytes as that says, which live for `'a`.
unsafe fn fat_binary<'a>(image: *const u8) -> Result<&'a [u8], Refused> {
    // SAFETY: by this function's contract.
    let head = unsafe { std::slice::from_raw_parts(image, fatbin::HEAD) };
    let size = fatbin::size(head).and_then(|size| isize::try_from(size).ok());
    let wrong = || Refused::new(ERROR_INVALID_IMAGE, "the header of the fat binary is damaged");
    let size = size.ok_or_else(wrong)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(image, size as usize) })
}

/// Reads the PTX texts of an image, for a device of compute capability `sm / 10`.`sm % 10`.
pub(crate) fn texts_in(image: &[u8], sm: u32) -> Result<Vec<String>, Refused> {
    let texts = match image.strip_prefix(&LINKED) {
        Some(linked) => linked.get(8..).unwrap_or_default().into(),
        None if image.starts_with(&fatbin::WRAPPER_MAGIC.to_le_bytes()) => {
            let reason = "a wrapper of a fat binary has an address, which no file can have";
            return Err(Refused::new(ERROR_INVALID_IMAGE, reason));
        }
        None => fatbin::ptx(image, sm)?,
    };
    let mut read = Vec::new();
    for text in texts.split(|&byte| byte == 0).filter(|text| !text.is_empty()) {
        match std::str::from_utf8(text) {
            Ok(text) => read.push(text.to_owned()),
            // The parser says where.
            Err(_) => return Err(parse_error(text)),
        }
    }
    if read.is_empty() {
        return Err(Refused::new(ERROR_INVALID_IMAGE, "the image is empty"));
    }
    Ok(read)
}

/// Returns the error of a text that is not PTX.
fn parse_error(text: &[u8]) -> Refused {
    match dmr_ptx::syntax::parse(text) {
        Err(error) => LoadError::from(error).into(),
        Ok(_) => Refused::new(ERROR_INVALID_PTX, "the text is not UTF-8"),
    }
}

/// Links texts, and returns the program.
pub(crate) fn program_of(texts: &[String]) -> Result<Program, Refused> {
    /// The maximum size of a kernel's parameters (PTX ISA 8.1, sm_70 and later).
    const MAX_PARAMETER_BYTES: usize = 32_764;
    let program = Program::link(&texts.iter().map(String::as_str).collect::<Vec<_>>())?;
    match program.kernels().iter().find(|kernel| kernel.param_bytes > MAX_PARAMETER_BYTES) {
        None => Ok(program),
        Some(kernel) => {
            let name = &kernel.name;
            let bytes = kernel.param_bytes;
            let reason = format!("kernel `{name}`: {bytes} bytes of parameters");
            Err(Refused::new(ERROR_INVALID_PTX, reason))
        }
    }
}

/// PTX texts that become one image.
pub(crate) struct Linker {
    /// The buffers for the program's messages.
    pub(crate) logs: LogBuffers,
    texts: Vec<String>,
    /// The image, once it is complete: programs have its address until they destroy the linker.
    image: Option<Box<[u8]>>,
}

impl Linker {
    pub(crate) fn new(logs: LogBuffers) -> Self {
        Self { logs, texts: Vec::new(), image: None }
    }

    /// Adds texts of PTX.
    pub(crate) fn add(&mut self, texts: Vec<String>) -> Result<(), Refused> {
        if self.image.is_some() {
            return Err(Refused::new(ERROR_INVALID_VALUE, "the image is complete"));
        }
        for text in &texts {
            dmr_ptx::syntax::parse(text.as_bytes()).map_err(LoadError::from)?;
        }
        self.texts.extend(texts);
        Ok(())
    }

    /// Links the texts, and returns the image.
    pub(crate) fn complete(&mut self) -> Result<&[u8], Refused> {
        let texts = &self.texts;
        if self.image.is_none() {
            program_of(texts)?;
        }
        Ok(self.image.get_or_insert_with(|| {
            let length: usize = texts.iter().map(|text| text.len() + 1).sum();
            let mut image = LINKED.to_vec();
            image.extend_from_slice(&(length as u64).to_le_bytes());
            for text in texts {
                image.extend_from_slice(text.as_bytes());
                image.push(0);
            }
            image.into()
        }))
    }
}
