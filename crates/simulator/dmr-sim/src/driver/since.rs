//! The versions of CUDA that have functions of another suffix.

use std::ffi::c_int;

/// The functions whose suffix depends on the version that a program asks for: the version of CUDA
/// whose header first replaces the name by the one with the suffix. All other functions have had
/// their highest suffix since before CUDA 11.3, the first version with `cuGetProcAddress`.
pub(super) const SINCE: &[(&str, c_int)] = &[
    ("cuCtxCreate_v3", c_int::MAX), // by its own name only
    ("cuCtxCreate_v4", 13_000),
    ("cuCtxGetDevice_v2", c_int::MAX),
    ("cuCtxSynchronize_v2", c_int::MAX),
    ("cuDeviceGetUuid_v2", 13_000),
    ("cuEventElapsedTime_v2", 13_000),
    ("cuGetProcAddress_v2", 12_000),
    ("cuGraphAddDependencies_v2", 13_000),
    ("cuGraphAddKernelNode_v2", 12_000),
    ("cuGraphAddNode_v2", 13_000),
    ("cuGraphAddNode_v3", c_int::MAX),
    ("cuGraphExecKernelNodeSetParams_v2", 12_000),
    ("cuGraphExecUpdate_v2", 12_000),
    ("cuGraphGetEdges_v2", 13_000),
    ("cuGraphInstantiateWithFlags", 12_000),
    ("cuGraphKernelNodeGetParams_v2", 12_000),
    ("cuGraphKernelNodeSetParams_v2", 12_000),
    ("cuGraphNodeGetDependencies_v2", 13_000),
    ("cuGraphNodeGetDependentNodes_v2", 13_000),
    ("cuGraphNodeSetParams_v2", c_int::MAX),
    ("cuGraphRemoveDependencies_v2", 13_000),
    ("cuLaunchHostFunc_v2", c_int::MAX),
    ("cuMemAdvise_v2", 13_000),
    ("cuMemPrefetchAsync_v2", 13_000),
    ("cuMemcpy3DBatchAsync_v2", 13_000),
    ("cuMemcpyBatchAsync_v2", 13_000),
    ("cuMulticastBindAddr_v2", c_int::MAX),
    ("cuMulticastBindMem_v2", c_int::MAX),
    ("cuStreamBatchMemOp_v2", 12_000),
    ("cuStreamGetCaptureInfo_v2", 12_000),
    ("cuStreamGetCaptureInfo_v3", 13_000),
    ("cuStreamGetCtx_v2", c_int::MAX),
    ("cuStreamUpdateCaptureDependencies_v2", 13_000),
    ("cuStreamWaitValue32_v2", 12_000),
    ("cuStreamWaitValue64_v2", 12_000),
    ("cuStreamWriteValue32_v2", 12_000),
    ("cuStreamWriteValue64_v2", 12_000),
];
