//! Launches that need more of the driver than arguments: tensor maps, and the workspace of
//! cooperative launches.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::support::gpu::{self, machine, malloc};
use cudarc::driver::sys::{self, CUresult};

use CUresult::CUDA_SUCCESS;

const HEAD: &str = ".version 8.4\n.target sm_90\n.address_size 64\n";

/// Encodes a map of 10 rows of 40 words, whose box has 4 rows of `width` words.
fn encode(map: &mut sys::CUtensorMap, address: u64, width: u32) -> CUresult {
    let sizes = [40_u64, 10];
    let strides = [160_u64];
    let box_sizes = [width, 4];
    let steps = [1_u32, 1];
    // SAFETY: the arrays have an element for each dimension.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            2,
            address as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            box_sizes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
}

#[test]
fn sim_a_kernel_copies_a_box_of_the_tensor_of_a_map() {
    let (_universe, _gpu) = machine();
    let text = format!(
        "{HEAD}.visible .entry store(.param .align 64 .b8 map[128]) {{
             .shared .align 128 .b8 all[512];
             .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<2>;
             mov.u32 %r1, %tid.x; mov.u32 %r2, all; mad.lo.u32 %r3, %r1, 4, %r2; st.shared.u32 [%r3], %r1; bar.sync 0;
             setp.ne.u32 %p1, %r1, 0; @%p1 bra done;
             mov.b64 %d1, map; cvta.param.u64 %d1, %d1;
             cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {{8, 7}}], [%r2];
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
             done: ret; }}"
    );
    let kernel = gpu::kernel(&text, "store").unwrap();
    let stream = gpu::stream();
    let out = malloc(1600).unwrap();
    gpu::fill(out, 0, 1600, stream).unwrap();
    // SAFETY: plain data, for which zero is valid.
    let mut map: sys::CUtensorMap = unsafe { std::mem::zeroed() };
    assert_eq!(encode(&mut map, out, 30), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(encode(&mut map, out + 8, 32), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(encode(&mut map, malloc(1600).unwrap(), 32), CUDA_SUCCESS);
    let mut replace = |address: u64| {
        // SAFETY: the map is live.
        unsafe { sys::cuTensorMapReplaceAddress(&mut map, address as *mut c_void) }
    };
    assert_eq!(replace(out + 8), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(replace(out), CUDA_SUCCESS);
    let mut params: [*mut c_void; 1] = [(&raw mut map).cast()];
    // SAFETY: the argument is the map.
    let launched = unsafe {
        sys::cuLaunchKernel(kernel, 1, 1, 1, 128, 1, 1, 0, stream, params.as_mut_ptr(), null_mut())
    };
    assert_eq!(launched, CUDA_SUCCESS);
    gpu::sync(stream).unwrap();
    let bytes = gpu::read(out, 1600).unwrap();
    let word = |x: usize, y: usize| {
        let at = 4 * (y * 40 + x);
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    };
    assert_eq!([word(8, 7), word(9, 7), word(39, 7), word(8, 9)], [0, 1, 31, 64]);
    assert_eq!([word(7, 8), word(12, 6)], [0, 0]);
}

#[test]
fn sim_only_a_cooperative_launch_has_the_workspace_of_a_grid() {
    let (_universe, _gpu) = machine();
    let text = format!(
        "{HEAD}.visible .entry workspace(.param .u64 out) {{
             .reg .b32 %r<4>; .reg .b64 %d<4>;
             mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; or.b32 %r1, %r1, %r2; set.ne.u32.u32 %r1, %r1, 0;
             ld.param.u64 %d1, [out]; st.global.u32 [%d1], %r1; ret; }}"
    );
    let kernel = gpu::kernel(&text, "workspace").unwrap();
    let stream = gpu::stream();
    let mut out = malloc(4).unwrap();
    let mut params: [*mut c_void; 1] = [(&raw mut out).cast()];
    let params = params.as_mut_ptr();
    // SAFETY: the argument is valid; so below.
    let launched =
        unsafe { sys::cuLaunchCooperativeKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params) };
    assert_eq!(launched, CUDA_SUCCESS);
    gpu::sync(stream).unwrap();
    assert_eq!(gpu::read(out, 4).unwrap(), [0xff; 4]);
    // SAFETY: as above.
    let launched =
        unsafe { sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, null_mut()) };
    assert_eq!(launched, CUDA_SUCCESS);
    gpu::sync(stream).unwrap();
    assert_eq!(gpu::read(out, 4).unwrap(), [0; 4]);
}
