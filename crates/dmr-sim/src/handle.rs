//! Handles of the driver: numbers of a universe and of an object in it.
//!
//! They are never dereferenced, so a stale or foreign handle is an error code, not a crash.

use crate::abi::{ERROR_INVALID_HANDLE, Handle, Outcome};

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Context = 0xC1,
    Stream = 0xC2,
    Event = 0xC3,
    Pool = 0xC4,
    Module = 0xC5,
    Function = 0xC6,
    Graph = 0xC7,
    /// Physical memory: `CUmemGenericAllocationHandle`.
    Memory = 0xC8,
    Linker = 0xC9,
    Library = 0xCA,
    Kernel = 0xCB,
    GraphNode = 0xCC,
    GraphExec = 0xCD,
}

/// Returns the handle of object `index` of `kind` in `universe` (24 bits).
pub(crate) fn encode(kind: Kind, universe: u32, index: u32) -> Handle {
    (kind as u64) << 56 | u64::from(universe & 0xff_ffff) << 32 | u64::from(index)
}

/// Returns universe and index, if the handle is of `kind`.
pub(crate) fn decode(kind: Kind, handle: Handle) -> Outcome<(u32, u32)> {
    if handle >> 56 == kind as u64 {
        Ok(((handle >> 32) as u32 & 0xff_ffff, handle as u32))
    } else {
        Err(ERROR_INVALID_HANDLE)
    }
}
