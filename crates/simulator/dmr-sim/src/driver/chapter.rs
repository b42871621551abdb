//! Helpers of every chapter of the driver's functions: its list of symbols, and results written to
//! the caller's pointers.

use crate::abi::{ERROR_INVALID_VALUE, Outcome};

/// A symbol, and a function that returns its address (which is no constant).
pub(super) type Symbol = (&'static str, fn() -> usize);

/// Lists functions with their names: `chapter![cuInit, cuDeviceGet]`.
macro_rules! chapter {
    ($($name:ident),* $(,)?) => {
        /// The symbols of this chapter.
        pub(super) const SYMBOLS: &[$crate::driver::chapter::Symbol] =
            &[$((stringify!($name), || $name as *const () as usize)),*];
    };
}
pub(super) use chapter;

/// Refuses a call without a pointer for its result, before it has any effect.
pub(super) fn required<T>(to: *mut T) -> Outcome {
    if to.is_null() { Err(ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Writes a result to the caller's pointer.
///
/// # Safety
///
/// `to` is null, or valid for writing a `T`.
pub(super) unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    required(to)?;
    // SAFETY: not null, so valid by this function's contract.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes a result that a program can do without.
///
/// # Safety
///
/// `to` is null, or valid for writing a `T`.
pub(super) unsafe fn put_optional<T>(to: *mut T, value: T) {
    // SAFETY: by this function's contract.
    let _ = unsafe { put(to, value) };
}
