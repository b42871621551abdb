//! Copies and memsets of two and three dimensions: their bytes, their races, and the waits of the
//! host.
#![allow(unsafe_code)] // the driver is called directly

use std::mem::MaybeUninit;

use crate::support::gpu::{self, Gpu, fill, kinds, machine, malloc, order, upload};
use cudarc::driver::sys::{self, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype, CUresult, CUstream};
use dmr_sim::{Policy, ReportKind, Universe};

use CUmemorytype::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
use CUresult::CUDA_SUCCESS;

/// Returns a copy of `height` rows of `width` bytes between device memory with these pitches.
fn rows(
    to: u64,
    to_pitch: usize,
    from: u64,
    from_pitch: usize,
    [width, height]: [usize; 2],
) -> CUDA_MEMCPY2D {
    let mut copy = MaybeUninit::<CUDA_MEMCPY2D>::zeroed();
    let at = copy.as_mut_ptr();
    // SAFETY: plain data, for which zero is valid but for the types of memory.
    let mut copy = unsafe {
        (&raw mut (*at).srcMemoryType).write(CU_MEMORYTYPE_DEVICE);
        (&raw mut (*at).dstMemoryType).write(CU_MEMORYTYPE_DEVICE);
        copy.assume_init()
    };
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.srcPitch = from_pitch;
    copy.dstPitch = to_pitch;
    copy.WidthInBytes = width;
    copy.Height = height;
    copy
}

fn copy(rows: &CUDA_MEMCPY2D, stream: CUstream) -> CUresult {
    // SAFETY: the simulator checks the addresses of device memory; so for all calls here.
    unsafe { sys::cuMemcpy2DAsync_v2(rows, stream) }
}

#[test]
fn sim_rows_arrive_where_they_were_sent() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let universe = Universe::builder().policy(policy).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let from = malloc(100).unwrap();
        let to = malloc(100).unwrap();
        let sent: Vec<u8> = (0..100).collect();
        upload(from, &sent, a).unwrap();
        fill(to, 200, 100, a).unwrap();
        let mut rows = rows(to, 20, from, 10, [3, 4]);
        rows.srcXInBytes = 5;
        rows.srcY = 2;
        rows.dstXInBytes = 1;
        assert_eq!(copy(&rows, a), CUDA_SUCCESS);
        gpu::sync(a).unwrap();
        let got = gpu::read(to, 100).unwrap();
        for (at, byte) in got.into_iter().enumerate() {
            let row = at / 20;
            let column = at % 20;
            let is_copied = row < 4 && (1..4).contains(&column);
            let expected = if is_copied { ((row + 2) * 10 + column + 4) as u8 } else { 200 };
            assert_eq!(byte, expected, "row {row}, column {column}");
        }
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn sim_a_copy_of_rows_races_with_its_rows_and_not_with_the_bytes_between() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let from = malloc(64).unwrap();
    let to = malloc(64).unwrap();
    fill(from, 1, 64, a).unwrap();
    assert_eq!(copy(&rows(to, 16, from, 16, [4, 4]), a), CUDA_SUCCESS);
    fill(to + 4, 2, 12, b).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(to + 16, 2, 1, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    fill(from + 35, 2, 1, b).unwrap();
    let expected = [ReportKind::WriteAfterWrite; 2];
    assert_eq!(kinds(&universe)[..2], expected, "with the first fill");
    assert_eq!(kinds(&universe)[2..], [ReportKind::WriteAfterRead], "with the copy");
}

#[test]
fn sim_a_copy_of_rows_is_one_operation_that_a_stream_can_wait_for() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let from = malloc(64).unwrap();
    let to = malloc(64).unwrap();
    fill(from, 1, 64, a).unwrap();
    assert_eq!(copy(&rows(to, 16, from, 16, [4, 4]), a), CUDA_SUCCESS);
    order(a, b);
    fill(to, 2, 64, b).unwrap();
    fill(from, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_rows_outside_of_an_allocation_are_refused_and_nothing_is_copied() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let from = malloc(64).unwrap();
    let to = malloc(64).unwrap();
    fill(from, 1, 64, a).unwrap();
    fill(to, 2, 64, a).unwrap();
    assert_eq!(copy(&rows(to, 16, from, 16, [4, 5]), a), CUresult::CUDA_ERROR_INVALID_VALUE);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(to, 64).unwrap(), [2; 64]);
    assert!(kinds(&universe).iter().all(|kind| *kind == ReportKind::OutOfBounds));
    assert!(!kinds(&universe).is_empty());
    assert_eq!(copy(&rows(to, 3, from, 16, [4, 2]), a), CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut beyond_the_pitch = rows(to, 16, from, 16, [4, 2]);
    beyond_the_pitch.srcXInBytes = 13;
    assert_eq!(copy(&beyond_the_pitch, a), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn sim_an_array_is_refused() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let from = malloc(64).unwrap();
    let to = malloc(64).unwrap();
    let mut rows = rows(to, 16, from, 16, [4, 4]);
    rows.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    assert_eq!(copy(&rows, a), CUresult::CUDA_ERROR_NOT_SUPPORTED);
}

#[test]
fn sim_rows_of_pageable_memory_are_read_and_written_during_the_call() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let mut sent: Vec<u8> = (0..64).collect();
    let mut upload = rows(block, 8, 0, 16, [8, 4]);
    upload.srcMemoryType = CU_MEMORYTYPE_HOST;
    upload.srcHost = sent.as_ptr().cast();
    assert_eq!(copy(&upload, a), CUDA_SUCCESS);
    sent.fill(99);
    let mut got = [0u8; 64];
    let mut download = rows(0, 16, block, 8, [8, 4]);
    download.dstMemoryType = CU_MEMORYTYPE_HOST;
    download.dstHost = got.as_mut_ptr().cast();
    assert_eq!(copy(&download, a), CUDA_SUCCESS);
    for (at, byte) in got.into_iter().enumerate() {
        assert_eq!(byte, if at % 16 < 8 { at as u8 } else { 0 }, "byte {at}");
    }
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_a_synchronous_copy_of_rows_waits_for_the_blocking_streams() {
    let (universe, _gpu) = machine();
    let blocking = gpu::blocking_stream();
    let other = gpu::stream();
    let from = malloc(64).unwrap();
    let to = malloc(64).unwrap();
    let now = |rows: &CUDA_MEMCPY2D| {
        // SAFETY: as above.
        assert_eq!(unsafe { sys::cuMemcpy2D_v2(rows) }, CUDA_SUCCESS);
    };
    fill(from, 1, 64, blocking).unwrap();
    now(&rows(to, 16, from, 16, [4, 4]));
    fill(to, 2, 64, blocking).unwrap();
    assert_eq!(kinds(&universe), []);
    now(&rows(to, 16, from, 16, [4, 4]));
    fill(to, 3, 4, other).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite], "the host has not waited");
}

#[test]
fn sim_planes_arrive_where_they_were_sent() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let from = malloc(64).unwrap();
    let to = malloc(64).unwrap();
    let sent: Vec<u8> = (0..64).collect();
    upload(from, &sent, a).unwrap();
    fill(to, 200, 64, a).unwrap();
    let mut planes = MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
    let at = planes.as_mut_ptr();
    // SAFETY: as for the rows.
    let mut planes = unsafe {
        (&raw mut (*at).srcMemoryType).write(CU_MEMORYTYPE_DEVICE);
        (&raw mut (*at).dstMemoryType).write(CU_MEMORYTYPE_DEVICE);
        planes.assume_init()
    };
    planes.srcDevice = from;
    planes.dstDevice = to;
    planes.srcPitch = 4;
    planes.srcHeight = 4;
    planes.srcZ = 1;
    planes.dstPitch = 2;
    planes.dstHeight = 2;
    planes.WidthInBytes = 2;
    planes.Height = 2;
    planes.Depth = 3;
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuMemcpy3DAsync_v2(&planes, a) }, CUDA_SUCCESS);
    gpu::sync(a).unwrap();
    let got = gpu::read(to, 64).unwrap();
    assert_eq!(got[..12], [16, 17, 20, 21, 32, 33, 36, 37, 48, 49, 52, 53]);
    assert_eq!(got[12..], [200; 52]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_a_memset_of_rows_fills_them_and_races_with_them_only() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 9, 64, a).unwrap();
    gpu::sync(a).unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuMemsetD2D16Async(block, 16, 0x0201, 2, 4, a), CUDA_SUCCESS);
        let odd = sys::cuMemsetD2D16Async(block, 15, 0x0201, 2, 4, a);
        assert_eq!(odd, CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuMemsetD2D8Async(block + 4, 16, 7, 12, 4, b), CUDA_SUCCESS);
    }
    assert_eq!(kinds(&universe), []);
    gpu::sync_context().unwrap();
    let row = [1, 2, 1, 2, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
    assert_eq!(gpu::read(block, 64).unwrap(), row.repeat(4));
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuMemsetD2D32Async(block, 16, 3, 1, 4, a), CUDA_SUCCESS);
        assert_eq!(sys::cuMemsetD2D8Async(block + 3, 16, 7, 1, 1, b), CUDA_SUCCESS);
    }
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}
