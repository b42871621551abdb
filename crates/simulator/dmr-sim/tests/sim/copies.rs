//! Copies and fills: their bytes, the time at which they read the source, and the waits of the
//! host.
#![allow(unsafe_code)] // the driver is called directly

use std::time::Instant;

use crate::support::gpu::{
    self, Gpu, Pinned, copy, download, fill, kinds, machine, malloc, malloc_async, upload,
};
use cudarc::driver::{result, sys};
use dmr_sim::{Policy, ReportKind, Universe};

fn with_policy(policy: Policy) -> (Universe, Gpu) {
    let universe = Universe::builder().policy(policy).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

#[test]
fn bytes_arrive_where_they_were_sent() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let (universe, _gpu) = with_policy(policy);
        let a = gpu::stream();
        let sent: Vec<u8> = (0..=255).collect();
        let first = malloc(256).unwrap();
        let second = malloc(512).unwrap();
        upload(first, &sent, a).unwrap();
        fill(second, 9, 512, a).unwrap();
        copy(second + 100, first + 6, 250, a).unwrap();
        let mut got = [0; 512];
        download(&mut got, second, a).unwrap();
        assert_eq!(got[..100], [9; 100]);
        assert_eq!(got[100..350], sent[6..]);
        assert_eq!(got[350..], [9; 162]);
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn a_pageable_upload_has_read_its_source_when_it_returns() {
    let (_universe, _gpu) = with_policy(Policy::Lazy);
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let mut source = [1; 64];
    upload(block, &source, a).unwrap();
    source.fill(2);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [1; 64]);
}

#[test]
fn a_pinned_upload_reads_its_source_when_it_executes() {
    let (_universe, _gpu) = with_policy(Policy::Lazy);
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let mut source = Pinned::new(64);
    source.bytes().fill(1);
    source.upload(block, 0, 64, a).unwrap();
    source.bytes().fill(2);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [2; 64]);
}

#[test]
fn a_pageable_download_is_complete_when_it_returns() {
    let (universe, _gpu) = with_policy(Policy::Lazy);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 5, 64, a).unwrap();
    let mut got = [0; 64];
    download(&mut got, block, a).unwrap();
    assert_eq!(got, [5; 64]);
    fill(block, 6, 64, b).unwrap();
    assert_eq!(kinds(&universe), [], "the host has waited for the stream");
}

#[test]
fn a_pinned_download_is_complete_when_the_stream_is() {
    let (universe, _gpu) = with_policy(Policy::Lazy);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    let mut got = Pinned::new(64);
    fill(block, 5, 64, a).unwrap();
    got.download(0, 64, block, a).unwrap();
    assert_eq!(got.bytes(), [0; 64]);
    fill(block, 6, 64, b).unwrap();
    let found = kinds(&universe);
    assert!(found.contains(&ReportKind::WriteAfterRead), "{found:?}");
    gpu::sync(a).unwrap();
    assert_ne!(got.bytes(), [0; 64]);
}

#[test]
fn a_synchronous_copy_does_not_wait_for_a_non_blocking_stream() {
    let (universe, _gpu) = with_policy(Policy::Lazy);
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    gpu::sync(a).unwrap();
    fill(block, 2, 64, a).unwrap();
    gpu::read(block, 64).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::ReadAfterWrite]);
}

#[test]
fn a_synchronous_copy_waits_for_blocking_streams() {
    let (universe, _gpu) = with_policy(Policy::Lazy);
    let a = gpu::blocking_stream();
    let block = malloc(64).unwrap();
    fill(block, 2, 64, a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [2; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_wide_fill_repeats_its_word() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 0, 64, a).unwrap();
    // SAFETY: the block has 64 bytes; the driver checks the rest.
    let returned = unsafe { sys::cuMemsetD32Async(block + 8, 0x0403_0201, 3, a) };
    returned.result().unwrap();
    gpu::sync(a).unwrap();
    let got = gpu::read(block, 24).unwrap();
    assert_eq!(got[..8], [0; 8]);
    assert_eq!(got[8..20], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(got[20..], [0; 4]);
}

#[test]
fn synchronous_fills_and_copies_run_on_the_legacy_stream() {
    let (universe, _gpu) = machine();
    let block = malloc(64).unwrap();
    let other = malloc(64).unwrap();
    // SAFETY: both blocks have 64 bytes; the driver checks the rest.
    unsafe {
        result::memset_d8_sync(block, 3, 64).unwrap();
        result::memcpy_dtod_sync(other, block, 64).unwrap();
    }
    assert_eq!(gpu::read(other, 64).unwrap(), [3; 64]);
    // SAFETY: as above.
    unsafe { result::memcpy_htod_sync(other, &[4u8; 64]).unwrap() };
    assert_eq!(gpu::read(other, 64).unwrap(), [4; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn copies_of_nothing_do_nothing() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 0, a).unwrap();
    copy(block, block, 0, a).unwrap();
    upload(block, &[], a).unwrap();
    download(&mut [], block, a).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_copy_between_devices_moves_bytes_and_is_ordered_like_any_other() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let source = malloc(64).unwrap();
    let a = gpu::stream();
    fill(source, 8, 64, a).unwrap();
    let second = Gpu::of(&universe, 1);
    let target = malloc(64).unwrap();
    let b = gpu::stream();
    // SAFETY: both blocks have 64 bytes and live in the contexts named.
    let peer = || unsafe {
        sys::cuMemcpyPeerAsync(target, second.context, source, first.context, 64, b).result()
    };
    peer().unwrap();
    assert_eq!(kinds(&universe), [ReportKind::ReadAfterWrite]);
    gpu::sync(a).unwrap();
    peer().unwrap();
    gpu::sync(b).unwrap();
    assert_eq!(gpu::read(target, 64).unwrap(), [8; 64]);
    assert_eq!(kinds(&universe).len(), 1);
}

#[test]
fn a_copy_between_contexts_without_a_stream_is_serialised_with_all_work_of_these_contexts() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let source = malloc(64).unwrap();
    let a = gpu::stream();
    fill(source, 8, 64, a).unwrap();
    let second = Gpu::of(&universe, 1);
    let target = malloc(64).unwrap();
    let b = gpu::stream();
    fill(target, 1, 64, b).unwrap();
    // SAFETY: both blocks have 64 bytes and live in the contexts named.
    unsafe { sys::cuMemcpyPeer(target, second.context, source, first.context, 64) }
        .result()
        .unwrap();
    let mut bytes = [0; 64];
    download(&mut bytes, target, b).unwrap();
    assert_eq!(bytes, [8; 64]);
    fill(source, 9, 64, a).unwrap();
    let mut description = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D_PEER>::zeroed();
    let at = description.as_mut_ptr();
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    // SAFETY: plain data, but for the two types of memory zero is valid.
    unsafe {
        (*at).srcMemoryType = device;
        (*at).srcDevice = source;
        (*at).srcContext = first.context;
        (*at).dstMemoryType = device;
        (*at).dstDevice = target;
        (*at).dstContext = second.context;
        (*at).WidthInBytes = 64;
        (*at).Height = 1;
        (*at).Depth = 1;
    }
    // SAFETY: the description is of the two blocks.
    unsafe { sys::cuMemcpy3DPeer(at) }.result().unwrap();
    download(&mut bytes, target, b).unwrap();
    assert_eq!(bytes, [9; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_copy_reads_its_source_in_stream_order() {
    for seed in 0..20 {
        let universe = Universe::builder().seed(seed).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let block = malloc(64).unwrap();
        let taken = malloc(64).unwrap();
        fill(block, 1, 64, a).unwrap();
        copy(taken, block, 64, a).unwrap();
        fill(block, 2, 64, a).unwrap();
        gpu::sync(a).unwrap();
        assert_eq!(gpu::read(taken, 64).unwrap(), [1; 64]);
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn hundreds_of_gibibytes_are_filled_in_no_time() {
    let universe = Universe::builder().capacity(1 << 40).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let bytes = 300 << 30;
    let started = Instant::now();
    let block = malloc(bytes).unwrap();
    for byte in 0..100 {
        fill(block, byte, bytes, a).unwrap();
    }
    fill(block + (200 << 30), 7, 1000, a).unwrap();
    gpu::sync(a).unwrap();
    let took = started.elapsed();
    assert_eq!(gpu::read(block + (200 << 30) - 1, 3).unwrap(), [99, 7, 7]);
    assert_eq!(gpu::read(block + bytes as u64 - 1, 1).unwrap(), [99]);
    assert!(took.as_secs() < 20, "{took:?}");
    assert_eq!(kinds(&universe), []);
}

#[test]
fn pinned_memory_that_two_streams_use_is_checked_as_well() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc_async(64, a).unwrap();
    fill(block, 1, 64, a).unwrap();
    let other = malloc(64).unwrap();
    let staging = Pinned::new(64);
    staging.download(0, 64, block, a).unwrap();
    staging.upload(other, 0, 64, b).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::ReadAfterWrite]);
    gpu::sync_context().unwrap();
}
