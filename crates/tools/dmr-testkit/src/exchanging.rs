//! [`Exchanging`]: a resource that keeps a block and returns another one, as any safe
//! implementation may.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError,
    ResourceResult, StreamId, forward,
};

/// Forwards to another resource, except for the calls that return the planned block instead.
#[derive(Debug)]
pub struct Exchanging<R> {
    upstream: R,
    allocated: Mutex<Option<DeviceBlock>>,
    refused: Mutex<Option<DeviceBlock>>,
    kept: Mutex<Vec<DeviceBlock>>,
    deallocations: AtomicUsize,
}

impl<R> Exchanging<R> {
    /// Wraps a resource. No call is changed before a block is planned.
    pub fn new(upstream: R) -> Self {
        Self {
            upstream,
            allocated: Mutex::default(),
            refused: Mutex::default(),
            kept: Mutex::default(),
            deallocations: AtomicUsize::new(0),
        }
    }

    /// The next `allocate` returns `block`.
    pub fn allocate_instead(&self, block: DeviceBlock) {
        *self.allocated.lock().expect("no panic") = Some(block);
    }

    /// The next `deallocate` keeps the block that it is given, and its refusal contains `block`.
    pub fn refuse_with(&self, block: DeviceBlock) {
        *self.refused.lock().expect("no panic") = Some(block);
    }

    /// Takes the blocks that were kept.
    pub fn take_kept(&self) -> Vec<DeviceBlock> {
        std::mem::take(&mut *self.kept.lock().expect("no panic"))
    }

    /// Returns the number of calls of `deallocate`.
    pub fn deallocations(&self) -> usize {
        self.deallocations.load(Ordering::SeqCst)
    }

    /// Returns the wrapped resource.
    pub const fn upstream(&self) -> &R {
        &self.upstream
    }
}

impl<R: DeviceMemoryResource> DeviceMemoryResource for Exchanging<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let planned = self.allocated.lock().expect("no panic").take();
        planned.map_or_else(|| self.upstream.allocate(bytes, stream, tag), Ok)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.deallocations.fetch_add(1, Ordering::SeqCst);
        let Some(other) = self.refused.lock().expect("no panic").take() else {
            return self.upstream.deallocate(block);
        };
        self.kept.lock().expect("no panic").push(block);
        Err(DeallocateError::new(ResourceError::zero_size(), other))
    }

    forward!(
        upstream: is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        try_reap,
        reap_pending,
        trim_to,
        allow_access,
        use_tracking,
        virtual_memory,
    );
}
