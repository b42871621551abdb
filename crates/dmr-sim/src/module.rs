//! Loaded modules: PTX texts, their kernels, and their variables in device memory; and images that link PTX.

use std::cell::OnceCell;
use std::ffi::CString;
use std::sync::Arc;

use dmr_ptx::{Global, Program};

use crate::abi::*;
use crate::interpreter::Loaded;
use crate::kernel::Kernel;
use crate::memory::{CopyWork, Rows};
use crate::ptx::{self, KernelEntry, Variable};
use crate::session::Session;

/// A module that a program has loaded.
pub(crate) struct Module {
    pub(crate) entries: Vec<KernelEntry>,
    /// The names of the entries, for programs that ask for them.
    pub(crate) names: Vec<CString>,
    pub(crate) variables: Vec<Placed>,
    texts: Vec<String>,
    /// The texts that the interpreter can load, from the first launch on that needs one: programs whose kernels have
    /// registered bodies pay nothing.
    programs: OnceCell<Vec<Arc<Loaded>>>,
}

/// A variable of a module, in device memory.
pub(crate) struct Placed {
    pub(crate) name: String,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// The first bytes of binary images: ELF (cubin), fat binaries and their wrappers.
const BINARIES: [[u8; 4]; 3] = [*b"\x7fELF", [0x50, 0xed, 0x55, 0xba], [0xb1, 0x43, 0x62, 0x46]];

/// The first bytes of an image that `cuLinkComplete` makes. The length of the rest follows in 8 bytes, then PTX texts,
/// each ended by a null byte.
const LINKED: [u8; 8] = *b"\x7fdmrPTX\x01";
const LINKED_HEADER: usize = LINKED.len() + 8;

/// Reads the PTX texts of an image: PTX, or an image of this driver.
///
/// # Safety
///
/// The image is a C string, or a binary that is as long as its header says.
pub(crate) unsafe fn texts_of(image: *const u8) -> Outcome<Vec<String>> {
    if image.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: by this function's contract; one byte after the other is read, and none after a null.
    let head = unsafe { std::ffi::CStr::from_ptr(image.cast()) }.to_bytes();
    if !head.starts_with(&LINKED) {
        return texts_in(head);
    }
    // SAFETY: an image of this driver has a whole header, and as many bytes after it as that says.
    let bytes = unsafe {
        let length = image.add(LINKED.len()).cast::<u64>().read_unaligned();
        std::slice::from_raw_parts(image, LINKED_HEADER + length as usize)
    };
    texts_in(bytes)
}

/// Reads the PTX texts in the bytes of an image.
pub(crate) fn texts_in(image: &[u8]) -> Outcome<Vec<String>> {
    if BINARIES.iter().any(|magic| image.starts_with(magic)) {
        return Err(ERROR_NO_BINARY_FOR_GPU); // machine code is for real devices
    }
    let texts = match image.starts_with(&LINKED) {
        true => image.get(LINKED_HEADER..).ok_or(ERROR_INVALID_IMAGE)?,
        false => image,
    };
    let texts = std::str::from_utf8(texts).map_err(|_| ERROR_INVALID_IMAGE)?;
    let texts = texts.split('\0').filter(|text| !text.is_empty());
    Ok(texts.map(str::to_owned).collect())
}

/// PTX texts that become one image.
#[derive(Default)]
pub(crate) struct Linker {
    texts: Vec<String>,
    /// The image, once it is complete: programs have its address until they destroy the linker.
    image: Option<Box<[u8]>>,
}

impl Linker {
    /// Adds the texts of an image, if they are PTX.
    pub(crate) fn add(&mut self, image: &[u8]) -> Outcome {
        let texts = texts_in(image)?;
        if self.image.is_some() {
            return Err(ERROR_INVALID_VALUE);
        }
        if texts.is_empty() || texts.iter().any(|text| ptx::parse(text).is_none()) {
            return Err(ERROR_INVALID_PTX);
        }
        self.texts.extend(texts);
        Ok(())
    }

    /// Makes the image.
    pub(crate) fn complete(&mut self) -> &[u8] {
        let texts = &self.texts;
        self.image.get_or_insert_with(|| {
            let length: usize = texts.iter().map(|text| text.len() + 1).sum();
            let mut image = LINKED.to_vec();
            image.extend_from_slice(&(length as u64).to_le_bytes());
            for text in texts {
                image.extend_from_slice(text.as_bytes());
                image.push(0);
            }
            image.into()
        })
    }
}

/// Loads a text into the interpreter; `None` if it is not supported, or a variable has no address.
fn loaded(text: &str, placed: &[Placed]) -> Option<Arc<Loaded>> {
    let program = Program::load(text).ok()?;
    let address = |global: &Global| {
        placed.iter().find(|variable| variable.name == global.name).map(|variable| variable.at)
    };
    let globals: Option<Vec<u64>> = program.globals().iter().map(address).collect();
    Some(Arc::new(Loaded { globals: globals?, program }))
}

impl Session<'_> {
    /// Returns the kernel of a function as PTX, if the interpreter can run it.
    pub(crate) fn interpreted(&self, function: u32, name: &str) -> Option<Kernel> {
        let (module, _) = *self.functions.get(function as usize)?;
        let module = self.modules.get(&module)?;
        let load = |text: &String| loaded(text, &module.variables);
        let programs =
            module.programs.get_or_init(|| module.texts.iter().filter_map(load).collect());
        programs.iter().find_map(|program| program.kernel(name))
    }

    /// Loads a module of these texts onto the device of the calling thread's context.
    pub(crate) fn load_module(&mut self, texts: &[String]) -> Outcome<u32> {
        let (device, legacy) = (self.device()?, self.contexts[self.context()? as usize].legacy);
        let mut entries = Vec::new();
        let mut variables = Vec::new();
        for text in texts {
            let module = ptx::parse(text).ok_or(ERROR_INVALID_PTX)?;
            entries.extend(module.entries);
            variables.extend(module.variables);
        }
        if texts.is_empty() {
            return Err(ERROR_INVALID_IMAGE);
        }
        let name = |entry: &KernelEntry| CString::new(entry.name.as_str()).unwrap_or_default();
        let names = entries.iter().map(name).collect();
        let mut placed = Vec::new();
        for variable in variables {
            match self.place_variable(device, legacy, &variable) {
                Ok(at) => {
                    placed.push(Placed { name: variable.name, at, bytes: variable.bytes });
                }
                Err(code) => {
                    self.free_variables(placed);
                    return Err(code);
                }
            }
        }
        let index = self.next_module;
        self.next_module += 1;
        self.modules.insert(
            index,
            Module {
                entries,
                names,
                variables: placed,
                texts: texts.to_vec(),
                programs: OnceCell::new(),
            },
        );
        Ok(index)
    }

    /// Unloads a module: frees its variables after all work of their device.
    pub(crate) fn unload_module(&mut self, index: u32) -> Outcome {
        let module = self.modules.remove(&index).ok_or(ERROR_INVALID_HANDLE)?;
        self.free_variables(module.variables);
        Ok(())
    }

    /// Allocates a variable, whose initial bytes are there before all work that comes after the load.
    fn place_variable(&mut self, device: usize, legacy: u32, variable: &Variable) -> Outcome<u64> {
        let at = self.allocate_now(device, variable.bytes)?;
        self.name_allocation(at, variable.name.as_str().into());
        self.objects.variables.insert(at);
        let take = |_| {
            let mut bytes = variable.initial.clone();
            bytes.resize(variable.bytes as usize, 0);
            bytes.into()
        };
        let (to, from) = (Rows::one(at, variable.bytes), Rows::one(1, variable.bytes));
        let work = CopyWork { to, from, to_host: false, from_host: true, by_address: false };
        let written = self.copy_in(legacy, &work, take)?;
        self.wait_for(written);
        Ok(at)
    }

    fn free_variables(&mut self, variables: Vec<Placed>) {
        for variable in variables {
            self.objects.variables.remove(&variable.at);
            // It is live: only this driver has freed it, or a reset of its device has.
            let _ = self.free_now(variable.at);
        }
    }
}
