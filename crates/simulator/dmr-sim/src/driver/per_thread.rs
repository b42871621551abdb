//! Per-thread default streams: the functions that a program calls which is compiled with
//! `CUDA_API_PER_THREAD_DEFAULT_STREAM`.
//!
//! Each is the function without the suffix, except that the null stream means the calling thread's
//! own. `_ptsz` functions have a stream among their arguments, `_ptds` functions use the default
//! stream.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::copies_3d::{Copy2D, Copy3D};
use super::graph_exec::InstantiateParams;
use super::launch::LaunchConfig;
use super::{
    capture, copies, copies_3d, event, first, graph_exec, launch, memset, pool, stream,
    stream_memory, unified,
};
use crate::abi::*;
use crate::machine::PerThreadDefault;

macro_rules! per_thread {
    ($($name:ident = $chapter:ident::$function:ident($($argument:ident: $type:ty),*);)*) => {
        $(unsafe extern "C" fn $name($($argument: $type),*) -> Code {
            let _default = PerThreadDefault::enter();
            #[allow(unused_unsafe, reason = "some of the functions are safe")]
            // SAFETY: the same arguments.
            unsafe {
                $chapter::$function($($argument),*)
            }
        })*

        super::chapter::chapter![$($name),*];
    };
}

per_thread! {
    cuStreamBeginCapture_v2_ptsz = capture::cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamEndCapture_ptsz = capture::cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuStreamGetCaptureInfo_ptsz = capture::cuStreamGetCaptureInfo(
        stream: Handle, status: *mut c_int, id: *mut c_ulonglong
    );
    cuStreamGetCaptureInfo_v2_ptsz = capture::cuStreamGetCaptureInfo_v2(
        stream: Handle, status: *mut c_int, id: *mut c_ulonglong, graph: *mut Handle,
        nodes: *mut *const Handle, count: *mut usize
    );
    cuStreamGetCaptureInfo_v3_ptsz = capture::cuStreamGetCaptureInfo_v3(
        stream: Handle, status: *mut c_int, id: *mut c_ulonglong, graph: *mut Handle,
        nodes: *mut *const Handle, edges: *mut *const c_void, count: *mut usize
    );
    cuStreamIsCapturing_ptsz = capture::cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    cuStreamUpdateCaptureDependencies_ptsz = capture::cuStreamUpdateCaptureDependencies(
        stream: Handle, nodes: *const Handle, count: usize, flags: c_uint
    );
    cuStreamUpdateCaptureDependencies_v2_ptsz = capture::cuStreamUpdateCaptureDependencies_v2(
        stream: Handle, nodes: *const Handle, data: *const c_void, count: usize, flags: c_uint
    );

    cuMemcpy_ptds = copies::cuMemcpy(to: u64, from: u64, len: usize);
    cuMemcpyAsync_ptsz = copies::cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2_ptsz = copies::cuMemcpyDtoDAsync_v2(
        to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: Handle
    );
    cuMemcpyDtoD_v2_ptds = copies::cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, len: usize);
    cuMemcpyDtoHAsync_v2_ptsz = copies::cuMemcpyDtoHAsync_v2(
        to: u64, from: CUdeviceptr, len: usize, stream: Handle
    );
    cuMemcpyDtoH_v2_ptds = copies::cuMemcpyDtoH_v2(to: u64, from: CUdeviceptr, len: usize);
    cuMemcpyHtoDAsync_v2_ptsz = copies::cuMemcpyHtoDAsync_v2(
        to: CUdeviceptr, from: u64, len: usize, stream: Handle
    );
    cuMemcpyHtoD_v2_ptds = copies::cuMemcpyHtoD_v2(to: CUdeviceptr, from: u64, len: usize);
    cuMemcpyPeer_ptds = copies::cuMemcpyPeer(
        to: CUdeviceptr, to_context: Handle, from: CUdeviceptr, from_context: Handle, len: usize
    );
    cuMemcpyPeerAsync_ptsz = copies::cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: Handle, from: CUdeviceptr, from_context: Handle, len: usize,
        stream: Handle
    );

    cuMemcpy2DAsync_v2_ptsz = copies_3d::cuMemcpy2DAsync_v2(
        description: *const Copy2D, stream: Handle
    );
    cuMemcpy2DUnaligned_v2_ptds = copies_3d::cuMemcpy2DUnaligned_v2(description: *const Copy2D);
    cuMemcpy2D_v2_ptds = copies_3d::cuMemcpy2D_v2(description: *const Copy2D);
    cuMemcpy3DAsync_v2_ptsz = copies_3d::cuMemcpy3DAsync_v2(
        description: *const Copy3D, stream: Handle
    );
    cuMemcpy3DPeer_ptds = copies_3d::cuMemcpy3DPeer(description: *const Copy3D);
    cuMemcpy3DPeerAsync_ptsz = copies_3d::cuMemcpy3DPeerAsync(
        description: *const Copy3D, stream: Handle
    );
    cuMemcpy3D_v2_ptds = copies_3d::cuMemcpy3D_v2(description: *const Copy3D);

    cuEventRecord_ptsz = event::cuEventRecord(event: Handle, stream: Handle);
    cuEventRecordWithFlags_ptsz = event::cuEventRecordWithFlags(
        event: Handle, stream: Handle, flags: c_uint
    );

    cuStreamBeginCapture_ptsz = first::cuStreamBeginCapture(stream: Handle);

    cuGraphInstantiateWithParams_ptsz = graph_exec::cuGraphInstantiateWithParams(
        executable: *mut Handle, graph: Handle, params: *mut InstantiateParams
    );
    cuGraphLaunch_ptsz = graph_exec::cuGraphLaunch(executable: Handle, stream: Handle);
    cuGraphUpload_ptsz = graph_exec::cuGraphUpload(executable: Handle, stream: Handle);

    cuLaunchCooperativeKernel_ptsz = launch::cuLaunchCooperativeKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        params: *const *const c_void
    );
    cuLaunchKernel_ptsz = launch::cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Handle,
        params: *const *const c_void, extra: *const *const c_void
    );
    cuLaunchKernelEx_ptsz = launch::cuLaunchKernelEx(
        config: *const LaunchConfig, function: Handle, params: *const *const c_void,
        extra: *const *const c_void
    );

    cuMemsetD16Async_ptsz = memset::cuMemsetD16Async(
        at: CUdeviceptr, value: u16, count: usize, stream: Handle
    );
    cuMemsetD16_v2_ptds = memset::cuMemsetD16_v2(at: CUdeviceptr, value: u16, count: usize);
    cuMemsetD2D16Async_ptsz = memset::cuMemsetD2D16Async(
        at: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: Handle
    );
    cuMemsetD2D16_v2_ptds = memset::cuMemsetD2D16_v2(
        at: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize
    );
    cuMemsetD2D32Async_ptsz = memset::cuMemsetD2D32Async(
        at: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: Handle
    );
    cuMemsetD2D32_v2_ptds = memset::cuMemsetD2D32_v2(
        at: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize
    );
    cuMemsetD2D8Async_ptsz = memset::cuMemsetD2D8Async(
        at: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: Handle
    );
    cuMemsetD2D8_v2_ptds = memset::cuMemsetD2D8_v2(
        at: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize
    );
    cuMemsetD32Async_ptsz = memset::cuMemsetD32Async(
        at: CUdeviceptr, value: u32, count: usize, stream: Handle
    );
    cuMemsetD32_v2_ptds = memset::cuMemsetD32_v2(at: CUdeviceptr, value: u32, count: usize);
    cuMemsetD8Async_ptsz = memset::cuMemsetD8Async(
        at: CUdeviceptr, value: u8, count: usize, stream: Handle
    );
    cuMemsetD8_v2_ptds = memset::cuMemsetD8_v2(at: CUdeviceptr, value: u8, count: usize);

    cuMemAllocAsync_ptsz = pool::cuMemAllocAsync(
        at: *mut CUdeviceptr, bytes: usize, stream: Handle
    );
    cuMemAllocFromPoolAsync_ptsz = pool::cuMemAllocFromPoolAsync(
        at: *mut CUdeviceptr, bytes: usize, pool: Handle, stream: Handle
    );
    cuMemFreeAsync_ptsz = pool::cuMemFreeAsync(at: CUdeviceptr, stream: Handle);

    cuLaunchHostFunc_ptsz = stream::cuLaunchHostFunc(
        stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void
    );
    cuLaunchHostFunc_v2_ptsz = stream::cuLaunchHostFunc_v2(
        stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void,
        mode: c_uint
    );
    cuStreamAddCallback_ptsz = stream::cuStreamAddCallback(
        stream: Handle, function: Option<unsafe extern "C" fn(Handle, Code, *mut c_void)>,
        data: *mut c_void, flags: c_uint
    );
    cuStreamCopyAttributes_ptsz = stream::cuStreamCopyAttributes(to: Handle, from: Handle);
    cuStreamGetAttribute_ptsz = stream::cuStreamGetAttribute(
        stream: Handle, attribute: c_int, value: *mut [u8; 64]
    );
    cuStreamGetCtx_ptsz = stream::cuStreamGetCtx(stream: Handle, context: *mut Handle);
    cuStreamGetCtx_v2_ptsz = stream::cuStreamGetCtx_v2(
        stream: Handle, context: *mut Handle, green: *mut Handle
    );
    cuStreamGetDevice_ptsz = stream::cuStreamGetDevice(stream: Handle, device: *mut CUdevice);
    cuStreamGetFlags_ptsz = stream::cuStreamGetFlags(stream: Handle, flags: *mut c_uint);
    cuStreamGetId_ptsz = stream::cuStreamGetId(stream: Handle, id: *mut c_ulonglong);
    cuStreamGetPriority_ptsz = stream::cuStreamGetPriority(stream: Handle, priority: *mut c_int);
    cuStreamQuery_ptsz = stream::cuStreamQuery(stream: Handle);
    cuStreamSetAttribute_ptsz = stream::cuStreamSetAttribute(
        stream: Handle, attribute: c_int, value: *const [u8; 64]
    );
    cuStreamSynchronize_ptsz = stream::cuStreamSynchronize(stream: Handle);
    cuStreamWaitEvent_ptsz = stream::cuStreamWaitEvent(
        stream: Handle, event: Handle, flags: c_uint
    );

    cuStreamBatchMemOp_ptsz = stream_memory::cuStreamBatchMemOp(
        stream: Handle, count: c_uint, parameters: *const CUstreamBatchMemOpParams, flags: c_uint
    );
    cuStreamBatchMemOp_v2_ptsz = stream_memory::cuStreamBatchMemOp_v2(
        stream: Handle, count: c_uint, parameters: *const CUstreamBatchMemOpParams, flags: c_uint
    );
    cuStreamWaitValue32_ptsz = stream_memory::cuStreamWaitValue32(
        stream: Handle, at: CUdeviceptr, value: u32, flags: c_uint
    );
    cuStreamWaitValue32_v2_ptsz = stream_memory::cuStreamWaitValue32_v2(
        stream: Handle, at: CUdeviceptr, value: u32, flags: c_uint
    );
    cuStreamWaitValue64_ptsz = stream_memory::cuStreamWaitValue64(
        stream: Handle, at: CUdeviceptr, value: u64, flags: c_uint
    );
    cuStreamWaitValue64_v2_ptsz = stream_memory::cuStreamWaitValue64_v2(
        stream: Handle, at: CUdeviceptr, value: u64, flags: c_uint
    );
    cuStreamWriteValue32_ptsz = stream_memory::cuStreamWriteValue32(
        stream: Handle, at: CUdeviceptr, value: u32, flags: c_uint
    );
    cuStreamWriteValue32_v2_ptsz = stream_memory::cuStreamWriteValue32_v2(
        stream: Handle, at: CUdeviceptr, value: u32, flags: c_uint
    );
    cuStreamWriteValue64_ptsz = stream_memory::cuStreamWriteValue64(
        stream: Handle, at: CUdeviceptr, value: u64, flags: c_uint
    );
    cuStreamWriteValue64_v2_ptsz = stream_memory::cuStreamWriteValue64_v2(
        stream: Handle, at: CUdeviceptr, value: u64, flags: c_uint
    );

    cuMemPrefetchAsync_ptsz = unified::cuMemPrefetchAsync(
        at: CUdeviceptr, bytes: usize, device: CUdevice, stream: Handle
    );
    cuMemPrefetchAsync_v2_ptsz = unified::cuMemPrefetchAsync_v2(
        at: CUdeviceptr, bytes: usize, location: CUmemLocation, flags: c_uint, stream: Handle
    );
    cuStreamAttachMemAsync_ptsz = unified::cuStreamAttachMemAsync(
        stream: Handle, at: CUdeviceptr, bytes: usize, flags: c_uint
    );
}
