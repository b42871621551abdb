//! Tracked memory that counts the calls that prepare uses, and a context with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dmr_core::{BlockUse, DeviceMemoryResource, ResourceResult, UseTokens, UseTracking};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{DeviceContext, StreamPool, Tracked};
use dmr_testkit::Rig;

/// A time that no test may need.
pub(crate) const LONG: Duration = Duration::from_secs(100);

#[derive(Debug)]
struct Counting {
    upstream: Tracked<DirectCudaResource>,
    /// The calls that have returned.
    prepared: AtomicUsize,
}

impl DeviceMemoryResource for Counting {
    dmr_core::forward!(
        upstream: allocate, deallocate, give_away, try_grow, is_retired, device_ordinal, stream_pool,
        bytes_outstanding, usage, try_reap, reap_pending, trim_to, allow_access, virtual_memory,
    );

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(self)
    }
}

impl Counting {
    fn tracking(&self) -> &dyn UseTracking {
        self.upstream.use_tracking().expect("upstream tracks uses")
    }
}

impl UseTracking for Counting {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        let prepared = self.tracking().prepare(uses, tokens);
        self.prepared.fetch_add(1, Ordering::Relaxed);
        prepared
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.tracking().finish(tokens)
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.tracking().cancel(tokens)
    }
}

pub(crate) struct Context {
    counting: Arc<Counting>,
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl Context {
    pub(crate) fn new(rig: &Rig) -> Self {
        let streams = Arc::clone(rig.streams());
        let direct = DirectCudaResource::new(Arc::clone(&streams));
        let upstream = Tracked::new(direct, Arc::clone(&streams)).expect("the streams' device");
        let counting = Arc::new(Counting { upstream, prepared: AtomicUsize::new(0) });
        Self { resource: counting.clone(), counting, streams }
    }

    /// Returns how many calls to prepare uses have returned.
    pub(crate) fn prepared(&self) -> usize {
        self.counting.prepared.load(Ordering::Relaxed)
    }

    /// Waits until at least `calls` to prepare uses have returned.
    pub(crate) fn wait_until_prepared(&self, calls: usize) {
        let start = Instant::now();
        while self.prepared() < calls {
            assert!(start.elapsed() < LONG, "{} of {calls} calls", self.prepared());
            std::thread::yield_now();
        }
    }
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}
