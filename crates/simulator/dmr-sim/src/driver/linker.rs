//! Linking: PTX in, an image out that only this driver loads.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::kernel::{CompilerLog, Linker, LogBuffers, Refused, image::unwrap};

chapter![cuLinkCreate_v2, cuLinkAddData_v2, cuLinkAddFile_v2, cuLinkComplete, cuLinkDestroy,];

/// The types of input that are linked: `CU_JIT_INPUT_PTX`, `CU_JIT_INPUT_FATBINARY`.
const PTX: c_int = 1;
const FAT_BINARY: c_int = 2;

unsafe extern "C" fn cuLinkCreate_v2(
    count: c_uint,
    options: *const c_int,
    values: *const *mut c_void,
    linker: *mut Handle,
) -> Code {
    // SAFETY: by the driver's contract there are `count` options with their values, and the buffers
    // among them stay valid until the linker is destroyed.
    let logs = unsafe { LogBuffers::read(count, options, values) };
    driver_call("cuLinkCreate_v2", Scope::Context, |session| {
        required(linker)?;
        session.objects.last_linker += 1;
        let index = session.objects.last_linker;
        session.objects.linkers.insert(index, Linker::new(logs));
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
    // SAFETY: by the driver's contract there are `size` bytes, and `count` options with their
    // values; the address in a wrapper is that of a fat binary.
    unsafe {
        let logs = LogBuffers::read(count, options, values);
        let image = std::slice::from_raw_parts(data.cast::<u8>(), size);
        add("cuLinkAddData_v2", linker, kind, unwrap(image), logs)
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
    // SAFETY: as above.
    unsafe {
        let logs = LogBuffers::read(count, options, values);
        add("cuLinkAddFile_v2", linker, kind, Ok(&image), logs)
    }
}

/// Adds the texts of an image.
///
/// # Safety
///
/// The buffers of the linker's options, and `own_logs`, are valid.
unsafe fn add(
    name: &'static str,
    linker: Handle,
    kind: c_int,
    image: Result<&[u8], Refused>,
    own_logs: LogBuffers,
) -> Code {
    let other = match kind {
        PTX | FAT_BINARY => None,
        0 => Some("machine code (a cubin)"),
        3 => Some("an object file of the host"),
        4 => Some("an archive of object files"),
        5 => Some("intermediate code of another version of the compiler (NVVM)"),
        _ => return ERROR_INVALID_VALUE,
    };
    driver_call(name, Scope::Context, |session| {
        let index = session.index_of(Kind::Linker, linker)?;
        let texts = match (other, image) {
            (_, Err(refused)) => Err(refused),
            (None, Ok(image)) => session.texts_in(image),
            (Some(kind), Ok(_)) => {
                let reason = format!("the input is {kind}; the simulated driver links PTX");
                Err(Refused::new(ERROR_NO_BINARY_FOR_GPU, reason))
            }
        };
        let linker = session.objects.linkers.get_mut(&index).ok_or(ERROR_INVALID_HANDLE)?;
        let logs = linker.logs;
        let added = texts.and_then(|texts| linker.add(texts));
        added.map_err(|refused| {
            let mut log = CompilerLog::default();
            let code = session.refuse_image(refused, &mut log);
            // SAFETY: by this function's contract.
            unsafe {
                logs.report(&log);
                own_logs.report(&log);
            }
            code
        })
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
        let logs = linker.logs;
        match linker.complete() {
            // SAFETY: the caller's pointers are null or writable.
            Ok(linked) => unsafe {
                put(image, linked.as_ptr().cast())?;
                put_optional(bytes, linked.len());
                Ok(())
            },
            Err(refused) => {
                let mut log = CompilerLog::default();
                let code = session.refuse_image(refused, &mut log);
                // SAFETY: by the driver's contract the program keeps the buffers of a linker until
                // it destroys it.
                unsafe { logs.report(&log) };
                Err(code)
            }
        }
    })
}

extern "C" fn cuLinkDestroy(linker: Handle) -> Code {
    driver_call("cuLinkDestroy", Scope::Context, |session| {
        let index = session.index_of(Kind::Linker, linker)?;
        session.objects.linkers.remove(&index).map(drop).ok_or(ERROR_INVALID_HANDLE)
    })
}
