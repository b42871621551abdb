//! Handles of the driver: numbers of a universe and of an object in it.
//!
//! They are never dereferenced, so a stale or foreign handle is an error code, not a crash. As
//! signed numbers they are positive, as addresses of a process are: bindings for other languages
//! convert them.

use crate::abi::{ERROR_INVALID_HANDLE, Handle, Outcome};

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Context = 0x41,
    Stream = 0x42,
    Event = 0x43,
    Pool = 0x44,
    Module = 0x45,
    Function = 0x46,
    Graph = 0x47,
    /// Physical memory: `CUmemGenericAllocationHandle`.
    Memory = 0x48,
    Linker = 0x49,
    Library = 0x4A,
    Kernel = 0x4B,
    GraphNode = 0x4C,
    GraphExec = 0x4D,
    UserObject = 0x4E,
}

/// Returns the handle of object `index` of `kind` in `universe` (24 bits).
pub(crate) fn encode(kind: Kind, universe: u32, index: u32) -> Handle {
    (kind as u64) << 56 | u64::from(universe & 0xff_ffff) << 32 | u64::from(index)
}

/// Returns the universe of a handle of any kind.
pub(crate) fn universe(handle: Handle) -> u32 {
    (handle >> 32) as u32 & 0xff_ffff
}

/// Returns universe and index, if the handle is of `kind`.
pub(crate) fn decode(kind: Kind, handle: Handle) -> Outcome<(u32, u32)> {
    if handle >> 56 == kind as u64 {
        Ok((universe(handle), handle as u32))
    } else {
        Err(ERROR_INVALID_HANDLE)
    }
}
