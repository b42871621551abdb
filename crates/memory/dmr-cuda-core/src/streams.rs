//! Streams and contexts of one side as those of the other.

use std::sync::Arc;

use dmr_core::{ResourceResult, StreamId};
use dmr_streams::{StreamLease, StreamPool};

/// Returns the context of the pool's device as cuda-core's. It keeps the pool alive, and is equal
/// to `cuda_core::Context::new` of this device.
#[must_use]
pub fn context_of(pool: &Arc<StreamPool>) -> Arc<cuda_core::Context> {
    let context = pool.device().context();
    let handle = context.cu_ctx().cast();
    let owner = Arc::clone(pool);
    // SAFETY: the context lives as long as the pool, which is the owner.
    unsafe {
        cuda_core::Context::borrow_with_owner(
            handle,
            context.cu_device(),
            context.ordinal(),
            owner as _,
        )
    }
}

/// Returns a stream of dmr as cuda-core's, for kernels of cuda-core and operations of cuda-async.
/// It keeps the lease.
#[must_use]
pub fn stream_of(lease: &Arc<StreamLease>) -> Arc<cuda_core::Stream> {
    let context = context_of(lease.pool());
    let owner = Arc::clone(lease);
    // SAFETY: the stream lives as long as the lease, which is the owner.
    unsafe { cuda_core::Stream::borrow_with_owner(lease.handle().cast(), &context, owner as _) }
}

/// A stream of cuda-core on which dmr orders memory.
///
/// Dropping it retires the stream: another one can be adopted in its slot. A stream that a launch
/// of dmr still uses then stays adopted, and alive, until its pool is gone. cudarc's stream that
/// [`StreamPool::resolve`] returns for its id must not be used after that.
#[derive(Debug)]
pub struct AdoptedStream {
    // Not public: cudarc's stream, which the lease returns, may not be used after the retirement.
    lease: StreamLease,
    stream: Arc<cuda_core::Stream>,
}

impl AdoptedStream {
    /// Adopts the stream.
    ///
    /// # Errors
    ///
    /// As [`StreamPool::adopt`].
    pub fn new(pool: &Arc<StreamPool>, stream: Arc<cuda_core::Stream>) -> ResourceResult<Self> {
        // SAFETY: cuda-core's stream is alive while its owner is, and destroys the handle when it
        // is dropped. After the retirement the lease is dropped, and nothing else has its handle.
        let lease = unsafe { pool.adopt_raw(stream.cu_stream().cast(), Arc::clone(&stream)) }?;
        Ok(Self { lease, stream })
    }

    /// Returns cuda-core's stream.
    #[must_use]
    pub fn stream(&self) -> &Arc<cuda_core::Stream> {
        &self.stream
    }

    /// Returns the pool that has adopted the stream.
    #[must_use]
    pub fn pool(&self) -> &Arc<StreamPool> {
        self.lease.pool()
    }
}

impl From<&AdoptedStream> for StreamId {
    fn from(adopted: &AdoptedStream) -> Self {
        adopted.lease.id()
    }
}

impl Drop for AdoptedStream {
    fn drop(&mut self) {
        // After a failure the pool keeps the owner, so that the handle stays alive.
        let _ = self.lease.pool().retire_stream(&self.lease);
    }
}
