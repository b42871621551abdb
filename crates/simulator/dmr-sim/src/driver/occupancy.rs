//! Occupancy: blocks that a multiprocessor can hold, by the limits of compute capability 9.0.

use std::ffi::{c_int, c_uint, c_void};

use super::function::{MAX_DYNAMIC_SHARED_BYTES, MAX_THREADS_PER_BLOCK, REGISTERS};
use super::launch::LaunchConfig;
use super::{Scope, chapter, driver_call, put};
use crate::abi::*;
use crate::machine::Session;

chapter![
    cuOccupancyMaxActiveBlocksPerMultiprocessor,
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    cuOccupancyMaxPotentialBlockSize,
    cuOccupancyMaxPotentialBlockSizeWithFlags,
    cuOccupancyAvailableDynamicSMemPerBlock,
    cuOccupancyMaxPotentialClusterSize,
    cuOccupancyMaxActiveClusters,
];

/// Numbers of `CUdevice_attribute`.
const MULTIPROCESSORS: c_int = 16;
const THREADS_OF_MULTIPROCESSOR: c_int = 39;
const SHARED_BYTES_OF_MULTIPROCESSOR: c_int = 81;
const REGISTERS_OF_MULTIPROCESSOR: c_int = 82;
const BLOCKS_OF_MULTIPROCESSOR: c_int = 106;
const RESERVED_SHARED_BYTES: c_int = 111;

const WARP: u64 = 32;
/// The bytes that the shared memory of a block is a multiple of.
const SHARED_UNIT: u64 = 128;
const LARGEST_BLOCK: u64 = 1024;
/// The largest cluster that every device of compute capability 9.0 can hold.
const LARGEST_CLUSTER: c_int = 8;

impl Session<'_> {
    fn limit(&self, attribute: c_int) -> Outcome<u64> {
        Ok(self.attribute(attribute)?.max(0) as u64)
    }

    /// Returns the blocks of a function that are on one multiprocessor at a time, with these bytes
    /// of dynamic shared memory.
    pub(super) fn active_blocks(&self, function: u32, threads: u64, shared: u64) -> Outcome<u64> {
        let most = self.function_attribute(function, MAX_DYNAMIC_SHARED_BYTES)?.max(0) as u64;
        if threads == 0 || threads > LARGEST_BLOCK || shared > most {
            return Ok(0);
        }
        let registers = self.function_attribute(function, REGISTERS)?.max(1) as u64;
        let threads = threads.next_multiple_of(WARP);
        let shared = shared + self.entry(function)?.shared_bytes;
        let shared = shared.next_multiple_of(SHARED_UNIT) + self.limit(RESERVED_SHARED_BYTES)?;
        let by = [
            self.limit(BLOCKS_OF_MULTIPROCESSOR)?,
            self.limit(THREADS_OF_MULTIPROCESSOR)? / threads,
            self.limit(REGISTERS_OF_MULTIPROCESSOR)? / (registers * threads),
            self.limit(SHARED_BYTES_OF_MULTIPROCESSOR)? / shared.max(1),
        ];
        Ok(by.into_iter().min().unwrap_or(0))
    }

    /// Returns the blocks of a function that are on the device at a time.
    pub(super) fn blocks_of_device(
        &self,
        function: u32,
        threads: u64,
        shared: u64,
    ) -> Outcome<u64> {
        Ok(self.active_blocks(function, threads, shared)? * self.limit(MULTIPROCESSORS)?)
    }
}

unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: Handle,
    threads: c_int,
    shared: usize,
) -> Code {
    let name = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put_active_blocks(name, blocks, function, threads, shared) }
}

unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: Handle,
    threads: c_int,
    shared: usize,
    _flags: c_uint,
) -> Code {
    let name = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags";
    // SAFETY: as above.
    unsafe { put_active_blocks(name, blocks, function, threads, shared) }
}

/// # Safety
///
/// `blocks` is null, or valid for writing.
unsafe fn put_active_blocks(
    name: &'static str,
    blocks: *mut c_int,
    function: Handle,
    threads: c_int,
    shared: usize,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        let function = session.function_of(function)?;
        let threads = u64::try_from(threads).ok().filter(|threads| *threads > 0);
        let threads = threads.ok_or(ERROR_INVALID_VALUE)?;
        let found = session.active_blocks(function, threads, shared as u64)?;
        // SAFETY: by this function's contract.
        unsafe { put(blocks, found as c_int) }
    })
}

/// Returns the bytes of dynamic shared memory of a block of this size.
type SharedOfBlock = unsafe extern "C" fn(c_int) -> usize;

unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut c_int,
    block: *mut c_int,
    function: Handle,
    shared_of_block: Option<SharedOfBlock>,
    shared: usize,
    limit: c_int,
) -> Code {
    let name = "cuOccupancyMaxPotentialBlockSize";
    // SAFETY: the caller's pointers are null or writable, and its function is valid for every block
    // size.
    unsafe { put_block_size(name, grid, block, function, shared_of_block, shared, limit) }
}

unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut c_int,
    block: *mut c_int,
    function: Handle,
    shared_of_block: Option<SharedOfBlock>,
    shared: usize,
    limit: c_int,
    _flags: c_uint,
) -> Code {
    let name = "cuOccupancyMaxPotentialBlockSizeWithFlags";
    // SAFETY: as above.
    unsafe { put_block_size(name, grid, block, function, shared_of_block, shared, limit) }
}

/// Writes the block size with the most threads on a multiprocessor, and the number of such blocks
/// on the device.
///
/// # Safety
///
/// `grid` and `block` are null, or valid for writing; the function can be called with every block
/// size.
unsafe fn put_block_size(
    name: &'static str,
    grid: *mut c_int,
    block: *mut c_int,
    function: Handle,
    shared_of_block: Option<SharedOfBlock>,
    shared: usize,
    limit: c_int,
) -> Code {
    // The program's function is called outside of the driver's lock.
    let largest = if limit > 0 { LARGEST_BLOCK.min(limit as u64) } else { LARGEST_BLOCK };
    let sizes = (1..=LARGEST_BLOCK / WARP).map(|warps| (warps * WARP).min(largest));
    let shared_of = |threads: u64| match shared_of_block {
        // SAFETY: by this function's contract.
        Some(function) => unsafe { function(threads as c_int) },
        None => shared,
    };
    let sizes: Vec<_> = sizes.map(|threads| (threads, shared_of(threads) as u64)).collect();
    driver_call(name, Scope::Context, |session| {
        let function = session.function_of(function)?;
        let largest = session.function_attribute(function, MAX_THREADS_PER_BLOCK)? as u64;
        let mut best = (0, 0);
        let mut most = 0;
        for &(threads, shared) in sizes.iter().rev() {
            let threads = threads.min(largest);
            let blocks = session.active_blocks(function, threads, shared)?;
            if blocks * threads > most {
                best = (threads, shared);
                most = blocks * threads;
            }
        }
        let blocks = session.blocks_of_device(function, best.0, best.1)?;
        // SAFETY: by this function's contract.
        unsafe {
            put(grid, blocks as c_int)?;
            put(block, best.0 as c_int)
        }
    })
}

unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: Handle,
    blocks: c_int,
    threads: c_int,
) -> Code {
    driver_call("cuOccupancyAvailableDynamicSMemPerBlock", Scope::Context, |session| {
        let function = session.function_of(function)?;
        if blocks <= 0 || threads <= 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if session.active_blocks(function, threads as u64, 0)? < blocks as u64 {
            return Err(ERROR_INVALID_VALUE);
        }
        // As observed on an H200: without the bytes that the driver reserves in each block.
        let share = session.limit(SHARED_BYTES_OF_MULTIPROCESSOR)? / blocks as u64;
        let free = share.saturating_sub(session.entry(function)?.shared_bytes);
        let most = session.function_attribute(function, MAX_DYNAMIC_SHARED_BYTES)?.max(0) as u64;
        let available = free.min(most);
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(bytes, available as usize) }
    })
}

unsafe extern "C" fn cuOccupancyMaxPotentialClusterSize(
    size: *mut c_int,
    function: Handle,
    _config: *const c_void,
) -> Code {
    driver_call("cuOccupancyMaxPotentialClusterSize", Scope::Context, |session| {
        session.function_of(function)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(size, LARGEST_CLUSTER) }
    })
}

unsafe extern "C" fn cuOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    function: Handle,
    config: *const LaunchConfig,
) -> Code {
    if config.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so by the driver's contract a configuration with its attributes.
    let (config, attributes) = unsafe {
        let config = config.read_unaligned();
        let attributes = config.attributes();
        (config, attributes)
    };
    driver_call("cuOccupancyMaxActiveClusters", Scope::Context, |session| {
        let function = session.function_of(function)?;
        let threads = config.block.iter().fold(1, |all: u64, &n| all.saturating_mul(n.into()));
        let blocks = session.blocks_of_device(function, threads, config.shared_bytes.into())?;
        let found = blocks / u64::from(attributes?.cluster_blocks().max(1));
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(clusters, found as c_int) }
    })
}
