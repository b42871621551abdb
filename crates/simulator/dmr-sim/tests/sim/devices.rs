//! Two devices: separate memory, streams and contexts, and access between them by permission.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{
    self, Driver, Gpu, code, copy, fill, kernel, kinds, launch, malloc, malloc_from, order, ptx,
};
use crate::support::virtual_memory::{PAGE, READ_WRITE, mapped, set_access};
use cudarc::driver::sys::{self, CUcontext, CUresult};
use cudarc::driver::{CudaContext, result};
use dmr_sim::{Footprint, ReportKind, Universe};

fn two() -> (Universe, Gpu, Gpu) {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    first.bind();
    (universe, first, second)
}

/// Permits the current context to access the peer's memory.
fn enable(peer: CUcontext) -> Driver<()> {
    // SAFETY: the context is live.
    unsafe { sys::cuCtxEnablePeerAccess(peer, 0) }.result()
}

fn disable(peer: CUcontext) -> Driver<()> {
    // SAFETY: the context is live.
    unsafe { sys::cuCtxDisablePeerAccess(peer) }.result()
}

/// `CUmemAccessDesc`, whose fields in the bindings depend on their version.
#[repr(C)]
struct AccessDescriptor {
    location: [i32; 2],
    flags: u32,
}

/// Sets the right of a device to the memory of a pool: 0, 1 to read, 3 to read and write.
fn set_pool_access(pool: sys::CUmemoryPool, device: i32, flags: u32) -> Driver<()> {
    let access = AccessDescriptor { location: [1, device], flags };
    // SAFETY: the description has the driver's layout.
    unsafe { sys::cuMemPoolSetAccess(pool, (&raw const access).cast(), 1) }.result()
}

fn pool_access(pool: sys::CUmemoryPool, device: i32) -> u32 {
    let mut flags = 9_u32;
    let mut location = [1, device];
    // SAFETY: the location has the driver's layout, and the flags are an int.
    unsafe { sys::cuMemPoolGetAccess((&raw mut flags).cast(), pool, (&raw mut location).cast()) }
        .result()
        .unwrap();
    flags
}

/// A kernel that writes 64 bytes.
fn writer(universe: &Universe) -> sys::CUfunction {
    universe.register_kernel(
        "writer",
        |arguments| Footprint::new().writes(arguments.u64(0), 64),
        |arguments, memory| memory.fill(arguments.u64(0), 64, 9),
    );
    kernel(&ptx("writer", &["u64"]), "writer").unwrap()
}

#[test]
fn each_device_has_its_own_context_and_memory() {
    let (_universe, first, second) = two();
    assert_ne!(first.context, second.context);
    let here = malloc(64).unwrap();
    second.bind();
    let there = malloc(64).unwrap();
    assert_ne!(here, there);
    assert_eq!(result::ctx::get_current().unwrap(), Some(second.context));
}

#[test]
fn devices_report_that_they_can_be_peers() {
    let (_universe, first, second) = two();
    let mut can = 0;
    // SAFETY: the out-parameter is a live local.
    let returned = unsafe { sys::cuDeviceCanAccessPeer(&mut can, first.device, second.device) };
    returned.result().unwrap();
    assert_eq!(can, 1);
    // SAFETY: as above.
    let returned = unsafe { sys::cuDeviceCanAccessPeer(&mut can, first.device, first.device) };
    returned.result().unwrap();
    assert_eq!(can, 0, "a device is not its own peer");
}

#[test]
fn a_kernel_touches_another_devices_memory_only_with_peer_access() {
    for enabled in [false, true] {
        let (universe, first, second) = two();
        second.bind();
        let there = malloc(64).unwrap();
        first.bind();
        let writer = writer(&universe);
        if enabled {
            enable(second.context).unwrap();
        }
        let _ = launch(writer, &[there], gpu::stream());
        let expected: &[ReportKind] = if enabled { &[] } else { &[ReportKind::NoPeerAccess] };
        assert_eq!(kinds(&universe), expected);
    }
}

#[test]
fn peer_access_is_one_way_and_can_be_taken_back() {
    let (universe, first, second) = two();
    let here = malloc(64).unwrap();
    enable(second.context).unwrap();
    second.bind();
    let on_second = writer(&universe);
    let _ = launch(on_second, &[here], gpu::stream());
    assert_eq!(kinds(&universe), [ReportKind::NoPeerAccess]);
    let there = malloc(64).unwrap();
    first.bind();
    disable(second.context).unwrap();
    let on_first = writer(&universe);
    let _ = launch(on_first, &[there], gpu::stream());
    assert_eq!(kinds(&universe), [ReportKind::NoPeerAccess; 2]);
}

#[test]
fn peer_access_is_enabled_once() {
    let (_universe, first, second) = two();
    enable(second.context).unwrap();
    let again = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as i32;
    assert_eq!(gpu::code(enable(second.context)), Some(again));
    let unsupported = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED as i32;
    assert_eq!(code(enable(first.context)), Some(unsupported), "no context is its own peer");
    disable(second.context).unwrap();
    let never = CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED as i32;
    assert_eq!(gpu::code(disable(second.context)), Some(never));
}

#[test]
fn events_order_streams_of_different_devices() {
    let (universe, first, second) = two();
    let here = malloc(64).unwrap();
    let a = gpu::stream();
    second.bind();
    let there = malloc(64).unwrap();
    let b = gpu::stream();
    fill(there, 1, 64, b).unwrap();
    first.bind();
    fill(here, 2, 64, a).unwrap();
    order(a, b);
    copy(there, here, 64, b).unwrap();
    gpu::sync(b).unwrap();
    assert_eq!(kinds(&universe), []);
    second.bind();
    assert_eq!(gpu::read(there, 64).unwrap(), [2; 64]);
}

#[test]
fn synchronising_one_device_says_nothing_about_the_other() {
    let universe = Universe::builder().policy(dmr_sim::Policy::Lazy).build().unwrap();
    let first = Gpu::of(&universe, 0);
    let here = malloc(64).unwrap();
    let a = gpu::stream();
    fill(here, 1, 64, a).unwrap();
    let second = Gpu::of(&universe, 1);
    gpu::sync_context().unwrap();
    let there = malloc(64).unwrap();
    gpu::free(there).unwrap();
    assert!(!gpu::query(a), "the other device has not been waited for");
    first.bind();
    fill(here, 2, 64, gpu::stream()).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    drop(second);
}

#[test]
fn a_context_released_after_its_universe_is_no_other_universes() {
    let (ended, late) = gpu::machine();
    drop(ended);
    let (universe, gpu) = gpu::machine();
    assert_ne!(gpu.device, late.device);
    drop(late);
    malloc(64).unwrap();
    assert!(universe.reports().is_empty());
    // Released, it is soon used again.
    let ordinals = (0..1000).map(|_| gpu::machine().1.device);
    assert!(ordinals.max() < Some(500));
}

#[test]
fn cudarc_sees_as_many_devices_as_there_are() {
    let universe = Universe::builder().devices(3).build().unwrap();
    let ordinals: Vec<usize> = (0..3).map(|device| universe.ordinal(device)).collect();
    for &ordinal in &ordinals {
        let context = CudaContext::new(ordinal).unwrap();
        assert_eq!(context.ordinal(), ordinal);
        assert!(!context.name().unwrap().is_empty());
    }
    assert!(result::device::get_count().unwrap() as usize > ordinals[2]);
}

#[test]
fn memory_of_a_pool_needs_access_of_its_own() {
    let (universe, first, second) = two();
    second.bind();
    let pool = gpu::pool(second.device);
    let there = gpu::stream();
    let block = malloc_from(pool, 64, there).unwrap();
    gpu::sync(there).unwrap();
    first.bind();
    let writer = writer(&universe);
    enable(second.context).unwrap();
    assert_eq!([pool_access(pool, second.device), pool_access(pool, first.device)], [3, 0]);
    let _ = launch(writer, &[block], gpu::stream());
    assert_eq!(kinds(&universe), [ReportKind::NoPeerAccess], "enabling peer access is not enough");

    let not_supported = CUresult::CUDA_ERROR_NOT_SUPPORTED as i32;
    assert_eq!(code(set_pool_access(pool, first.device, 1)), Some(not_supported));

    set_pool_access(pool, first.device, 3).unwrap();
    assert_eq!(pool_access(pool, first.device), 3);
    let _ = launch(writer, &[block], gpu::stream());
    second.bind();
    let later = malloc_from(pool, 64, there).unwrap();
    gpu::sync(there).unwrap();
    first.bind();
    let _ = launch(writer, &[later], gpu::stream());
    assert_eq!(kinds(&universe), [ReportKind::NoPeerAccess], "also what is allocated later");
    let invalid = CUresult::CUDA_ERROR_INVALID_DEVICE as i32;
    let own = set_pool_access(pool, second.device, 0);
    assert_eq!(code(own), Some(invalid), "its own device always has access");
}

#[test]
fn devices_without_a_path_are_no_peers_and_can_copy() {
    let universe = Universe::builder().peer_paths(false).build().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    let there = malloc(64).unwrap();
    let pool = gpu::pool(second.device);
    let (at, _) = mapped(PAGE, second.device);
    first.bind();
    let mut can = 1;
    // SAFETY: the out-parameter is a live local.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, first.device, second.device) }.result().unwrap();
    assert_eq!(can, 0);
    let unsupported = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED as i32;
    assert_eq!(code(enable(second.context)), Some(unsupported));
    let invalid = CUresult::CUDA_ERROR_INVALID_DEVICE as i32;
    assert_eq!(code(set_pool_access(pool, first.device, 3)), Some(invalid));
    assert_eq!(code(set_access(at, PAGE, first.device, READ_WRITE)), Some(invalid));

    let here = malloc(64).unwrap();
    let stream = gpu::stream();
    fill(here, 7, 64, stream).unwrap();
    gpu::sync(stream).unwrap();
    // SAFETY: the simulated driver checks its arguments.
    unsafe { sys::cuMemcpyPeer(there, second.context, here, first.context, 64) }.result().unwrap();
    assert_eq!(gpu::read(there, 64).unwrap(), [7; 64]);
    assert_eq!(kinds(&universe), []);
}

/// As an H200 does (driver 580): only the calls that name both contexts copy memory without access.
#[test]
fn a_copy_by_address_needs_access_to_a_peers_pool_and_mapped_memory() {
    let (universe, first, second) = two();
    second.bind();
    let pool = gpu::pool(second.device);
    let there = gpu::stream();
    let pooled = malloc_from(pool, 64, there).unwrap();
    let allocated = malloc(64).unwrap();
    let (at, _) = mapped(PAGE, second.device);
    for to in [pooled, allocated, at] {
        fill(to, 1, 64, there).unwrap();
    }
    gpu::sync(there).unwrap();
    first.bind();
    let here = malloc(64).unwrap();
    let stream = gpu::stream();
    copy(here, allocated, 64, stream).unwrap();
    for from in [pooled, at] {
        assert_eq!(code(copy(here, from, 64, stream)), Some(1));
        // SAFETY: the simulated driver checks its arguments.
        unsafe { sys::cuMemcpyPeerAsync(here, first.context, from, second.context, 64, stream) }
            .result()
            .unwrap();
    }
    assert_eq!(kinds(&universe), [ReportKind::NoPeerAccess, ReportKind::NoAccess]);
    set_pool_access(pool, first.device, 3).unwrap();
    set_access(at, PAGE, first.device, READ_WRITE).unwrap();
    for from in [pooled, at] {
        copy(here, from, 64, stream).unwrap();
    }
    assert_eq!(kinds(&universe).len(), 2);
}

#[test]
fn the_current_context_can_be_queried_when_its_device_is_lost() {
    let (universe, first, second) = two();
    universe.lose_device(0, 700);
    assert_eq!(result::ctx::get_current().unwrap(), Some(first.context));
    second.bind();
    malloc(64).unwrap();
}
