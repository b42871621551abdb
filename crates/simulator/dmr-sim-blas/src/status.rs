//! The statuses of cuBLAS, and how a call returns one.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

macro_rules! statuses {
    ($($name:ident $code:literal $text:literal)*) => {
        /// A status that is not success.
        #[allow(dead_code, reason = "not all are returned")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Status {
            $($name = $code,)*
        }

        fn name(status: c_int) -> &'static CStr {
            match status {
                0 => c"CUBLAS_STATUS_SUCCESS",
                $($code => $text,)*
                _ => c"CUBLAS_STATUS_UNKNOWN",
            }
        }
    };
}

statuses! {
    NotInitialized 1 c"CUBLAS_STATUS_NOT_INITIALIZED"
    AllocFailed 3 c"CUBLAS_STATUS_ALLOC_FAILED"
    InvalidValue 7 c"CUBLAS_STATUS_INVALID_VALUE"
    ArchMismatch 8 c"CUBLAS_STATUS_ARCH_MISMATCH"
    MappingError 11 c"CUBLAS_STATUS_MAPPING_ERROR"
    ExecutionFailed 13 c"CUBLAS_STATUS_EXECUTION_FAILED"
    InternalError 14 c"CUBLAS_STATUS_INTERNAL_ERROR"
    NotSupported 15 c"CUBLAS_STATUS_NOT_SUPPORTED"
    LicenseError 16 c"CUBLAS_STATUS_LICENSE_ERROR"
}

/// Runs the body of an exported function, which no panic leaves.
pub(crate) fn status_of(body: impl FnOnce() -> Result<(), Status>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status as c_int,
        Err(_) => Status::InternalError as c_int,
    }
}

/// Returns an error unless the condition is met.
pub(crate) fn require(condition: bool) -> Result<(), Status> {
    if condition { Ok(()) } else { Err(Status::InvalidValue) }
}

/// Writes once what is not simulated, and returns the status for it.
pub(crate) fn not_simulated(what: &str) -> Status {
    static WRITTEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).insert(what.to_owned()) {
        let _ = writeln!(std::io::stderr(), "dmr-sim: {what} is not simulated");
    }
    Status::NotSupported
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(status: c_int) -> *const c_char {
    name(status).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(status: c_int) -> *const c_char {
    name(status).as_ptr()
}
