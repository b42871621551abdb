//! Graphs of the driver, destroyed with their owners.

use std::any::Any;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUgraphInstantiate_flags};
use dmr_core::ResourceResult;
use dmr_core::process::LeakedInChild;
use dmr_streams::Device;

/// The graph that a capture has left, from which an executable one is made.
pub(crate) struct Template {
    graph: sys::CUgraph,
    device: Device,
}

/// A value that destroys an executable graph when it is dropped.
pub(crate) type Owner = Box<dyn Any + Send + Sync>;

/// A graph that can be launched.
pub(crate) struct Executable {
    handle: sys::CUgraphExec,
    device: Device,
    /// The owner of the handle, if it was adopted. It would destroy the graph in a forked child,
    /// too.
    adopted: Option<LeakedInChild<Owner>>,
}

// SAFETY: the driver's handles may be used by any thread; calls with one are made one at a time,
// under the lock of its graph.
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
        Ok(Executable { handle, device: self.device.clone(), adopted: None })
    }

    /// Changes the parameters of an executable graph to those of this one. Returns `false`, and has
    /// changed nothing, if the two have other nodes or edges.
    pub(crate) fn update(&self, executable: &Executable) -> ResourceResult<bool> {
        if executable.adopted.is_some() {
            return Ok(false);
        }
        let mut reason = MaybeUninit::uninit();
        let updated = self.device.relaxed(|_| {
            // SAFETY: both graphs are alive, and no other thread uses them.
            Ok(unsafe {
                sys::cuGraphExecUpdate_v2(executable.handle, self.graph, reason.as_mut_ptr())
            }
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
    /// Takes over an executable graph (a `CUgraphExec`), which lives as long as its owner.
    pub(crate) fn adopt(handle: *mut c_void, owner: Owner, device: &Device) -> Self {
        let adopted = Some(LeakedInChild::new(owner));
        Self { handle: handle.cast(), device: device.clone(), adopted }
    }

    /// Launches the graph on a stream of its device.
    ///
    /// # Safety
    ///
    /// The stream is alive. No other thread uses the executable graph.
    pub(crate) unsafe fn launch(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the executable graph is alive; the rest is the caller's obligation.
        unsafe { result::graph::launch(self.handle, stream) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // The driver frees it once its replays are done.
        let _ = self.device.relaxed(|_| {
            match self.adopted.take() {
                // It does not make the context current itself.
                Some(owner) => drop(owner),
                // SAFETY: it is alive, and this its only destruction.
                None => drop(unsafe { result::graph::exec_destroy(self.handle) }),
            }
            Ok(())
        });
    }
}
