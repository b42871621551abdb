//! The state of a registry of spillable buffers: bytes on the device and on the host.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number of buffers, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes.
    pub bytes: u64,
    /// The number of buffers.
    pub buffers: u64,
}

impl Amount {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.buffers += 1;
    }
}

/// The state of a [`Spill`](crate::Spill): bytes of its buffers, and the copies that it has made.
///
/// Buffers change their state while the others are counted; the figures are exact while no other
/// thread uses the registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillStats {
    /// On the device, without a guard: can be spilled, unless a launch has a window open on it.
    pub cold: Amount,
    /// On the device with a guard, or being moved by a thread.
    pub in_use: Amount,
    /// On the host.
    pub on_host: Amount,
    /// The copies to the host.
    pub spilled: Amount,
    /// The copies back to the device.
    pub restored: Amount,
}

/// The number of copies in one direction, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    bytes: AtomicU64,
    buffers: AtomicU64,
}

impl Counter {
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.buffers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Amount {
        let bytes = &self.bytes;
        let buffers = &self.buffers;
        Amount { bytes: bytes.load(Ordering::Relaxed), buffers: buffers.load(Ordering::Relaxed) }
    }
}
