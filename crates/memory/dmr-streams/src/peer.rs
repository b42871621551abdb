//! Two stream pools, of one device or of two: the order between their streams, and peer access.

use std::sync::{Mutex, MutexGuard};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUresult};
use dmr_core::error::{PeerProblem, StreamProblem};
use dmr_core::sync::lock;
use dmr_core::{
    BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId, StreamPoolId,
};

use crate::stream_waits::Cause;
use crate::{Device, LaunchTokens, StreamGuard, StreamPool, library};

impl StreamGuard<'_> {
    /// Makes this stream wait for all work submitted to `other` so far, also if that is a stream of
    /// another pool or of another device. Records one event on `other`.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if one of the two captures a graph;
    /// [`DeviceLost`](ResourceError::DeviceLost) for either device;
    /// [`Driver`](ResourceError::Driver).
    pub fn wait_for(&self, other: &StreamGuard<'_>) -> ResourceResult<()> {
        self.wait_because(other, Cause::default())
    }

    /// Makes this stream wait as [`wait_for`](Self::wait_for) does, with the cause for recordings.
    fn wait_because(&self, other: &StreamGuard<'_>, cause: Cause) -> ResourceResult<()> {
        let is_same_pool = self.pool().id() == other.pool().id();
        if is_same_pool && self.slot() == other.slot() {
            return Ok(());
        }
        self.refuse_capture()?;
        other.refuse_capture()?;
        let progress = other.pool().progress();
        match progress.event_on(other)? {
            // The work is done.
            None => Ok(()),
            Some(event) if is_same_pool => progress.make_wait(self, &event, cause),
            Some(event) => progress.make_other_pool_wait(self, other, &event, cause),
        }
    }

    /// Converts the error of a driver call on this stream that also concerns `other`, a stream of
    /// another device. A sticky error is that of one of the two devices: only that one becomes
    /// lost.
    #[cold]
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn error_between(
        &self,
        other: &StreamGuard<'_>,
        call: &'static str,
        DriverError(error): DriverError,
    ) -> ResourceError {
        // These calls concern one device each, and return its sticky error.
        if let Err(error) = self.query_capture().and(other.query_capture()) {
            return error;
        }
        let code = error as i32;
        ResourceError::driver(call, code, library::error_name(code), self.device().ordinal())
    }
}

/// Work on a stream of another stream pool, the *worker*, that uses the memory.
impl LaunchTokens {
    /// Opens windows for `uses` on `home`, the stream of these tokens, and makes `worker` wait for
    /// all that the uses must come after, and for the work submitted to `home` so far. For memory
    /// without use tracking `uses` is empty; it is ordered by `home` alone.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare) and [`StreamGuard::wait_for`]. No window of these uses is open
    /// then.
    pub fn prepare_for<R: DeviceMemoryResource + ?Sized>(
        &mut self,
        worker: &StreamGuard<'_>,
        home: &StreamGuard<'_>,
        resource: &R,
        uses: &[BlockUse],
    ) -> ResourceResult<()> {
        self.prepare(home, resource, &[], uses)?;
        worker.wait_because(home, Cause::of(uses)).inspect_err(|_| {
            // They are open, so closing them is no error.
            let _ = self.cancel(home.pool(), resource);
        })
    }

    /// Makes `home` wait for the work submitted to `worker` so far, records the uses on `home`, and
    /// closes their windows. So later uses of the memory wait for that work. Call it with the
    /// streams and the resource that the uses were prepared with.
    ///
    /// If no event can be recorded or waited for, waits for `worker` instead.
    ///
    /// # Errors
    ///
    /// As [`StreamGuard::wait_for`], if waiting for `worker` fails, too. Then the windows stay open
    /// for good: the work may go on, so no other stream can use the blocks, and their memory is
    /// never freed. After a [`DeviceLost`](ResourceError::DeviceLost) of the worker's device the
    /// work has ended, and the windows are closed. Otherwise as [`finish`](Self::finish).
    pub fn finish_for<R: DeviceMemoryResource + ?Sized>(
        &mut self,
        worker: &StreamGuard<'_>,
        home: &StreamGuard<'_>,
        resource: &R,
    ) -> ResourceResult<()> {
        let Err(error) = home.wait_for(worker) else { return self.finish(home.pool(), resource) };
        let device = worker.pool().device();
        // Synchronising a stream that captures would end its capture.
        let record_wait =
            !device.is_lost() && worker.refuse_capture().is_ok() && worker.synchronize().is_ok();
        if !record_wait && !device.is_lost() {
            // Dropping the tokens leaves the windows open.
            *self = Self::new(home.id());
            return Err(error);
        }
        let finished = self.finish(home.pool(), resource);
        if record_wait { finished } else { finished.and(Err(error)) }
    }
}

impl Device {
    /// Returns whether kernels of this device can access the memory of `peer`, once that is
    /// allowed. `false` for the device itself.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`Driver`](ResourceError::Driver).
    pub fn can_access_peer(&self, peer: &Self) -> ResourceResult<bool> {
        self.refuse_fork()?;
        let mut can = 0;
        let device = self.context().cu_device();
        let peer = peer.context().cu_device();
        // SAFETY: both devices come from the driver.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, device, peer) }
            .result()
            .map_err(|error| self.driver_error("cuDeviceCanAccessPeer", error))?;
        Ok(can != 0)
    }

    /// Makes memory of `cuMemAlloc` in the context of `peer` accessible to kernels of this device,
    /// also memory that is allocated later. Each later `cuMemAlloc` and `cuMemFree` there takes
    /// longer. Succeeds if it has been done before, and for two devices of the same context.
    ///
    /// Mapped memory and the driver's memory pools have access of their own:
    /// [`allow_access`](DeviceMemoryResource::allow_access) of the resource.
    ///
    /// # Errors
    ///
    /// [`NoPeerAccess`](ResourceError::NoPeerAccess); [`Driver`](ResourceError::Driver); as
    /// [`check`](Self::check) of both devices.
    pub fn enable_peer_access(&self, peer: &Self) -> ResourceResult<()> {
        self.check()?;
        peer.check()?;
        if self.same_context(peer) {
            return Ok(());
        }
        self.require_peer_path(peer)?;
        let enabled = self.relaxed(|_| {
            // SAFETY: `peer` keeps its context alive.
            Ok(unsafe { sys::cuCtxEnablePeerAccess(peer.context().cu_ctx(), 0) }.result())
        })?;
        match enabled {
            Ok(()) | Err(DriverError(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => Ok(()),
            Err(error) => Err(self.driver_error("cuCtxEnablePeerAccess", error)),
        }
    }

    /// Returns an error unless [`can_access_peer`](Self::can_access_peer) returns `true`.
    ///
    /// # Errors
    ///
    /// [`NoPeerAccess`](ResourceError::NoPeerAccess), and as
    /// [`can_access_peer`](Self::can_access_peer).
    pub fn require_peer_path(&self, peer: &Self) -> ResourceResult<()> {
        if self.can_access_peer(peer)? {
            return Ok(());
        }
        let problem = PeerProblem::NoPath;
        Err(ResourceError::no_peer_access(self.ordinal(), peer.ordinal(), problem))
    }
}

/// The devices of the stream pools of the process, for messages.
static DEVICES: Mutex<Vec<(StreamPoolId, usize)>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<(StreamPoolId, usize)>> {
    lock(&DEVICES)
}

impl StreamPool {
    /// Adds the pool to those whose device messages can name.
    pub(crate) fn register_device(&self) {
        devices().push((self.id(), self.device().ordinal()));
    }

    /// Removes the pool from them, when its last owner is dropped.
    pub(crate) fn unregister_device(&self) {
        if !self.device().is_forked() {
            devices().retain(|(pool, _)| *pool != self.id());
        }
    }

    /// Returns the problem with a stream of another pool.
    #[cold]
    pub(crate) fn problem_of_other(&self, stream: StreamId) -> StreamProblem {
        StreamProblem::other_pool(self.device_of_other(stream), self.device().ordinal())
    }

    /// Returns the device of a stream of another pool of the process. `None` if that pool was
    /// dropped, and in a forked child, where another thread may have held the lock.
    fn device_of_other(&self, stream: StreamId) -> Option<usize> {
        let pool = stream.pool().filter(|_| !self.device().is_forked())?;
        let devices = devices();
        devices.iter().find(|(known, _)| *known == pool).map(|(_, ordinal)| *ordinal)
    }
}
