//! Thin driver calls about graphs.
#![allow(unsafe_code)] // the driver is called directly

use std::ptr::null_mut;

use cudarc::driver::sys::{
    self, CUDA_MEMSET_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream,
    CUstreamCaptureMode,
};

use CUresult::CUDA_SUCCESS;

pub(crate) fn begin(stream: CUstream) {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the simulator checks its arguments, and out-pointers are to live locals; so for all
    // calls here.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }, CUDA_SUCCESS);
}

pub(crate) fn end(stream: CUstream) -> Result<CUgraph, CUresult> {
    let mut graph = null_mut();
    // SAFETY: as above.
    match unsafe { sys::cuStreamEndCapture(stream, &mut graph) } {
        CUDA_SUCCESS => Ok(graph),
        code => Err(code),
    }
}

pub(crate) fn instantiate(graph: CUgraph) -> Result<CUgraphExec, CUresult> {
    let mut executable = null_mut();
    // SAFETY: as above.
    match unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) } {
        CUDA_SUCCESS => Ok(executable),
        code => Err(code),
    }
}

pub(crate) fn run(executable: CUgraphExec, stream: CUstream) {
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphLaunch(executable, stream) }, CUDA_SUCCESS);
}

pub(crate) fn graph() -> CUgraph {
    let mut graph = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphCreate(&mut graph, 0) }, CUDA_SUCCESS);
    graph
}

/// Adds a memset of `len` bytes.
pub(crate) fn fill_node(
    graph: CUgraph,
    after: &[CUgraphNode],
    at: u64,
    byte: u8,
    len: usize,
) -> CUgraphNode {
    let value = u32::from(byte);
    let params =
        CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 0, value, elementSize: 1, width: len, height: 1 };
    let mut node = null_mut();
    let context = null_mut();
    // SAFETY: as above.
    let code = unsafe {
        sys::cuGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), &params, context)
    };
    assert_eq!(code, CUDA_SUCCESS);
    node
}
