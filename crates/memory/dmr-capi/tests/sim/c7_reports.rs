//! C7: usage, counts, live blocks and the log are those of the program's calls.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use dmr_capi::*;

use crate::support::{Gpu, LEGACY, MIB, last_error, raw};

fn statistics(gpu: &Gpu) -> Result<Statistics, Status> {
    let none = Counter { current: 0, peak: 0, total: 0 };
    let mut counts = Statistics {
        size: size_of::<Statistics>() as u32,
        version: DMR_STATISTICS_VERSION,
        bytes: none,
        allocations: none,
        frees: 0,
        failures: 0,
    };
    // SAFETY: the struct has the size that it says.
    let status = unsafe { dmr_runtime_statistics(gpu.handle, &mut counts) };
    if status == Status::Ok { Ok(counts) } else { Err(status) }
}

#[test]
fn c7_usage_counts_blocks_and_the_budget() {
    let limit = 64 * MIB as u64;
    let gpu = Gpu::with(|config| config.budget_bytes = limit);
    let stream = gpu.stream();
    let address = gpu.allocate(1000, raw(&stream)).unwrap();
    let usage = gpu.usage();
    assert_eq!((usage.live, usage.retired, usage.total_allocated), (1000, 0, 1000));
    assert_eq!((usage.limit, usage.remaining), (limit, limit - usage.reserved));
    assert!(usage.reserved >= 1000);
    gpu.free(address).unwrap();
    let usage = gpu.usage();
    assert_eq!((usage.live, usage.total_freed), (0, 1000));
    let mut trimmed = 0;
    // SAFETY: the number is written.
    assert_eq!(unsafe { dmr_runtime_trim(gpu.handle, 0, &mut trimmed) }, Status::Ok);
    assert_eq!(trimmed, usage.reserved);
    assert_eq!((gpu.usage().reserved, gpu.usage().remaining), (0, limit));
    gpu.end();
    let gpu = Gpu::new();
    assert_eq!((gpu.usage().limit, gpu.usage().remaining), (0, 0));
    gpu.end();
}

#[test]
fn c7_statistics_count_on_request() {
    let gpu = Gpu::with(|config| (config.statistics, config.budget_bytes) = (1, 64 << 20));
    let first = gpu.allocate(1000, LEGACY).unwrap();
    gpu.allocate(500, LEGACY).unwrap();
    gpu.free(first).unwrap();
    assert_eq!(gpu.allocate(100 * MIB, LEGACY), Err(Status::OutOfBudget));
    let counts = statistics(&gpu).unwrap();
    assert_eq!((counts.bytes.current, counts.bytes.peak, counts.bytes.total), (500, 1500, 1500));
    let allocations = counts.allocations;
    assert_eq!((allocations.current, allocations.peak, allocations.total), (1, 2, 2));
    assert_eq!((counts.frees, counts.failures), (1, 1));
    gpu.end();
    let gpu = Gpu::new();
    assert_eq!(statistics(&gpu).err(), Some(Status::Unsupported));
    assert!(last_error().contains("`statistics`"), "{}", last_error());
    gpu.end();
}

#[test]
fn c7_a_snapshot_has_each_live_block() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let mut address = 0;
    let long = CString::new("é".repeat(100)).unwrap();
    let tags = [c"weights", c"", long.as_c_str()];
    let allocated = tags.map(|tag| {
        // SAFETY: the tag ends with a NUL, and the address is written.
        let status = unsafe {
            dmr_allocate_tagged(gpu.handle, 700, raw(&stream), tag.as_ptr(), &mut address)
        };
        assert_eq!(status, Status::Ok);
        address
    });
    let freed = gpu.allocate(1, LEGACY).unwrap();
    gpu.free(freed).unwrap();
    let mut blocks: Vec<Block> = Vec::with_capacity(8);
    let mut count = 0;
    let size = size_of::<Block>();
    // SAFETY: the array has room for eight.
    let status =
        unsafe { dmr_runtime_snapshot(gpu.handle, blocks.as_mut_ptr(), size, 8, &mut count) };
    assert_eq!(status, Status::Ok);
    assert_eq!(count, 3);
    // SAFETY: three were written.
    unsafe { blocks.set_len(3) };
    for (address, tag) in allocated.iter().zip(tags) {
        let block = blocks.iter().find(|block| block.address == *address).unwrap();
        assert_eq!((block.size as usize, block.version), (size, DMR_BLOCK_VERSION));
        assert_eq!((block.bytes, block.stream), (700, raw(&stream)));
        assert!(block.reserved_bytes >= 700);
        // SAFETY: the text ends with a NUL.
        let name = unsafe { CStr::from_ptr(block.tag.as_ptr()) }.to_str().unwrap();
        let tag = tag.to_str().unwrap();
        assert_eq!(name, &tag[..tag.len().min(128)]);
    }
    let mut one = Vec::<Block>::with_capacity(1);
    // SAFETY: the array has room for one.
    let status = unsafe { dmr_runtime_snapshot(gpu.handle, one.as_mut_ptr(), size, 1, &mut count) };
    assert_eq!((status, count), (Status::Ok, 3));
    gpu.end();
}

#[test]
fn c7_the_log_is_complete_when_the_runtime_is_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let gpu = Gpu::with(|config| config.log_path = name.as_ptr());
    drop(name);
    let address = gpu.allocate(12_345, LEGACY).unwrap();
    gpu.free(address).unwrap();
    gpu.end();
    let log = std::fs::read_to_string(path).unwrap();
    assert_eq!(log.matches("12345").count(), 2, "{log}");
}

#[test]
fn c7_a_reap_frees_what_is_done() {
    let gpu = Gpu::with(|config| config.backend = DMR_BACKEND_DIRECT_TRACKED);
    let home = gpu.stream();
    let other = gpu.stream();
    let address = gpu.allocate(MIB, raw(&home)).unwrap();
    gpu.fill(address, MIB, raw(&other));
    gpu.free_on(address, raw(&other)).unwrap();
    let mut reaped = 0;
    // SAFETY: the number is written.
    assert_eq!(unsafe { dmr_runtime_reap(gpu.handle, 1, &mut reaped) }, Status::Ok);
    assert_eq!(reaped, MIB as u64);
    assert_eq!(gpu.usage().retired, 0);
    // SAFETY: no number is written.
    assert_eq!(unsafe { dmr_runtime_reap(gpu.handle, 0, ptr::null_mut()) }, Status::Ok);
    gpu.end();
}
