//! Sizes of the fake's blocks: refused sizes, reserved bytes, counted bytes.

use dmr_core::size::checked_round_up;
use dmr_core::{ResourceError, ResourceResult};

use super::{DEVICE_BYTES, FakeResource, Fault};

impl FakeResource {
    /// Returns the bytes by which a block is accounted for.
    pub(super) fn counted(&self, bytes: usize, reserved: usize) -> u64 {
        if self.has(Fault::CountsRoundedBytes) { reserved as u64 } else { bytes as u64 }
    }

    /// Returns the bytes to reserve for a block of `bytes` bytes.
    pub(super) fn checked_size(&self, bytes: usize) -> ResourceResult<usize> {
        if self.has(Fault::WrapsOversize) && bytes > usize::MAX - 256 {
            return Ok(256);
        }
        if self.has(Fault::TakesZeroBytes) && bytes == 0 {
            return Ok(256);
        }
        let step = if self.has(Fault::Misaligns) { 64 } else { 256 };
        let reserved = checked_round_up(bytes, step)?;
        if bytes <= DEVICE_BYTES {
            return Ok(reserved);
        }
        if self.has(Fault::ClampsToTheDevice) {
            return Ok(DEVICE_BYTES);
        }
        Err(ResourceError::beyond_device(bytes, DEVICE_BYTES as u64))
    }
}
