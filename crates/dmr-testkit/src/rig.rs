//! A device, a stream pool and device operations: on a GPU if there is one, otherwise simulated.

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, DeviceOps, StreamId};
use dmr_sim::{Driver, Universe};
use dmr_streams::{Device, PatternOps, StreamLease, StreamPool, StreamPoolConfig};

use crate::ResourceHarness;

/// The device, streams and operations of one test. On the simulator each rig has a universe of its own.
#[derive(Debug)]
pub struct Rig {
    // Fields are dropped in this order: the universe last.
    ops: Arc<PatternOps>,
    streams: Arc<StreamPool>,
    universe: Option<Universe>,
}

/// The configuration of a [`Rig`].
#[derive(Clone, Debug, Default)]
pub struct RigConfig {
    /// The configuration of the stream pool.
    pub streams: StreamPoolConfig,
    /// The universe; by default a new one. A rig with a universe is simulated.
    pub universe: Option<Universe>,
    /// Never on a GPU: for tests that count calls, inject faults or read race reports.
    pub simulated: bool,
}

impl Rig {
    /// Makes a rig on the driver that the process uses.
    pub fn new() -> Self {
        Self::with(RigConfig::default())
    }

    /// Makes a rig on the simulated driver.
    pub fn simulated() -> Self {
        Self::with(RigConfig { simulated: true, ..RigConfig::default() })
    }

    /// Makes a rig in this universe, on its first device.
    pub fn in_universe(universe: &Universe) -> Self {
        Self::with(RigConfig { universe: Some(universe.clone()), ..RigConfig::default() })
    }

    /// Makes a rig with this configuration.
    pub fn with(config: RigConfig) -> Self {
        let universe = config.universe.or_else(|| {
            let simulated = config.simulated
                || matches!(dmr_sim::select().expect("a driver"), Driver::Simulated(_));
            simulated.then(|| Universe::new().expect("the simulated driver"))
        });
        let ordinal = universe.as_ref().map_or(0, |universe| universe.ordinal(0));
        let device = Device::open(ordinal).expect("a device");
        let streams = StreamPool::new(device, config.streams).expect("a stream pool");
        let ops = Arc::new(PatternOps::new(Arc::clone(&streams)).expect("device operations"));
        Self { ops, streams, universe }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.streams.device()
    }

    /// Returns the CUDA ordinal of the device.
    pub fn ordinal(&self) -> usize {
        self.device().ordinal()
    }

    /// Returns the stream pool.
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// Leases a stream.
    pub fn stream(&self) -> StreamLease {
        self.streams.acquire().expect("a stream")
    }

    /// Returns the operations that fill and check memory.
    pub fn ops(&self) -> &Arc<PatternOps> {
        &self.ops
    }

    /// Returns the simulated machine. Only for tests that are always simulated.
    pub fn universe(&self) -> &Universe {
        self.universe.as_ref().expect("this test asks for the simulator: make its rig simulated")
    }

    /// Returns the simulated machine; `None` on a GPU.
    pub fn simulator(&self) -> Option<&Universe> {
        self.universe.as_ref()
    }

    /// Makes the harness of the conformance suite around the resource that `make` returns.
    pub fn harness<R: DeviceMemoryResource>(
        self,
        make: impl FnOnce(&Self) -> R,
    ) -> ResourceHarness<R> {
        ResourceHarness::new(self, make)
    }

    /// Keeps a stream busy for 20 ms.
    pub fn delay(&self, stream: impl Into<StreamId>) {
        self.ops.delay(stream.into(), 20_000_000).expect("a delay");
    }

    /// Returns an error that describes the races found so far, if there are any.
    pub fn verdict(&self) -> Result<(), String> {
        let reports = self.universe.iter().flat_map(Universe::reports);
        let described: Vec<_> = reports.map(|report| report.to_string()).collect();
        if described.is_empty() { Ok(()) } else { Err(described.join("\n")) }
    }

    /// Waits for all work, and asserts that there was no race, that no check has failed, and that no
    /// memory of the test is left. The test must have dropped everything else that uses the rig.
    pub fn assert_clean(self) {
        self.device().synchronize().expect("the device's work");
        let wrong = self.ops.collect().expect("the verdicts of the checks");
        assert_eq!(wrong, [], "checks that found a wrong byte");
        let Self { ops, streams, universe } = self;
        drop((ops, streams));
        if let Some(universe) = universe {
            let verdict = universe.finish();
            assert!(verdict.is_clean(), "{verdict}");
        }
    }
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}
