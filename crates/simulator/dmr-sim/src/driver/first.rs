//! The first versions of functions that have newer ones of the same arguments.
//!
//! NVIDIA's library exports them, and programs that look functions up by plain names call them.
//! First versions with 32-bit addresses and sizes are refused.

use std::ffi::{c_char, c_int, c_uint};

use super::capture::cuStreamBeginCapture_v2;
use super::chapter;
use super::context::{cuCtxCreate_v2, cuCtxDestroy_v2, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2};
use super::event::cuEventDestroy_v2;
use super::graph_exec::cuGraphInstantiate_v2;
use super::memory::cuMemHostRegister_v2;
use super::stream::cuStreamDestroy_v2;
use crate::abi::*;

chapter![
    cuCtxCreate,
    cuCtxDestroy,
    cuCtxPushCurrent,
    cuCtxPopCurrent,
    cuStreamDestroy,
    cuStreamBeginCapture,
    cuEventDestroy,
    cuMemHostRegister,
    cuGraphInstantiate,
];

unsafe extern "C" fn cuCtxCreate(context: *mut Handle, flags: c_uint, device: CUdevice) -> Code {
    // SAFETY: the same arguments.
    unsafe { cuCtxCreate_v2(context, flags, device) }
}

extern "C" fn cuCtxDestroy(context: Handle) -> Code {
    cuCtxDestroy_v2(context)
}

extern "C" fn cuCtxPushCurrent(context: Handle) -> Code {
    cuCtxPushCurrent_v2(context)
}

unsafe extern "C" fn cuCtxPopCurrent(context: *mut Handle) -> Code {
    // SAFETY: the same argument.
    unsafe { cuCtxPopCurrent_v2(context) }
}

extern "C" fn cuStreamDestroy(stream: Handle) -> Code {
    cuStreamDestroy_v2(stream)
}

/// Begins a capture in `CU_STREAM_CAPTURE_MODE_GLOBAL`, the only mode that this version has.
pub(super) extern "C" fn cuStreamBeginCapture(stream: Handle) -> Code {
    const GLOBAL: c_int = 0;
    cuStreamBeginCapture_v2(stream, GLOBAL)
}

extern "C" fn cuEventDestroy(event: Handle) -> Code {
    cuEventDestroy_v2(event)
}

extern "C" fn cuMemHostRegister(at: u64, bytes: usize, flags: c_uint) -> Code {
    cuMemHostRegister_v2(at, bytes, flags)
}

unsafe extern "C" fn cuGraphInstantiate(
    executable: *mut Handle,
    graph: Handle,
    error_node: *mut Handle,
    log: *mut c_char,
    log_bytes: usize,
) -> Code {
    // SAFETY: the same arguments.
    unsafe { cuGraphInstantiate_v2(executable, graph, error_node, log, log_bytes) }
}
