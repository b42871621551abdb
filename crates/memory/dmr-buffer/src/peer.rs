//! Copies between buffers of two stream pools: of two devices, or of one.

use bytemuck::Pod;
use cudarc::driver::result;
use dmr_core::{Access, BlockUse, ResourceError, ResourceResult, StreamId, UseTrackingExt};
use dmr_streams::{LaunchTokens, StreamGuard};
use smallvec::SmallVec;

use crate::owner::{Declared, HostBytes, Use, is_same_stream, submit_beside};
use crate::transfer::Span;
use crate::view::same_len;
use crate::{BufferError, DeviceBuffer, DeviceView, DeviceViewMut};

impl<T: Pod> DeviceViewMut<'_, T> {
    /// Copies the elements of a source of the same length, which may be of another stream pool or
    /// of another device. Does not wait.
    ///
    /// The copy runs on `stream`, after the work that was submitted to `source_stream` so far and
    /// after what it must come after on either device. `source_stream`, a stream of the source's
    /// pool, waits for the copy: what is submitted there later comes after it, and so do later uses
    /// that conflict, on any stream of either pool.
    ///
    /// It needs no peer access. Without, the driver copies through the host, which is slower.
    ///
    /// # Errors
    ///
    /// [`LengthMismatch`](BufferError::LengthMismatch); [`Resource`](BufferError::Resource):
    /// stream, use and driver errors of both pools. If the copy was submitted and `source_stream`
    /// can wait for it no more, nor the host, the source block is never freed, and other streams
    /// are refused its use.
    pub fn copy_from_peer<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        source_stream: impl Into<StreamId>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        let source = source.into();
        same_len(source.len(), self.len())?;
        copy(self.as_view().span(), source.span(), source_stream.into(), stream.into())
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Overwrites all elements, as [`DeviceViewMut::copy_from_peer`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::copy_from_peer`].
    pub fn copy_from_peer<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        source_stream: impl Into<StreamId>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.view_mut().copy_from_peer(source, source_stream, stream)
    }
}

/// Copies `from` to `to`, which are equally long and do not overlap, on `stream`. `home` is a
/// stream of the pool of `from`.
fn copy(to: Span<'_>, from: Span<'_>, home: StreamId, stream: StreamId) -> Result<(), BufferError> {
    debug_assert_eq!(to.bytes, from.bytes);
    let home = &from.enter(home)?;
    let stream = &to.enter(stream)?;
    let (Some(written), Some(read)) = (to.used(Access::Write), from.used(Access::Read)) else {
        return Ok(());
    };
    let both = [written, read];
    let read = tracked(&read, home.id())?;
    let resource = &*from.owner.resource;
    let mut tokens = LaunchTokens::new(home.id());
    tokens.prepare_for(stream, home, resource, &read)?;
    let mut called = false;
    let copied =
        submit_beside(stream, &both[..1], Declared { uses: &both, host: HostBytes::NONE }, || {
            called = true;
            submit_copy(to, from, home, stream)
        });
    let finished = match called {
        true => tokens.finish_for(stream, home, resource),
        false => tokens.cancel(home.pool(), resource),
    };
    Ok(copied.and(finished)?)
}

fn submit_copy(
    to: Span<'_>,
    from: Span<'_>,
    home: &StreamGuard<'_>,
    stream: &StreamGuard<'_>,
) -> ResourceResult<()> {
    let [source, target] = [home, stream].map(|stream| stream.pool().device());
    let contexts = [source, target].map(|device| device.context().cu_ctx());
    // SAFETY: both spans are inside live blocks and equally long, each in the memory of its
    // context; the streams are alive while there are guards.
    let (call, copied) = unsafe {
        if source.same_context(target) {
            let copy = |stream| result::memcpy_dtod_async(to.ptr, from.ptr, to.bytes, stream);
            ("cuMemcpyDtoDAsync", stream.call(copy))
        } else {
            let [source, target] = contexts;
            let copy = |stream| {
                result::memcpy_peer_async(target, to.ptr, source, from.ptr, to.bytes, stream)
            };
            ("cuMemcpyPeerAsync", stream.call(copy))
        }
    };
    copied.map_err(|error| stream.error_between(home, call, error))
}

/// Returns the use, if the resource tracks uses. If it does not, the block must be device memory
/// and `stream` its home stream.
fn tracked(used: &Use<'_>, stream: StreamId) -> ResourceResult<SmallVec<[BlockUse; 1]>> {
    if used.owner.resource.supports_block_use_tracking() {
        return Ok(SmallVec::from_buf([used.used]));
    }
    let block = used.used.block;
    match is_same_stream(block.alloc_stream(), stream) && !block.slot().is_of_host_memory() {
        true => Ok(SmallVec::new()),
        false => Err(ResourceError::not_tracked(stream)),
    }
}
