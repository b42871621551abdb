//! Linking: PTX in, an image out that only this driver loads; and the options of the PTX compiler.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{chapter, put, put_optional, required};
use crate::abi::*;
use crate::handle::Kind;
use crate::module::Linker;
use crate::session::{Scope, driver_call};

chapter![cuLinkCreate_v2, cuLinkAddData_v2, cuLinkAddFile_v2, cuLinkComplete, cuLinkDestroy,];

/// The type of input that is linked: `CU_JIT_INPUT_PTX`.
const PTX: c_int = 1;

unsafe extern "C" fn cuLinkCreate_v2(
    _count: c_uint,
    _options: *const c_int,
    _values: *const *mut c_void,
    linker: *mut Handle,
) -> Code {
    driver_call("cuLinkCreate_v2", Scope::Context, |session| {
        required(linker)?;
        session.objects.last_linker += 1;
        let index = session.objects.last_linker;
        session.objects.linkers.insert(index, Linker::default());
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(linker, session.handle(Kind::Linker, index)) }
    })
}

#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
unsafe extern "C" fn cuLinkAddData_v2(
    linker: Handle,
    kind: c_int,
    data: *const c_void,
    size: usize,
    _name: *const c_char,
    count: c_uint,
    options: *const c_int,
    values: *const *mut c_void,
) -> Code {
    if data.is_null() || size > isize::MAX as usize {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: by the driver's contract there are `size` bytes, and `count` options with their values.
    unsafe {
        let image = std::slice::from_raw_parts(data.cast::<u8>(), size);
        let options = JitOptions::read(count, options, values);
        let code = add("cuLinkAddData_v2", linker, kind, image);
        options.report(code);
        code
    }
}

unsafe extern "C" fn cuLinkAddFile_v2(
    linker: Handle,
    kind: c_int,
    path: *const c_char,
    count: c_uint,
    options: *const c_int,
    values: *const *mut c_void,
) -> Code {
    let Some(image) = super::module::read(path) else { return ERROR_FILE_NOT_FOUND };
    let code = add("cuLinkAddFile_v2", linker, kind, &image);
    // SAFETY: by the driver's contract there are `count` options with their values.
    unsafe { JitOptions::read(count, options, values).report(code) };
    code
}

fn add(name: &'static str, linker: Handle, kind: c_int, image: &[u8]) -> Code {
    driver_call(name, Scope::Context, |session| {
        let index = session.index_of(Kind::Linker, linker)?;
        let linker = session.objects.linkers.get_mut(&index).ok_or(ERROR_INVALID_HANDLE)?;
        match kind {
            PTX => linker.add(image.strip_suffix(b"\0").unwrap_or(image)),
            0 | 2..=5 => Err(ERROR_NO_BINARY_FOR_GPU), // machine code, libraries, other languages
            _ => Err(ERROR_INVALID_VALUE),
        }
    })
}

unsafe extern "C" fn cuLinkComplete(
    linker: Handle,
    image: *mut *const c_void,
    bytes: *mut usize,
) -> Code {
    driver_call("cuLinkComplete", Scope::Context, |session| {
        required(image)?;
        let index = session.index_of(Kind::Linker, linker)?;
        let linker = session.objects.linkers.get_mut(&index).ok_or(ERROR_INVALID_HANDLE)?;
        let linked = linker.complete();
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(image, linked.as_ptr().cast())?;
            put_optional(bytes, linked.len());
        }
        Ok(())
    })
}

extern "C" fn cuLinkDestroy(linker: Handle) -> Code {
    driver_call("cuLinkDestroy", Scope::Context, |session| {
        let index = session.index_of(Kind::Linker, linker)?;
        session.objects.linkers.remove(&index).map(drop).ok_or(ERROR_INVALID_HANDLE)
    })
}

/// The buffers for messages of the PTX compiler, from the options of a call (`CUjit_option`).
pub(super) struct JitOptions {
    /// The buffer, its size, and the place of the size in the values of the call: messages, and errors.
    logs: [Log; 2],
}

#[derive(Clone, Copy)]
struct Log {
    buffer: *mut u8,
    bytes: usize,
    size: *mut *mut c_void,
}

impl JitOptions {
    /// # Safety
    ///
    /// `options` and `values` are null, or point to `count` of each.
    pub(super) unsafe fn read(
        count: c_uint,
        options: *const c_int,
        values: *const *mut c_void,
    ) -> Self {
        let none = Log { buffer: std::ptr::null_mut(), bytes: 0, size: std::ptr::null_mut() };
        let mut logs = [none; 2];
        let count = if options.is_null() || values.is_null() { 0 } else { count as usize };
        for i in 0..count {
            // SAFETY: by this function's contract.
            let (option, value) = unsafe { (*options.add(i), *values.add(i)) };
            match option {
                3 | 5 => logs[option as usize / 5].buffer = value.cast(),
                4 | 6 => {
                    let log = &mut logs[option as usize / 6];
                    // Sizes are values cast to pointers.
                    (log.bytes, log.size) =
                        (value as usize as u32 as usize, values.wrapping_add(i).cast_mut());
                }
                _ => {}
            }
        }
        Self { logs }
    }

    /// Writes the error of a call to its buffer, and the number of bytes written to the values of the sizes.
    ///
    /// # Safety
    ///
    /// The buffers are as large as the call has said, and the values are writable, as the driver's contract says.
    pub(super) unsafe fn report(&self, code: Code) {
        let error = match code {
            ERROR_INVALID_PTX => "the simulated driver cannot parse the PTX",
            ERROR_NO_BINARY_FOR_GPU => "the simulated driver loads PTX, and no machine code",
            _ => "",
        };
        for (log, text) in self.logs.iter().zip(["", error]) {
            let text = &text.as_bytes()[..text.len().min(log.bytes.saturating_sub(1))];
            // SAFETY: by this function's contract.
            unsafe {
                if !log.buffer.is_null() && log.bytes > 0 {
                    std::ptr::copy_nonoverlapping(text.as_ptr(), log.buffer, text.len());
                    log.buffer.add(text.len()).write(0);
                }
                if !log.size.is_null() {
                    log.size.write_unaligned(text.len() as *mut c_void);
                }
            }
        }
    }
}
