//! The driver's calls that lock host memory, and free it.

use std::ptr::with_exposed_provenance_mut;

use cudarc::driver::result;
use dmr_core::ResourceResult;
use dmr_streams::{Device, PinnedKind};

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: in the device's address space, which unified addressing implies.
const DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`.
const WRITE_COMBINED: u32 = 4;

/// Allocates page-locked memory, and writes zeros to it, so that all of it is initialised. Returns
/// its address.
pub(crate) fn lock_host(device: &Device, kind: PinnedKind, bytes: usize) -> ResourceResult<u64> {
    // SAFETY: the memory is written below, before it is read.
    let allocate = || unsafe { result::malloc_host(bytes, flags_of(kind)) };
    let failed = |error| device.driver_error("cuMemHostAlloc", error);
    let start = device.relaxed(|_| allocate().map_err(failed))?.cast::<u8>();
    // SAFETY: the driver has just allocated these bytes.
    unsafe { start.write_bytes(0, bytes) };
    Ok(start.expose_provenance() as u64)
}

/// Frees pinned memory. No device work uses it.
pub(crate) fn free_host(device: &Device, address: u64) -> ResourceResult<()> {
    // SAFETY: allocated by `lock_host`, and not freed before.
    let free = || unsafe { result::free_host(with_exposed_provenance_mut(address as usize)) };
    device.relaxed(|_| free().map_err(|error| device.driver_error("cuMemFreeHost", error)))
}

fn flags_of(kind: PinnedKind) -> u32 {
    match kind {
        PinnedKind::WriteCombined => PORTABLE | DEVICE_MAP | WRITE_COMBINED,
        _ => PORTABLE | DEVICE_MAP,
    }
}
