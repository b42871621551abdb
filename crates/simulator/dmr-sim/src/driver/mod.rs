//! The driver's functions, one file per chapter of the CUDA Driver API manual.
//!
//! Each is an `extern "C"` function of the driver's name and type. `refused` has those that are not
//! simulated.

#![allow(non_snake_case, reason = "the driver's names")]

mod arguments;
mod capture;
mod carved;
mod context;
mod copies;
mod copies_3d;
mod device;
mod entry_point;
mod event;
mod execution;
mod first;
mod function;
mod graph;
mod graph_attributes;
mod graph_exec;
mod graph_getters;
mod graph_memory;
mod graph_nodes;
mod graph_params;
mod launch;
mod library;
mod linker;
mod memory;
mod memset;
mod module;
mod occupancy;
mod peer;
mod per_thread;
mod pool;
mod primary;
mod refused;
mod stream;
mod stream_memory;
mod tensor_map;
mod unified;
mod user_objects;
mod virtual_memory;

pub use capture::{is_capture_mode_global, reset_capture_mode};

pub(crate) use execution::launch as launch_kernel;
pub(crate) use refused::is_refused;

use crate::abi::{ERROR_INVALID_VALUE, Outcome};

/// Returns each function of the simulated driver, by its name and address: for a shared library
/// that exports them.
#[must_use]
pub fn driver_functions() -> Vec<(&'static str, usize)> {
    symbols().into_iter().map(|(name, address)| (name, address as usize)).collect()
}

/// Every symbol and its address.
pub(crate) fn symbols() -> Vec<(&'static str, u64)> {
    let chapters = [
        device::SYMBOLS,
        primary::SYMBOLS,
        context::SYMBOLS,
        stream::SYMBOLS,
        event::SYMBOLS,
        memory::SYMBOLS,
        copies::SYMBOLS,
        copies_3d::SYMBOLS,
        memset::SYMBOLS,
        unified::SYMBOLS,
        pool::SYMBOLS,
        peer::SYMBOLS,
        module::SYMBOLS,
        library::SYMBOLS,
        linker::SYMBOLS,
        function::SYMBOLS,
        launch::SYMBOLS,
        occupancy::SYMBOLS,
        first::SYMBOLS,
        entry_point::SYMBOLS,
        per_thread::SYMBOLS,
        capture::SYMBOLS,
        graph::SYMBOLS,
        graph_exec::SYMBOLS,
        graph_getters::SYMBOLS,
        graph_nodes::SYMBOLS,
        graph_params::SYMBOLS,
        graph_attributes::SYMBOLS,
        graph_memory::SYMBOLS,
        user_objects::SYMBOLS,
        virtual_memory::SYMBOLS,
        stream_memory::SYMBOLS,
        carved::SYMBOLS,
        tensor_map::SYMBOLS,
        refused::SYMBOLS,
    ];
    let all = chapters.into_iter().flatten();
    all.map(|(name, address)| (*name, address() as u64)).collect()
}

/// A symbol, and a function that returns its address (which is no constant).
type Symbol = (&'static str, fn() -> usize);

/// Lists functions with their names: `chapter![cuInit, cuDeviceGet]`.
macro_rules! chapter {
    ($($name:ident),* $(,)?) => {
        /// The symbols of this chapter.
        pub(super) const SYMBOLS: &[super::Symbol] =
            &[$((stringify!($name), || $name as *const () as usize)),*];
    };
}
use chapter;

/// Refuses a call without a pointer for its result, before it has any effect.
fn required<T>(to: *mut T) -> Outcome {
    if to.is_null() { Err(ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Writes a result to the caller's pointer.
///
/// # Safety
///
/// `to` is null, or valid for writing a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
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
unsafe fn put_optional<T>(to: *mut T, value: T) {
    // SAFETY: by this function's contract.
    let _ = unsafe { put(to, value) };
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn no_function_is_both_simulated_and_refused_and_the_refused_ones_are_sorted() {
        let names: Vec<_> = super::symbols().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert!(super::refused::SYMBOLS.is_sorted_by_key(|(name, _)| name));
    }
}
