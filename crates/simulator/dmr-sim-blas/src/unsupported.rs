//! The functions that are not simulated: each returns `CUBLAS_STATUS_NOT_SUPPORTED` and writes its
//! name once.

use std::ffi::c_int;

use crate::status::{not_simulated, status_of};

macro_rules! not_simulated {
    ($($name:ident)*) => {$(
        // A caller passes arguments that are not read: they are in registers or in the caller's
        // part of the stack.
        #[allow(non_snake_case, reason = "the name of cuBLAS")]
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            status_of(|| Err(not_simulated(stringify!($name))))
        }
    )*};
}

include!(concat!(env!("OUT_DIR"), "/unsupported.rs"));
