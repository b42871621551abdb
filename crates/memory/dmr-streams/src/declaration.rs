//! The declarations of launches to the simulated driver, which compares them with the accesses that
//! it sees.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::BlockUse;
use smallvec::SmallVec;

use crate::simulated::{ALL_STREAMS, DeclaredUse, IS_SIMULATED, SimulatedDriver};
use crate::{Device, StreamGuard};

/// A declaration in force, until this is dropped. The simulated driver compares with it what the
/// thread that has made it submits.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Declaration {
    driver: Arc<SimulatedDriver>,
    id: u64,
}

impl Declaration {
    /// Declares that the work of a launch, which the calling thread submits, accesses memory as
    /// `uses` says and no other memory of blocks, until the returned value is dropped: on this
    /// stream or, without one, on all. Without `uses` the work may access anything. A declaration
    /// for all streams replaces the earlier ones while it is in force; one for a stream adds to
    /// them.
    ///
    /// `None` unless the device is simulated: NVIDIA's driver compares nothing.
    pub fn begin<'u>(
        device: &Device,
        stream: Option<&StreamGuard<'_>>,
        uses: Option<impl IntoIterator<Item = &'u BlockUse>>,
    ) -> Option<Self> {
        let driver = device.simulated()?;
        let uses = uses.map(|uses| {
            uses.into_iter().map(DeclaredUse::of).collect::<SmallVec<[DeclaredUse; 8]>>()
        });
        let stream = stream.map_or(ALL_STREAMS, |stream| stream.cudarc_stream().cu_stream());
        let id = driver.begin_declaration(stream, uses.as_deref());
        Some(Self { driver: Arc::clone(driver), id })
    }

    /// Declares as [`begin`](Self::begin) does for all streams, and that the work reads and writes
    /// `bytes` bytes of host memory at `host`, which may be pinned.
    pub fn begin_with_host<'u>(
        device: &Device,
        uses: impl IntoIterator<Item = &'u BlockUse>,
        host: u64,
        bytes: usize,
    ) -> Option<Self> {
        let driver = device.simulated()?;
        let mut declared: SmallVec<[DeclaredUse; 8]> =
            uses.into_iter().map(DeclaredUse::of).collect();
        let end = host.saturating_add(bytes as u64).min(u64::MAX - 1);
        declared.push(DeclaredUse { ptr: host, number: 0, start: host, end, reads: 1, writes: 1 });
        let id = driver.begin_declaration(ALL_STREAMS, Some(&declared));
        Some(Self { driver: Arc::clone(driver), id })
    }

    /// Allows the calling thread's work to access anything until the returned value is dropped.
    pub(crate) fn of_anything(device: &Device) -> Option<Self> {
        Self::begin(device, None, None::<[&BlockUse; 0]>)
    }

    /// Returns whether a device of this process is simulated, so that declarations are compared.
    #[must_use]
    #[inline]
    pub fn is_compared() -> bool {
        IS_SIMULATED.load(Ordering::Relaxed)
    }
}

impl Drop for Declaration {
    fn drop(&mut self) {
        self.driver.end_declaration(self.id);
    }
}
