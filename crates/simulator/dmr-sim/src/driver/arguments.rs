//! Execution control: the forms in which a program passes a kernel's arguments.

use std::ffi::c_void;

use crate::abi::*;

/// The two forms in which a program passes a kernel's arguments.
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    /// A pointer to each argument.
    pub(super) params: *const *const c_void,
    /// Keys and values of a buffer with all of them.
    pub(super) extra: *const *const c_void,
}

/// Keys of `extra`: `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`.
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

impl Arguments {
    /// Copies the arguments of a launch.
    ///
    /// # Safety
    ///
    /// The driver's contract: `params` points to a pointer for each parameter of the function, and
    /// each of these to the parameter's bytes; or `extra` is a list of keys and values that ends
    /// with `END`.
    pub(super) unsafe fn read(self, entry: &dmr_ptx::Kernel) -> Outcome<Vec<Box<[u8]>>> {
        if !self.extra.is_null() {
            if !self.params.is_null() {
                return Err(ERROR_INVALID_VALUE); // one form or the other
            }
            // SAFETY: by this function's contract.
            return unsafe { self.read_packed(entry) };
        }
        if self.params.is_null() && !entry.params.is_empty() {
            return Err(ERROR_INVALID_VALUE);
        }
        let argument = |(i, param): (usize, &dmr_ptx::Param)| {
            // SAFETY: by this function's contract.
            unsafe {
                let at = self.params.add(i).read_unaligned().cast::<u8>();
                if at.is_null() {
                    return Err(ERROR_INVALID_VALUE);
                }
                Ok(std::slice::from_raw_parts(at, param.bytes).into())
            }
        };
        entry.params.iter().enumerate().map(argument).collect()
    }

    /// # Safety
    ///
    /// `extra` is a list of keys and values that ends with `END`.
    unsafe fn read_packed(self, entry: &dmr_ptx::Kernel) -> Outcome<Vec<Box<[u8]>>> {
        let mut buffer = std::ptr::null::<u8>();
        let mut bytes = 0;
        let mut at = self.extra;
        loop {
            // SAFETY: by this function's contract: a value follows each key but the last.
            unsafe {
                match at.read_unaligned() as usize {
                    END => break,
                    BUFFER_POINTER => buffer = at.add(1).read_unaligned().cast(),
                    BUFFER_SIZE => {
                        bytes = at.add(1).read_unaligned().cast::<usize>().read_unaligned()
                    }
                    _ => return Err(ERROR_INVALID_VALUE),
                }
                at = at.add(2);
            }
        }
        if bytes < entry.param_bytes || (buffer.is_null() && !entry.params.is_empty()) {
            return Err(ERROR_INVALID_VALUE);
        }
        let argument = |param: &dmr_ptx::Param| {
            // SAFETY: the buffer is as large as the program has said, which is enough.
            unsafe { std::slice::from_raw_parts(buffer.add(param.offset), param.bytes) }.into()
        };
        Ok(entry.params.iter().map(argument).collect())
    }
}
