//! Work of a stream or of a node of a graph, as calls describe it.

use std::ffi::c_void;

use smallvec::{SmallVec, smallvec};

use crate::access::AddressRange;
use crate::check::{Test, Value};

/// Ranges of memory of the same length.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The first byte of each.
    pub(crate) starts: SmallVec<[u64; 1]>,
    /// The bytes of each.
    pub(crate) len: u64,
}

impl Rows {
    /// One range; none if it is empty.
    pub(crate) fn one(at: u64, len: u64) -> Self {
        let starts = if len == 0 { SmallVec::new() } else { smallvec![at] };
        Self { starts, len }
    }

    pub(crate) fn first(&self) -> Option<u64> {
        if self.is_empty() { None } else { self.starts.first().copied() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 || self.starts.is_empty()
    }

    pub(crate) fn ranges(&self) -> SmallVec<[AddressRange; 1]> {
        self.starts.iter().map(|&at| AddressRange::new(at, self.len)).collect()
    }
}

/// A memset: byte `i` of each row becomes byte `i % 4` of the pattern.
#[derive(Clone, Debug)]
pub(crate) struct FillWork {
    pub(crate) rows: Rows,
    pub(crate) pattern: [u8; 4],
}

/// A copy of N rows of equal length.
#[derive(Clone, Debug)]
pub(crate) struct CopyWork {
    pub(crate) to: Rows,
    pub(crate) from: Rows,
    /// `true` if the target is pageable host memory.
    pub(crate) to_host: bool,
    /// `true` if the source is pageable host memory.
    pub(crate) from_host: bool,
    /// `true` if the call names no contexts.
    pub(crate) by_address: bool,
}

impl CopyWork {
    /// Returns the targets and sources of the rows.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.to.starts.iter().copied().zip(self.from.starts.iter().copied())
    }
}

/// An operation of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WordOperation {
    Write(Value),
    Wait(Test),
}

/// A pointer into the calling program.
#[derive(Clone, Copy)]
pub(crate) struct HostPtr(pub(crate) *mut c_void);

// SAFETY: the pointer is only used while the program that passed it must keep it valid: until the
// call returns (pageable memory) or the operation has executed (callbacks), from any thread, as
// the driver's own threads do.
unsafe impl Send for HostPtr {}
// SAFETY: as above; nothing is read through a reference to it.
unsafe impl Sync for HostPtr {}

#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: HostPtr,
}

impl HostCall {
    /// Calls the program's function.
    ///
    /// # Safety
    ///
    /// Once for each `cuLaunchHostFunc`, whose contract is that the function and its data are
    /// valid until then.
    pub(crate) unsafe fn run(self) {
        // SAFETY: by this function's contract.
        unsafe { (self.function)(self.data.0) };
    }
}
