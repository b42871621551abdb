//! Capacity: a device has the configured size, and reports its free memory.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{self, Gpu, code, free, free_async, malloc, malloc_async};
use cudarc::driver::result;
use dmr_sim::Universe;

const GIB: u64 = 1 << 30;
const OUT_OF_MEMORY: Option<i32> = Some(2);

fn device_of(bytes: u64) -> (Universe, Gpu) {
    let universe = Universe::builder().capacity(bytes).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

fn info() -> (u64, u64) {
    let (free, total) = result::mem_get_info().unwrap();
    (free as u64, total as u64)
}

#[test]
fn a_device_says_how_large_and_how_empty_it_is() {
    let (_universe, gpu) = device_of(4 * GIB);
    assert_eq!(info(), (4 * GIB, 4 * GIB));
    // SAFETY: the device is the driver's own.
    let total = unsafe { result::device::total_mem(gpu.device) }.unwrap();
    assert_eq!(total as u64, 4 * GIB);
    let block = malloc(GIB as usize).unwrap();
    assert_eq!(info(), (3 * GIB, 4 * GIB));
    free(block).unwrap();
    assert_eq!(info(), (4 * GIB, 4 * GIB));
}

#[test]
fn a_full_device_is_out_of_memory_until_something_is_freed() {
    let (universe, _gpu) = device_of(4 * GIB);
    let blocks = [(); 4].map(|()| malloc(GIB as usize).unwrap());
    assert_eq!(code(malloc(GIB as usize)), OUT_OF_MEMORY);
    free(blocks[2]).unwrap();
    let again = malloc(GIB as usize).unwrap();
    assert_eq!(code(malloc(GIB as usize)), OUT_OF_MEMORY);
    for block in [blocks[0], blocks[1], blocks[3], again] {
        free(block).unwrap();
    }
    assert!(universe.finish().is_clean());
}

#[test]
fn more_than_the_device_has_is_refused_at_once() {
    let (_universe, _gpu) = device_of(4 * GIB);
    for bytes in [4 * GIB as usize + 1, 1 << 40, usize::MAX - 255, usize::MAX] {
        assert_eq!(code(malloc(bytes)), OUT_OF_MEMORY, "{bytes}");
    }
    assert_eq!(info(), (4 * GIB, 4 * GIB));
    malloc(4 * GIB as usize).unwrap();
}

#[test]
fn zero_bytes_are_no_allocation() {
    let (universe, _gpu) = device_of(4 * GIB);
    assert_eq!(code(malloc(0)), Some(1));
    let a = gpu::stream();
    assert_eq!(malloc_async(0, a).unwrap_or(0), 0);
    assert!(universe.finish().is_clean());
}

#[test]
fn allocations_do_not_overlap_and_are_aligned() {
    let (_universe, _gpu) = device_of(4 * GIB);
    let a = gpu::stream();
    let mut blocks: Vec<(u64, u64)> = Vec::new();
    for bytes in [1, 255, 256, 257, 1000, 4096, 1 << 20, 3 << 20] {
        blocks.push((malloc(bytes).unwrap(), bytes as u64));
        blocks.push((malloc_async(bytes, a).unwrap(), bytes as u64));
    }
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
    }
    assert!(blocks.iter().all(|(address, _)| address % 256 == 0));
}

#[test]
fn pools_take_from_the_same_device() {
    let (_universe, _gpu) = device_of(4 * GIB);
    let a = gpu::stream();
    let block = malloc_async(3 * GIB as usize, a).unwrap();
    assert!(info().0 <= GIB);
    assert_eq!(code(malloc(2 * GIB as usize)), OUT_OF_MEMORY);
    free_async(block, a).unwrap();
    gpu::sync(a).unwrap();
    malloc(2 * GIB as usize).unwrap();
}

#[test]
fn devices_fill_up_one_by_one() {
    let universe = Universe::builder().capacity(GIB).build().unwrap();
    let _first = Gpu::of(&universe, 0);
    malloc(GIB as usize).unwrap();
    assert_eq!(info().0, 0);
    let _second = Gpu::of(&universe, 1);
    assert_eq!(info().0, GIB);
    malloc(GIB as usize).unwrap();
}
