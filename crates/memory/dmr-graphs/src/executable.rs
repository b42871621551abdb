//! Graphs of the driver, destroyed with their owners.

use std::mem::MaybeUninit;

use cudarc::driver::CudaGraph;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUgraphInstantiate_flags};
use dmr_core::ResourceResult;
use dmr_streams::Device;

/// The graph that a capture has left, from which an executable one is made.
pub(crate) struct Template {
    graph: sys::CUgraph,
    device: Device,
}

/// A graph that can be launched.
pub(crate) enum Executable {
    /// One that this crate has made.
    Own(OwnExecutable),
    /// One of cudarc's.
    Adopted(CudaGraph),
}

/// An executable graph of this crate.
pub(crate) struct OwnExecutable {
    handle: sys::CUgraphExec,
    device: Device,
}

// SAFETY: the driver's handles may be used by any thread; calls with one are made one at a time,
// under the lock of its graph. cudarc's graph is a pair of handles and a stream, which is `Send`.
unsafe impl Send for Executable {}

impl Template {
    pub(crate) fn new(graph: sys::CUgraph, device: &Device) -> Self {
        Self { graph, device: device.clone() }
    }

    /// Makes an executable graph.
    pub(crate) fn instantiate(&self) -> ResourceResult<Executable> {
        // A capture of another stream may forbid the call.
        let handle = self.device.relaxed(|_| {
            // SAFETY: the graph is alive, and no other thread has it.
            unsafe { result::graph::instantiate(self.graph, CUgraphInstantiate_flags(0)) }
                .map_err(|error| self.device.driver_error("cuGraphInstantiate", error))
        })?;
        Ok(Executable::Own(OwnExecutable { handle, device: self.device.clone() }))
    }

    /// Changes the parameters of an executable graph to those of this one. Returns `false`, and has
    /// changed nothing, if the two have other nodes or edges.
    pub(crate) fn update(&self, executable: &Executable) -> ResourceResult<bool> {
        let Executable::Own(own) = executable else { return Ok(false) };
        let mut reason = MaybeUninit::uninit();
        let updated = self.device.relaxed(|_| {
            // SAFETY: both graphs are alive, and no other thread uses them.
            Ok(unsafe { sys::cuGraphExecUpdate_v2(own.handle, self.graph, reason.as_mut_ptr()) }
                .result())
        })?;
        match updated {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)) => Ok(false),
            Err(error) => Err(self.device.driver_error("cuGraphExecUpdate", error)),
        }
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if !self.graph.is_null() && self.device.bind().is_ok() {
            // SAFETY: the graph is alive, and this its only destruction.
            let _ = unsafe { result::graph::destroy(self.graph) };
        }
    }
}

impl Executable {
    /// Launches the graph on a stream of its device.
    ///
    /// # Safety
    ///
    /// The stream is alive. No other thread uses the executable graph.
    pub(crate) unsafe fn launch(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        let handle = match self {
            Self::Own(own) => own.handle,
            Self::Adopted(graph) => graph.cu_graph_exec(),
        };
        // SAFETY: the executable graph is alive; the rest is the caller's obligation.
        unsafe { result::graph::launch(handle, stream) }
    }
}

impl Drop for OwnExecutable {
    fn drop(&mut self) {
        // The driver frees it once its replays are done.
        let _ = self.device.relaxed(|_| {
            // SAFETY: it is alive, and this its only destruction.
            let _ = unsafe { result::graph::exec_destroy(self.handle) };
            Ok(())
        });
    }
}
