//! The trait that every backend, pool and adaptor implements.

use std::fmt::Debug;
use std::sync::Arc;

use crate::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, ResourceResult, StreamId,
    StreamPoolId, Usage, UseTracking, VirtualMemory,
};

#[cfg(doc)]
use crate::ResourceError;

/// A source of device memory, ordered on streams.
///
/// Backends talk to the driver, pools sub-allocate another resource, adaptors wrap one. All of
/// them are used from many threads at once, as `&R`, `Box<R>`, `Arc<R>` or
/// `Arc<dyn DeviceMemoryResource>`.
///
/// An adaptor must forward every method; `#[deny(clippy::missing_trait_methods)]` on its `impl` makes the
/// compiler say so.
///
/// In a forked child of the process that made the resource there is no GPU memory: methods that can
/// fail return [`ForkedProcess`](ResourceError::ForkedProcess), the others zero or `false`, and no
/// method waits for a lock or calls the driver. [`Process`](crate::Process) detects this.
pub trait DeviceMemoryResource: Debug + Send + Sync {
    /// Allocates `bytes` bytes for use on `stream`.
    ///
    /// The memory may be used by work submitted to `stream` after this returns. Its content is
    /// undefined. [`StreamId::DEFAULT`] means the pool's own first stream.
    ///
    /// # Errors
    ///
    /// [`InvalidSize`](ResourceError::InvalidSize) for zero bytes, for sizes that overflow when
    /// rounded up, and for more than the device has;
    /// [`OutOfMemory`](ResourceError::OutOfMemory);
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another pool or a returned
    /// lease; [`Driver`](ResourceError::Driver). Nothing has changed then.
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock>;

    /// Gives a block back. It is freed after all work submitted to its home stream so far, and
    /// after every use that was recorded.
    ///
    /// Answers what has become of it: [`Freed`](BlockState::Freed) if nothing stands between its
    /// memory and the next owner; otherwise the resource keeps it for now, and
    /// [`is_retired`](Self::is_retired) says how long.
    ///
    /// # Errors
    ///
    /// The block is inside of the error: nothing is lost, nothing has changed.
    /// [`PartOfBlock`](ResourceError::PartOfBlock) for a [part](DeviceBlock::narrow) of the block that was
    /// allocated: restore the whole, and deallocate that.
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>>;

    /// Makes a block larger in place. Returns whether the block has at least `bytes` bytes now; if it is
    /// `false`, nothing has changed: allocate another block and copy. Never makes a block smaller.
    ///
    /// The block stays the same: address, identity, home stream and the content of its first bytes. The
    /// new bytes count as a write on the home stream, as an allocation does: the home stream waits for
    /// recorded uses of the block on other streams, and their next use of the block waits for it. They
    /// are added to `live` and `total_allocated` of [`usage`](Self::usage). Call it on the resource that
    /// the block was allocated from: the layers around it count what they see.
    ///
    /// Out of memory and out of budget are `false`, not errors. The default body is for a resource that
    /// grows no block.
    ///
    /// # Errors
    ///
    /// Nothing has changed then. [`PartOfBlock`](ResourceError::PartOfBlock) for a
    /// [part](DeviceBlock::narrow) of the block that was allocated;
    /// [`InvalidSize`](ResourceError::InvalidSize), as for [`allocate`](Self::allocate);
    /// [`ForeignBlock`](ResourceError::ForeignBlock);
    /// [`WindowConflict`](ResourceError::WindowConflict) while another stream has a window open on the
    /// block; [`StreamMisuse`](ResourceError::StreamMisuse) if the lease of the home stream was returned;
    /// [`StreamCapturing`](ResourceError::StreamCapturing); [`Driver`](ResourceError::Driver).
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        Ok(bytes <= block.bytes())
    }

    /// Whether this block was given back and is kept until device work, or a quarantine, is done
    /// with it. `false` for a block that is live, freed, or another resource's.
    ///
    /// Makes no driver call and frees nothing: whoever waits for an answer reaps.
    fn is_retired(&self, block: BlockId) -> bool;

    /// The CUDA ordinal of the device that the memory is on.
    fn device_ordinal(&self) -> usize;

    /// The pool whose streams this resource accepts.
    fn stream_pool(&self) -> StreamPoolId;

    /// Bytes asked for in blocks that are live or retired. Exact at every quiescent moment.
    fn bytes_outstanding(&self) -> u64 {
        self.usage().outstanding()
    }

    /// The whole accounting, in bytes. Exact at every quiescent moment.
    fn usage(&self) -> Usage;

    /// Frees what has completed; answers the bytes (as asked for) that it freed.
    ///
    /// Never waits, except on the direct backend, where the driver's own free does.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver): what could not be freed is still retired and accounted
    /// for; call again. [`ForkedProcess`](ResourceError::ForkedProcess). On a lost device it
    /// succeeds, and makes no call to the driver: the memory of everything retired is gone with the
    /// context, and counts as freed. Only the call that finds the device lost may return an error.
    fn try_reap(&self) -> ResourceResult<u64>;

    /// Waits for everything retired whose windows are closed, and frees it; answers the bytes
    /// (as asked for) that it freed.
    ///
    /// # Errors
    ///
    /// As [`try_reap`](Self::try_reap).
    fn reap_pending(&self) -> ResourceResult<u64>;

    /// Gives memory that serves no block back to the driver, as long as more than `keep_bytes`
    /// bytes are reserved. Returns the bytes by which `reserved` of [`usage`](Self::usage) has
    /// decreased.
    ///
    /// First frees what has completed, as [`try_reap`](Self::try_reap) does. Waits no longer than
    /// that, except for up to a millisecond until frees that it has queued itself have executed.
    /// Memory of live and retired blocks stays, and so does free memory that device work may still
    /// use: call [`reap_pending`](Self::reap_pending) before, or trim again later. A resource takes
    /// and gives back memory in pieces (segments, pages): a piece with such memory in it stays as a
    /// whole.
    ///
    /// A resource with an upstream frees its memory there, and then makes the same call on the
    /// upstream, with the same `keep_bytes`: what it has reserved is a part of what the upstream
    /// has. So at most `keep_bytes` bytes stay reserved through the whole stack, besides pieces
    /// that are in use. Where several resources share an upstream, everything that the upstream has
    /// counts.
    ///
    /// On a lost device it succeeds, and makes no call to the driver. The default body is for a
    /// resource that keeps no free memory.
    ///
    /// # Errors
    ///
    /// The first of [`try_reap`](Self::try_reap) or of the driver
    /// ([`Driver`](ResourceError::Driver)). Everything else was given back all the same; the rest
    /// is still reserved: call again.
    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let _ = keep_bytes;
        Ok(0)
    }

    /// Returns what tracks the uses of this resource's blocks, so that they can be used on other streams
    /// than their home streams; `None` if nothing does. The answer is always the same. See
    /// [`UseTrackingExt`](crate::UseTrackingExt) for calls that need no look at it.
    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        None
    }

    /// Addresses and pages apart, for a pool that places pages itself. `None`: this resource, or
    /// what it stands on, has blocks only. The answer is always the same.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}

/// Forwards every method: a method that is added and forgotten here does not compile under
/// clippy.
macro_rules! forward_to_pointee {
    ($($pointer:ty),+) => {$(
        #[deny(clippy::missing_trait_methods)]
        impl<R: DeviceMemoryResource + ?Sized> DeviceMemoryResource for $pointer {
            fn allocate(
                &self,
                bytes: usize,
                stream: StreamId,
                tag: AllocTag,
            ) -> ResourceResult<DeviceBlock> {
                (**self).allocate(bytes, stream, tag)
            }
            fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
                (**self).deallocate(block)
            }
            fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
                (**self).try_grow(block, bytes)
            }
            fn is_retired(&self, block: BlockId) -> bool {
                (**self).is_retired(block)
            }
            fn device_ordinal(&self) -> usize {
                (**self).device_ordinal()
            }
            fn stream_pool(&self) -> StreamPoolId {
                (**self).stream_pool()
            }
            fn bytes_outstanding(&self) -> u64 {
                (**self).bytes_outstanding()
            }
            fn usage(&self) -> Usage {
                (**self).usage()
            }
            fn try_reap(&self) -> ResourceResult<u64> {
                (**self).try_reap()
            }
            fn reap_pending(&self) -> ResourceResult<u64> {
                (**self).reap_pending()
            }
            fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
                (**self).trim_to(keep_bytes)
            }
            fn use_tracking(&self) -> Option<&dyn UseTracking> {
                (**self).use_tracking()
            }
            fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
                (**self).virtual_memory()
            }
        }
    )+};
}

forward_to_pointee!(&R, Box<R>, Arc<R>);
