//! A stream lease: one stream of a pool, for one user.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_core::StreamId;

use crate::StreamPool;

/// A stream that no other lease has until this one is dropped.
///
/// Dropping it returns the stream to the pool; its id is refused from then on. The drop does not
/// wait: work submitted to the stream goes on. The lease keeps the pool alive.
#[must_use = "dropping a lease returns the stream"]
pub struct StreamLease {
    pool: Arc<StreamPool>,
    id: StreamId,
    stream: Arc<CudaStream>,
}

impl StreamLease {
    pub(crate) fn new(pool: Arc<StreamPool>, id: StreamId, stream: Arc<CudaStream>) -> Self {
        Self { pool, id, stream }
    }

    /// Returns the stream's id, which is valid until the lease is dropped.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the handle of the stream (a `CUstream`), and lends it.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        self.lent_stream().cu_stream().cast()
    }

    /// Returns cudarc's stream, and lends it.
    pub(crate) fn lent_stream(&self) -> &Arc<CudaStream> {
        self.pool.lend(self.id.slot());
        &self.stream
    }

    /// Returns the pool of the stream.
    #[must_use]
    pub fn pool(&self) -> &Arc<StreamPool> {
        &self.pool
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        self.pool.end_lease(self.id);
    }
}

impl From<&StreamLease> for StreamId {
    fn from(lease: &StreamLease) -> Self {
        lease.id
    }
}

impl fmt::Debug for StreamLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamLease").field(&self.id).finish()
    }
}
