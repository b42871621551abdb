//! The trait that every backend, pool and adaptor implements.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::PeerProblem;
use crate::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DriverAllocation, PeerAccess,
    ResourceError, ResourceResult, StreamId, StreamPoolId, Usage, UseTracking, VirtualMemory,
};

/// The name of a resource that has no method [`give_away`](DeviceMemoryResource::give_away) of its
/// own, in its error.
pub(crate) const UNNAMED: &str = "this resource";

/// A source of device memory, ordered on streams.
///
/// Backends call the driver, pools sub-allocate another resource, adaptors wrap one. All of them
/// can be used from many threads at once, as `&R`, `Box<R>`, `Arc<R>` or
/// `Arc<dyn DeviceMemoryResource>`.
///
/// An adaptor must forward every method; with `#[deny(clippy::missing_trait_methods)]` on its
/// `impl` clippy reports a method that is missing.
///
/// In a forked child of the process that made the resource there is no GPU memory: methods that can
/// fail return [`ForkedProcess`](ResourceError::ForkedProcess), the others zero or `false`, and no
/// method waits for a lock or calls the driver. [`Process`](crate::Process) detects this.
pub trait DeviceMemoryResource: Debug + Send + Sync {
    /// Allocates `bytes` bytes for use on `stream`.
    ///
    /// The memory may be used by work submitted to `stream` after this returns. Its content is
    /// undefined. [`StreamId::DEFAULT`] is the first stream of the resource's own pool.
    ///
    /// # Errors
    ///
    /// [`InvalidSize`](ResourceError::InvalidSize) for zero bytes, for sizes that overflow when
    /// rounded up, and for more than the device has;
    /// [`OutOfMemory`](ResourceError::OutOfMemory);
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another pool or a returned
    /// lease; [`Driver`](ResourceError::Driver). After an error nothing has changed.
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock>;

    /// Deallocates a block. Its memory is freed after all work submitted to its home stream so far,
    /// and after every recorded use.
    ///
    /// Returns the new state of the block: [`Freed`](BlockState::Freed) if its memory can be
    /// allocated again at once. Otherwise the resource keeps the block, and
    /// [`is_retired`](Self::is_retired) returns `true` until its memory is freed.
    ///
    /// # Errors
    ///
    /// The error contains the block, and nothing has changed. A layer compares that block with the
    /// one that it passed: see [`upstream`](crate::upstream).
    /// [`PartOfBlock`](ResourceError::PartOfBlock) for a [part](DeviceBlock::narrow) of the block
    /// that was allocated: restore the whole, and deallocate that.
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>>;

    /// Gives a block's memory away: it belongs to the caller, for whom the driver frees it, and
    /// this resource has forgotten it. Work that is submitted to the block's home stream from now
    /// on comes after all recorded uses. Does not wait.
    ///
    /// [`usage`](Self::usage) counts the block as freed, and a layer does with it what it does with
    /// a block that is deallocated and freed at once.
    ///
    /// The default body is for a resource whose blocks are not allocations of the driver.
    ///
    /// # Errors
    ///
    /// The error contains the block, and nothing has changed, except that the home stream may have
    /// been made to wait. [`NotGivenAway`](ResourceError::NotGivenAway) if the block is not an
    /// allocation of the driver; [`PartOfBlock`](ResourceError::PartOfBlock), as for
    /// [`deallocate`](Self::deallocate); [`WindowConflict`](ResourceError::WindowConflict) while a
    /// window is open on the block; [`StreamMisuse`](ResourceError::StreamMisuse) if the home
    /// stream was retired; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver).
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let refused = ResourceError::not_given_away(&block, UNNAMED);
        Err(DeallocateError::new(refused, block))
    }

    /// Makes a block larger in place. Returns whether the block has at least `bytes` bytes now; if
    /// it is `false`, nothing has changed: allocate another block and copy. Never makes a block
    /// smaller.
    ///
    /// The block stays the same: address, identity, home stream and the content of its first bytes.
    /// The new bytes count as a write on the home stream, as an allocation does: the home stream
    /// waits for recorded uses of the block on other streams, and their next use of the block waits
    /// for it. They are added to `live` and `total_allocated` of [`usage`](Self::usage). Call it on
    /// the resource that the block was allocated from: the layers around it count what they see.
    ///
    /// Out of memory and out of budget are `false`, not errors. The default body is for a resource
    /// that grows no block.
    ///
    /// # Errors
    ///
    /// After an error nothing has changed. [`PartOfBlock`](ResourceError::PartOfBlock) for a
    /// [part](DeviceBlock::narrow) of the block that was allocated;
    /// [`InvalidSize`](ResourceError::InvalidSize), as for [`allocate`](Self::allocate);
    /// [`ForeignBlock`](ResourceError::ForeignBlock);
    /// [`WindowConflict`](ResourceError::WindowConflict) while another stream has a window open on
    /// the block; [`StreamMisuse`](ResourceError::StreamMisuse) if the lease of the home stream was
    /// returned; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver).
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        Ok(bytes <= block.bytes())
    }

    /// Returns whether this block was deallocated and is kept until device work, or a quarantine,
    /// is done with it. `false` for a block that is live, freed, or another resource's.
    ///
    /// Makes no driver call and frees nothing: to make progress, reap.
    fn is_retired(&self, block: BlockId) -> bool;

    /// Returns the CUDA ordinal of the device that the memory is on.
    fn device_ordinal(&self) -> usize;

    /// Returns the pool whose streams this resource accepts.
    fn stream_pool(&self) -> StreamPoolId;

    /// Returns the requested bytes of all live and retired blocks. Exact while no call is in
    /// progress.
    fn bytes_outstanding(&self) -> u64 {
        self.usage().outstanding()
    }

    /// Returns the accounting, in bytes. Exact while no call is in progress.
    fn usage(&self) -> Usage;

    /// Frees the retired blocks whose work has completed. Returns their requested bytes.
    ///
    /// Never waits, except on the direct backend, where the driver's own free does.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver): blocks that could not be freed are still retired and
    /// counted; call again. [`ForkedProcess`](ResourceError::ForkedProcess). On a lost device it
    /// succeeds, and makes no driver call: the memory of all retired blocks is lost with the
    /// context, and counts as freed. Only the call that detects the loss may return an error.
    fn try_reap(&self) -> ResourceResult<u64>;

    /// Waits for the work of all retired blocks whose windows are closed, and frees them. Returns
    /// their requested bytes.
    ///
    /// # Errors
    ///
    /// As [`try_reap`](Self::try_reap).
    fn reap_pending(&self) -> ResourceResult<u64>;

    /// Returns unused memory to the driver while more than `keep_bytes` bytes are reserved. Returns
    /// the bytes by which `reserved` of [`usage`](Self::usage) has decreased.
    ///
    /// First frees what has completed, as [`try_reap`](Self::try_reap) does. Waits no longer than
    /// that, except for up to a millisecond until frees that it has queued itself have executed.
    /// Memory of live and retired blocks stays reserved, and so does free memory that device work
    /// may still use: call [`reap_pending`](Self::reap_pending) before, or trim again later. Memory
    /// is reserved and returned in whole segments or pages: one that has such memory in it stays.
    ///
    /// A resource with an upstream frees its memory there, and then makes the same call on the
    /// upstream, with the same `keep_bytes`: the bytes that it has reserved are a part of those of
    /// its upstream. So at most `keep_bytes` bytes stay reserved through the whole stack, besides
    /// segments and pages that are in use. Where several resources share an upstream, all bytes of
    /// the upstream count.
    ///
    /// On a lost device it succeeds, and makes no driver call. The default body is for a resource
    /// that keeps no free memory.
    ///
    /// # Errors
    ///
    /// The first error of [`try_reap`](Self::try_reap) or of the driver
    /// ([`Driver`](ResourceError::Driver)). All other memory was returned all the same; the rest
    /// is still reserved: call again.
    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let _ = keep_bytes;
        Ok(0)
    }

    /// Makes all memory of this resource accessible to kernels of another device: the blocks and
    /// pages that it has now, and those that it allocates, maps or moves later. A second call for
    /// the same device changes nothing. Peer access is not needed for copies.
    ///
    /// [`PeerAccess::ByContext`] leaves the access to the contexts of the two devices.
    ///
    /// The default body is for a resource that cannot do it.
    ///
    /// # Errors
    ///
    /// [`NoPeerAccess`](ResourceError::NoPeerAccess);
    /// [`Driver`](ResourceError::Driver): some of the memory may be accessible; call again.
    fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
        let problem = PeerProblem::NotSupported;
        Err(ResourceError::no_peer_access(device_ordinal, self.device_ordinal(), problem))
    }

    /// Returns the use tracking of this resource's blocks, with which they can be used on other
    /// streams than their home streams; `None` if there is none. Every call returns the same. The
    /// methods of [`UseTrackingExt`](crate::UseTrackingExt) make this call themselves.
    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        None
    }

    /// Returns the virtual memory management of this resource, for a pool that maps pages itself;
    /// `None` if this resource or its upstream has blocks only. Every call returns the same.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}

/// Forwards every method: clippy refuses an implementation that lacks one.
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
            fn give_away(
                &self,
                block: DeviceBlock,
            ) -> Result<DriverAllocation, Box<DeallocateError>> {
                (**self).give_away(block)
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
            fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
                (**self).allow_access(device_ordinal)
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
