//! The device that a bench runs on: a GPU where there is one, else the simulated device.

use std::sync::Arc;
use std::time::Instant;

use dmr_sim::{Driver, Universe};
use dmr_streams::{Device, StreamPool, StreamPoolConfig};
use serde_json::json;

use crate::percentiles::median;
use crate::{BenchError, Line};

/// The memory of a simulated device: that of the GPU that the targets are for.
const SIMULATED_MEMORY: u64 = 141 << 30;
/// Enough for the traces and for sixteen threads.
const STREAMS: usize = 64;

/// A device, and what is needed to say in a result where it comes from.
#[derive(Debug)]
pub struct Machine {
    // Dropped in this order: the universe is the last to go.
    device: Device,
    universe: Option<Universe>,
}

/// Drops the findings of the simulated driver: work without an allocator is not ordered.
impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(universe) = &self.universe {
            let _ = universe.reports();
        }
    }
}

impl Machine {
    /// The device with this ordinal, of the driver that `DMR_DRIVER` says.
    ///
    /// # Errors
    ///
    /// An unknown `DMR_DRIVER`, no driver, no such device.
    pub fn open(ordinal: usize) -> Result<Self, BenchError> {
        let universe = match dmr_sim::select().map_err(BenchError::new)? {
            Driver::Cuda => None,
            Driver::Simulated(_) => {
                let universe = Universe::builder().capacity(SIMULATED_MEMORY).build();
                Some(universe.map_err(BenchError::new)?)
            }
        };
        let ordinal = universe.as_ref().map_or(ordinal, |universe| universe.ordinal(ordinal));
        let device = Device::open(ordinal).map_err(BenchError::new)?;
        Ok(Self { device, universe })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns whether the device is simulated, so that times are host cost only.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.universe.is_some()
    }

    /// Returns what the simulated driver has found so far.
    pub(crate) fn findings(&self) -> Vec<String> {
        let reports = self.universe.as_ref().map(Universe::reports).unwrap_or_default();
        reports.iter().map(ToString::to_string).collect()
    }

    /// Streams of its own for a workload.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn streams(&self) -> Result<Arc<StreamPool>, BenchError> {
        let config = StreamPoolConfig::new().with_max_streams(STREAMS);
        Ok(StreamPool::new(self.device.clone(), config)?)
    }

    /// Bytes of the device that are taken, by whomever.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn used_bytes(&self) -> Result<u64, BenchError> {
        let (free, total) = self.device.memory_info()?;
        Ok(total - free)
    }

    /// The line that says what the others were measured on.
    #[must_use]
    pub fn line(&self) -> Line {
        let threads = std::thread::available_parallelism().map_or(0, usize::from);
        Line::new("-", "env", json!({}))
            .with("gpu", self.device.name())
            .with("driver", self.device.driver_version().to_string())
            .with("simulated", self.is_simulated())
            .with("host_threads", threads)
            .with("clock_ns", clock_ns())
    }
}

/// Returns the time between two clock readings in a row, in nanoseconds: the median of many pairs.
#[must_use]
pub fn clock_ns() -> u64 {
    let pairs: Vec<f64> = (0..2001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    median(&pairs) as u64
}
