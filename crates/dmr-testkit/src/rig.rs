//! A device, a stream pool and device operations: on a GPU where there is one, else simulated.

use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, DeviceOps, StreamId};
use dmr_sim::{Driver, Universe};
use dmr_streams::{Device, PatternOps, StreamLease, StreamPool, StreamPoolConfig};

use crate::ResourceHarness;

/// What one test runs on. On the simulator each rig has a universe of its own.
#[derive(Debug)]
pub struct Rig {
    // Dropped in this order: the universe is the last to go.
    ops: Arc<PatternOps>,
    streams: Arc<StreamPool>,
    universe: Option<Universe>,
}

/// How a [`Rig`] is made.
#[derive(Clone, Debug, Default)]
pub struct RigConfig {
    /// How the stream pool is made.
    pub streams: StreamPoolConfig,
    /// The universe to be in; made if there is none. A rig that has one is simulated.
    pub universe: Option<Universe>,
    /// Never on a GPU: for tests that count calls, inject faults or ask for race reports.
    pub simulated: bool,
}

impl Rig {
    /// A rig on whichever driver the process uses.
    pub fn new() -> Self {
        Self::with(RigConfig::default())
    }

    /// A rig on the simulated driver.
    pub fn simulated() -> Self {
        Self::with(RigConfig { simulated: true, ..RigConfig::default() })
    }

    /// A rig in this universe, on its first device.
    pub fn in_universe(universe: &Universe) -> Self {
        Self::with(RigConfig { universe: Some(universe.clone()), ..RigConfig::default() })
    }

    /// A rig as configured.
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

    /// The device.
    pub fn device(&self) -> &Device {
        self.streams.device()
    }

    /// Its CUDA ordinal.
    pub fn ordinal(&self) -> usize {
        self.device().ordinal()
    }

    /// Its streams.
    pub fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// Leases a stream.
    pub fn stream(&self) -> StreamLease {
        self.streams.acquire().expect("a stream")
    }

    /// Fills and checks.
    pub fn ops(&self) -> &Arc<PatternOps> {
        &self.ops
    }

    /// The simulated machine. Only for tests that are always simulated.
    pub fn universe(&self) -> &Universe {
        self.universe.as_ref().expect("this test asks for the simulator: make its rig simulated")
    }

    /// The simulated machine, unless this is a GPU.
    pub fn simulator(&self) -> Option<&Universe> {
        self.universe.as_ref()
    }

    /// What the conformance suite needs around the resource that `make` makes.
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

    /// What the race detector has found so far: an error that describes it.
    pub fn verdict(&self) -> Result<(), String> {
        let reports = self.universe.iter().flat_map(Universe::reports);
        let described: Vec<_> = reports.map(|report| report.to_string()).collect();
        if described.is_empty() { Ok(()) } else { Err(described.join("\n")) }
    }

    /// Waits for everything; then no race was found, no check has failed, and nothing that the
    /// test allocated is left. The rig ends here, and what the test holds of it must be gone.
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
