//! Copies and fills, ordered through the resource.

use std::cell::Cell;
use std::ops::Range;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use cudarc::driver::{result, sys};
use dmr_core::error::StreamProblem;
use dmr_core::{Access, BlockId, BlockUse, ByteRange, ResourceError, ResourceResult, StreamId};
use dmr_streams::StreamGuard;

use crate::BufferError;
use crate::owner::{Declared, HostBytes, Kind, Owner, Use, submit, submit_beside};

/// Bytes of a live block; nothing at all if there is no block.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) block: Option<BlockId>,
    pub(crate) ptr: u64,
    pub(crate) bytes: usize,
    /// The range that a use is recorded of.
    pub(crate) used: ByteRange,
    pub(crate) kind: Kind,
}

impl<'a> Span<'a> {
    pub(crate) fn used(&self, access: Access) -> Option<Use<'a>> {
        let used = BlockUse::of_bytes(self.block?, access, self.used);
        Some(Use { owner: self.owner, used, kind: self.kind })
    }

    /// Begins a call on a stream of the span's pool. If the stream is of another device, the error
    /// names the block.
    pub(crate) fn enter(&self, stream: StreamId) -> ResourceResult<StreamGuard<'a>> {
        self.owner.streams.enter(stream).map_err(|error| match (error, self.block) {
            (
                ResourceError::StreamMisuse {
                    problem: StreamProblem::OtherDevice { stream_device, .. },
                    ..
                },
                Some(block),
            ) => ResourceError::other_pool(block, stream, stream_device),
            (error, _) => error,
        })
    }

    /// For operations on no bytes: the stream is checked all the same.
    pub(crate) fn nothing(&self, stream: StreamId) -> Result<(), BufferError> {
        drop(self.enter(stream)?);
        Ok(())
    }
}

/// The result of a copy between host and device.
pub(crate) struct Copied {
    pub(crate) outcome: Result<(), BufferError>,
    /// True if the device no longer touches the host memory.
    pub(crate) host_is_free: bool,
}

/// Overwrites the span with copies of `element`; its length is a multiple of the length of
/// `element`. Records one use, for any number of driver calls.
pub(crate) fn fill(to: Span<'_>, element: &[u8], stream: StreamId) -> Result<(), BufferError> {
    let Some(used) = to.used(Access::Write) else { return to.nothing(stream) };
    let stream = &to.enter(stream)?;
    submit(stream, &[used], || {
        let units = [1, 2, 4].into_iter().filter(|unit| element.len().is_multiple_of(*unit));
        let repeats = |unit: &usize| element.chunks(*unit).all(|part| part == &element[..*unit]);
        if let Some(unit) = units.clone().find(repeats) {
            return set(to, 0..to.bytes, &element[..unit], stream);
        }
        let unit = units.max().unwrap_or(1);
        for (index, part) in element.chunks(unit).enumerate() {
            set(to, index * unit..(index + 1) * unit, part, stream)?;
        }
        let mut written = element.len();
        while written < to.bytes {
            let bytes = written.min(to.bytes - written);
            // SAFETY: both ranges are inside the span, which is inside a live block, and the source
            // ends where the target starts. The stream is alive while there is a guard.
            let copy = |stream| unsafe {
                result::memcpy_dtod_async(to.ptr + written as u64, to.ptr, bytes, stream)
            };
            stream.call(copy).map_err(|error| {
                to.owner.streams.device().driver_error("cuMemcpyDtoDAsync", error)
            })?;
            written += bytes;
        }
        Ok(())
    })?;
    Ok(())
}

/// Fills a range of bytes of a span with copies of 1, 2 or 4 bytes; its length is a multiple of
/// theirs.
fn set(
    span: Span<'_>,
    range: Range<usize>,
    unit: &[u8],
    stream: &StreamGuard<'_>,
) -> ResourceResult<()> {
    let at = span.ptr + range.start as u64;
    let count = range.len() / unit.len();
    // SAFETY: the range is inside the span, which is inside a live block. Blocks are aligned to 256
    // bytes and elements lie at multiples of their size, so the address is a multiple of the unit.
    // The stream is alive while there is a guard.
    let (call, outcome) = unsafe {
        match *unit {
            [a, b, c, d] => {
                let word = u32::from_le_bytes([a, b, c, d]);
                let set = |stream| sys::cuMemsetD32Async(at, word, count, stream).result();
                ("cuMemsetD32Async", stream.call(set))
            }
            [a, b] => {
                let half = u16::from_le_bytes([a, b]);
                let set = |stream| sys::cuMemsetD16Async(at, half, count, stream).result();
                ("cuMemsetD16Async", stream.call(set))
            }
            _ => {
                let set = |stream| sys::cuMemsetD8Async(at, unit[0], count, stream).result();
                ("cuMemsetD8Async", stream.call(set))
            }
        }
    };
    outcome.map_err(|error| span.owner.streams.device().driver_error(call, error))
}

/// Copies `from` to `to`, which are equally long and do not overlap.
pub(crate) fn copy(to: Span<'_>, from: Span<'_>, stream: StreamId) -> Result<(), BufferError> {
    debug_assert_eq!(to.bytes, from.bytes);
    let (Some(written), Some(read)) = (to.used(Access::Write), from.used(Access::Read)) else {
        return to.nothing(stream);
    };
    let device = to.owner.streams.device();
    let stream = &to.enter(stream)?;
    submit(stream, &[written, read], || {
        // SAFETY: both spans are inside live blocks and equally long; the stream is alive while
        // there is a guard.
        let copy =
            |stream| unsafe { result::memcpy_dtod_async(to.ptr, from.ptr, to.bytes, stream) };
        stream.call(copy).map_err(|error| device.driver_error("cuMemcpyDtoDAsync", error))
    })?;
    Ok(())
}

/// Copies between a pinned span and one on the device, which are equally long. Does not wait: the
/// pinned memory is used as a block is.
pub(crate) fn copy_pinned(
    to: Span<'_>,
    from: Span<'_>,
    stream: StreamId,
) -> Result<(), BufferError> {
    debug_assert_eq!(to.bytes, from.bytes);
    let (Some(written), Some(read)) = (to.used(Access::Write), from.used(Access::Read)) else {
        return to.nothing(stream);
    };
    let device = to.owner.streams.device();
    let bytes = to.bytes;
    let stream = &to.enter(stream)?;
    submit(stream, &[written, read], || {
        // SAFETY: both spans are alive and equally long. The pinned one is not freed, nor is the
        // host given access to it, before its recorded uses are done.
        let (call, outcome) = unsafe {
            if to.kind == Kind::Pinned {
                let host = with_exposed_provenance_mut(to.ptr as usize);
                let copy =
                    |stream| sys::cuMemcpyDtoHAsync_v2(host, from.ptr, bytes, stream).result();
                ("cuMemcpyDtoHAsync", stream.call(copy))
            } else {
                let host = with_exposed_provenance(from.ptr as usize);
                let copy = |stream| sys::cuMemcpyHtoDAsync_v2(to.ptr, host, bytes, stream).result();
                ("cuMemcpyHtoDAsync", stream.call(copy))
            }
        };
        outcome.map_err(|error| device.driver_error(call, error))
    })?;
    Ok(())
}

/// Copies from the host, and waits until that is done.
///
/// # Safety
///
/// `from` is valid for reading `to.bytes` bytes, for as long as the device may read them.
pub(crate) unsafe fn upload(to: Span<'_>, from: *const u8, stream: StreamId) -> Copied {
    // SAFETY: by this function's contract; the span is inside a live block.
    let call = |stream| unsafe { sys::cuMemcpyHtoDAsync_v2(to.ptr, from.cast(), to.bytes, stream) };
    with_host(to, from as u64, Access::Write, stream, "cuMemcpyHtoDAsync", call)
}

/// Copies to the host, and waits until that is done.
///
/// # Safety
///
/// `to` is valid for writing `from.bytes` bytes, for as long as the device may write them.
pub(crate) unsafe fn download(to: *mut u8, from: Span<'_>, stream: StreamId) -> Copied {
    // SAFETY: by this function's contract; the span is inside a live block.
    let call =
        |stream| unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr, from.bytes, stream) };
    with_host(from, to as u64, Access::Read, stream, "cuMemcpyDtoHAsync", call)
}

/// The driver waits by itself only where the host memory is pageable, and a slice may be pinned:
/// a part of a pinned buffer, or registered by its owner.
fn with_host(
    span: Span<'_>,
    host: u64,
    access: Access,
    stream: StreamId,
    name: &'static str,
    call: impl Fn(sys::CUstream) -> sys::CUresult,
) -> Copied {
    let Some(used) = span.used(access) else {
        return Copied { outcome: span.nothing(stream), host_is_free: true };
    };
    let device = span.owner.streams.device();
    // Held until the copy is done: the stream is not retired meanwhile.
    let stream = match span.enter(stream) {
        Ok(stream) => stream,
        Err(error) => return Copied { outcome: Err(error.into()), host_is_free: true },
    };
    let pending = PendingCopy { stream: &stream, called: Cell::new(false) };
    let uses = &[used];
    let declared = Declared { uses, host: HostBytes { address: host, bytes: span.bytes } };
    let submitted = submit_beside(&stream, uses, declared, || {
        pending.called.set(true);
        let copy = |stream| call(stream).result();
        stream.call(copy).map_err(|error| device.driver_error(name, error))
    });
    let waited = if pending.called.replace(false) { wait(&stream) } else { Ok(()) };
    let host_is_free = waited.is_ok();
    Copied { outcome: submitted.and(waited).map_err(BufferError::from), host_is_free }
}

/// A copy that may use the host's memory, also when the code of a resource panics after it was
/// called.
struct PendingCopy<'a> {
    stream: &'a StreamGuard<'a>,
    called: Cell<bool>,
}

impl Drop for PendingCopy<'_> {
    fn drop(&mut self) {
        // The caller has the memory next, so the process must not go on if the wait fails, too.
        if self.called.get() && wait(self.stream).is_err() && !self.stream.pool().device().is_lost()
        {
            std::process::abort();
        }
    }
}

/// Waits for the stream, or, if that fails, for an event that it records there. Waiting for the
/// device would end every capture.
fn wait(stream: &StreamGuard<'_>) -> ResourceResult<()> {
    let uses = stream.pool().uses();
    stream.synchronize().or_else(|_| uses.synchronize(&uses.work_so_far(stream.id())?))
}
