//! The reports of a runtime: its usage, its counts, its live blocks.

use std::ffi::{c_char, c_void};
use std::ptr;

use dmr::dmr_adaptors::statistics::Counter as Counted;
use dmr::dmr_core::DeviceMemoryResource;

use crate::Address;
use crate::runtime::{Live, Runtime};
use crate::status::{Failure, Outcome, Status};
use crate::versioned::Versioned;

/// The version of `dmr_usage`.
pub const DMR_USAGE_VERSION: u32 = 1;
/// The version of `dmr_statistics`.
pub const DMR_STATISTICS_VERSION: u32 = 1;
/// The version of `dmr_block`.
pub const DMR_BLOCK_VERSION: u32 = 1;

/// The bytes of a tag in `dmr_block`, with its NUL.
pub const DMR_TAG_BYTES: usize = 136;

/// The memory of a runtime, in bytes. Exact while no call is in progress.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// `sizeof(dmr_usage)`, in the program.
    pub size: u32,
    /// `DMR_USAGE_VERSION`.
    pub version: u32,
    /// Requested bytes of live blocks.
    pub live: u64,
    /// Requested bytes of retired blocks: freed by the program, and perhaps still used by the
    /// device.
    pub retired: u64,
    /// Bytes that the runtime has reserved from the driver, in use or not.
    pub reserved: u64,
    /// Requested bytes of all allocations so far.
    pub total_allocated: u64,
    /// Requested bytes of all frees so far.
    pub total_freed: u64,
    /// The budget's limit; 0 without a budget.
    pub limit: u64,
    /// The bytes of the budget that are left; 0 without a budget.
    pub remaining: u64,
    /// Bytes of spillable buffers that are in host memory now.
    pub spilled: u64,
}

// SAFETY: as declared; two 32-bit fields, then 64-bit fields.
unsafe impl Versioned for Usage {
    const NAME: &'static str = "dmr_usage";
    const VERSION: u32 = DMR_USAGE_VERSION;
    const FIRST_SIZE: usize = 72;
}

const _: () = assert!(size_of::<Usage>() == 72);

/// A number that goes up and down.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// The current value.
    pub current: u64,
    /// The highest value so far.
    pub peak: u64,
    /// The sum of all that was added.
    pub total: u64,
}

impl From<Counted> for Counter {
    fn from(Counted { current, peak, total }: Counted) -> Self {
        Self { current, peak, total }
    }
}

/// The counts of a runtime, all of one instant.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    /// `sizeof(dmr_statistics)`, in the program.
    pub size: u32,
    /// `DMR_STATISTICS_VERSION`.
    pub version: u32,
    /// Bytes, as requested.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
}

// SAFETY: as declared; two 32-bit fields, then 64-bit fields.
unsafe impl Versioned for Statistics {
    const NAME: &'static str = "dmr_statistics";
    const VERSION: u32 = DMR_STATISTICS_VERSION;
    const FIRST_SIZE: usize = 72;
}

const _: () = assert!(size_of::<Statistics>() == 72);

/// A live block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// `sizeof(dmr_block)`, in the program.
    pub size: u32,
    /// `DMR_BLOCK_VERSION`.
    pub version: u32,
    /// The address of its first byte.
    pub address: Address,
    /// Its bytes, as requested.
    pub bytes: u64,
    /// The bytes that it takes from the pool.
    pub reserved_bytes: u64,
    /// The stream that it was allocated on; null for the legacy default stream.
    pub stream: *mut c_void,
    /// Its tag, which ends with a NUL; empty without one.
    pub tag: [c_char; DMR_TAG_BYTES],
}

// SAFETY: as declared; without padding, because the text is a multiple of 8 bytes.
unsafe impl Versioned for Block {
    const NAME: &'static str = "dmr_block";
    const VERSION: u32 = DMR_BLOCK_VERSION;
    const FIRST_SIZE: usize = 176;
}

const _: () = assert!(size_of::<Block>() == 176);

impl Usage {
    pub(crate) fn of(runtime: &Runtime) -> Self {
        let usage = runtime.gpu().resource().usage();
        let budget = runtime.gpu().budget();
        Self {
            live: usage.live,
            retired: usage.retired,
            reserved: usage.reserved,
            total_allocated: usage.total_allocated,
            total_freed: usage.total_freed,
            limit: budget.map_or(0, |budget| budget.limit()),
            remaining: budget.map_or(0, |budget| budget.remaining()),
            spilled: runtime.gpu().spill().map_or(0, |spill| spill.stats().on_host.bytes),
            ..Self::zeroed(0)
        }
    }
}

impl Statistics {
    pub(crate) fn of(runtime: &Runtime) -> Outcome<Self> {
        let counted = runtime.gpu().statistics().ok_or_else(|| {
            let text = "the runtime counts nothing: set `statistics` in its configuration";
            Failure::new(Status::Unsupported, text)
        })?;
        let counts = counted.snapshot();
        Ok(Self {
            bytes: counts.bytes.into(),
            allocations: counts.allocations.into(),
            frees: counts.frees,
            failures: counts.failures,
            ..Self::zeroed(0)
        })
    }
}

impl Block {
    pub(crate) fn of(live: &Live) -> Self {
        let mut block = Self {
            address: live.block.ptr(),
            bytes: live.block.bytes() as u64,
            reserved_bytes: live.block.reserved_bytes() as u64,
            stream: live.stream.raw(),
            ..Self::zeroed(0)
        };
        let name = live.block.tag().name().as_bytes();
        for (to, from) in block.tag[..DMR_TAG_BYTES - 1].iter_mut().zip(name) {
            *to = *from as c_char;
        }
        block
    }
}

/// Copies a text, cut at a character if the buffer is too small, and a NUL. Returns the bytes of
/// the whole text, without the NUL.
///
/// # Safety
///
/// `buffer` is null, or of `bytes` bytes.
pub(crate) unsafe fn copy_text(text: &str, buffer: *mut c_char, bytes: usize) -> usize {
    if !buffer.is_null() && bytes > 0 {
        let most = text.len().min(bytes - 1);
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        // SAFETY: the caller's obligation; the text and its NUL fit.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), end) };
        // SAFETY: as above.
        unsafe { buffer.add(end).write(0) };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_does_not_fit_is_cut_at_a_character() {
        let copied = |bytes| {
            let mut buffer = [7 as c_char; 8];
            // SAFETY: the buffer has that many bytes.
            assert_eq!(unsafe { copy_text("aéb", buffer.as_mut_ptr(), bytes) }, 4);
            buffer.map(|byte| byte as u8)
        };
        assert_eq!(copied(0), [7; 8]);
        assert_eq!(copied(1), [0, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(copied(3), [b'a', 0, 7, 7, 7, 7, 7, 7]);
        assert_eq!(copied(4), [b'a', 0xc3, 0xa9, 0, 7, 7, 7, 7]);
        assert_eq!(copied(5), [b'a', 0xc3, 0xa9, b'b', 0, 7, 7, 7]);
        // SAFETY: a null buffer is not written.
        assert_eq!(unsafe { copy_text("aéb", ptr::null_mut(), 8) }, 4);
    }
}
