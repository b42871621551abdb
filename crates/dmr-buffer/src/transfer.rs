//! Copies and fills, ordered through the resource.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use cudarc::driver::{result, sys};
use dmr_core::{Access, BlockId, ResourceResult, StreamId};

use crate::BufferError;
use crate::owner::{Kind, Owner, Use, submit};

/// Bytes of a live block; nothing at all if there is no block.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) block: Option<BlockId>,
    pub(crate) ptr: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
}

impl<'a> Span<'a> {
    fn used(&self, access: Access) -> Option<Use<'a>> {
        Some(Use { owner: self.owner, block: self.block?, access, kind: self.kind })
    }

    /// For operations on no bytes: the stream is checked all the same.
    fn nothing(&self, stream: StreamId) -> Result<(), BufferError> {
        self.owner.streams.resolve_id(stream)?;
        Ok(())
    }
}

/// What became of a copy between host and device.
pub(crate) struct Copied {
    pub(crate) outcome: Result<(), BufferError>,
    /// Whether the device is known not to touch the host memory any more.
    pub(crate) host_is_free: bool,
}

/// Sets every byte.
pub(crate) fn fill_bytes(to: Span<'_>, byte: u8, stream: StreamId) -> Result<(), BufferError> {
    let Some(used) = to.used(Access::Write) else { return to.nothing(stream) };
    let device = to.owner.streams.device();
    submit(stream, &[used], |stream| {
        // SAFETY: the span is inside a live block, the stream is alive.
        unsafe { result::memset_d8_async(to.ptr, byte, to.bytes, stream.cu_stream()) }
            .map_err(|error| device.driver_error("cuMemsetD8Async", error))
    })?;
    Ok(())
}

/// Copies `from` to `to`, which are equally long and do not overlap.
pub(crate) fn copy(to: Span<'_>, from: Span<'_>, stream: StreamId) -> Result<(), BufferError> {
    debug_assert_eq!(to.bytes, from.bytes);
    let (Some(written), Some(read)) = (to.used(Access::Write), from.used(Access::Read)) else {
        return to.nothing(stream);
    };
    let device = to.owner.streams.device();
    submit(stream, &[written, read], |stream| {
        // SAFETY: both spans are inside live blocks and equally long, the stream is alive.
        unsafe { result::memcpy_dtod_async(to.ptr, from.ptr, to.bytes, stream.cu_stream()) }
            .map_err(|error| device.driver_error("cuMemcpyDtoDAsync", error))
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
    submit(stream, &[written, read], |stream| {
        let stream = stream.cu_stream();
        // SAFETY: both spans are alive and equally long. The pinned one is not freed, nor is the
        // host given access to it, before its recorded uses are done.
        let (call, code) = unsafe {
            if to.kind == Kind::Pinned {
                let host = with_exposed_provenance_mut(to.ptr as usize);
                let code = sys::cuMemcpyDtoHAsync_v2(host, from.ptr, bytes, stream);
                ("cuMemcpyDtoHAsync", code)
            } else {
                let host = with_exposed_provenance(from.ptr as usize);
                let code = sys::cuMemcpyHtoDAsync_v2(to.ptr, host, bytes, stream);
                ("cuMemcpyHtoDAsync", code)
            }
        };
        code.result().map_err(|error| device.driver_error(call, error))
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
    with_host(to, Access::Write, stream, "cuMemcpyHtoDAsync", call)
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
    with_host(from, Access::Read, stream, "cuMemcpyDtoHAsync", call)
}

/// The driver waits by itself only where the host memory is pageable, and a slice may be pinned:
/// a part of a pinned buffer, or registered by its owner.
fn with_host(
    span: Span<'_>,
    access: Access,
    stream: StreamId,
    name: &'static str,
    call: impl FnOnce(sys::CUstream) -> sys::CUresult,
) -> Copied {
    let Some(used) = span.used(access) else {
        return Copied { outcome: span.nothing(stream), host_is_free: true };
    };
    let device = span.owner.streams.device();
    let mut called = false;
    let submitted = submit(stream, &[used], |stream| {
        called = true;
        call(stream.cu_stream()).result().map_err(|error| device.driver_error(name, error))
    });
    let waited = if called { wait(span.owner, stream) } else { Ok(()) };
    let host_is_free = waited.is_ok();
    Copied { outcome: submitted.and(waited).map_err(BufferError::from), host_is_free }
}

/// Waits for the stream, or, if that cannot be done, for the device.
fn wait(owner: &Owner, stream: StreamId) -> ResourceResult<()> {
    let waited = owner.streams.synchronize(stream);
    waited.or_else(|_| owner.streams.device().synchronize())
}
