//! A device, a stream pool and device operations: on a GPU if there is one, otherwise simulated.

use std::sync::{Arc, Mutex};

use cudarc::driver::CudaContext;
use dmr_core::sync::lock;
use dmr_core::{DeviceMemoryResource, DeviceOps, StreamId};
use dmr_sim::{Driver, Universe};
use dmr_streams::{Device, PatternOps, StreamLease, StreamPool, StreamPoolConfig};

use crate::ResourceHarness;

/// The device, streams and operations of one test. On the simulator each rig has a universe of its
/// own.
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
    /// The memory of each device of a new universe, in bytes; by default as much as the simulator
    /// gives it.
    pub capacity: Option<u64>,
    /// The device: 0 is the first of the universe, or of the machine.
    pub device: usize,
    /// `true` for the simulator even if there is a GPU: for tests that count calls, inject faults
    /// or read race reports.
    pub simulated: bool,
}

impl Rig {
    /// The memory of a small simulated device, in bytes: when blocks of the driver's pool have
    /// taken all pages of 2 MiB, there is room for the results of checks.
    pub const SMALL: u64 = 9 << 20;

    /// Makes a rig on the driver that the process uses.
    pub fn new() -> Self {
        Self::with(RigConfig::default())
    }

    /// Makes a rig whose device, if it is simulated, has [`SMALL`](Self::SMALL) bytes: for tests
    /// that fill the memory of the device, and check all of it.
    pub fn small() -> Self {
        Self::with(RigConfig { capacity: Some(Self::SMALL), ..RigConfig::default() })
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
            let builder = match config.capacity {
                Some(bytes) => Universe::builder().capacity(bytes),
                None => Universe::builder(),
            };
            simulated.then(|| builder.build().expect("the simulated driver"))
        });
        let index = config.device;
        let ordinal = universe.as_ref().map_or(index, |universe| universe.ordinal(index));
        let device = Device::open(ordinal).expect("a device");
        if universe.is_none() {
            keep(device.context());
        }
        let streams = StreamPool::new(device, config.streams).expect("a stream pool");
        let ops = Arc::new(PatternOps::new(Arc::clone(&streams)).expect("device operations"));
        Self { ops, streams, universe }
    }

    /// Makes two rigs on two devices of one machine: on two GPUs if there are two, otherwise
    /// simulated. Where `DMR_DRIVER=cuda` is set and there are fewer, panics. Makes the first call
    /// of the process that selects a driver.
    pub fn pair() -> [Self; 2] {
        match dmr_sim::select_for(2).expect("a driver with two devices") {
            Driver::Simulated(_) => Self::simulated_pair(),
            _ => [0, 1].map(|device| Self::with(RigConfig { device, ..RigConfig::default() })),
        }
    }

    /// Makes two rigs on two devices of a new universe.
    pub fn simulated_pair() -> [Self; 2] {
        Self::pair_in(&Universe::new().expect("the simulated driver"))
    }

    /// Makes two rigs in this universe, on its first two devices.
    pub fn pair_in(universe: &Universe) -> [Self; 2] {
        [0, 1].map(|device| {
            let universe = Some(universe.clone());
            Self::with(RigConfig { device, universe, ..RigConfig::default() })
        })
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
        self.universe.as_ref().expect("this test needs the simulator: make its rig simulated")
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

    /// Waits for all work, and asserts that there was no race, that no check has failed, and that
    /// no memory of the test is left. The test must have dropped everything else that uses the rig.
    pub fn assert_clean(self) {
        Self::assert_all_clean([self]);
    }

    /// Asserts the same as [`assert_clean`](Self::assert_clean), of rigs on the devices of one
    /// machine.
    pub fn assert_all_clean<const N: usize>(rigs: [Self; N]) {
        for rig in &rigs {
            rig.device().synchronize().expect("the device's work");
        }
        for rig in &rigs {
            let wrong = rig.ops.collect().expect("the verdicts of the checks");
            assert_eq!(wrong, [], "checks that found a wrong byte");
        }
        let universes = rigs.map(|Self { ops, streams, universe }| {
            drop((ops, streams));
            universe
        });
        if let Some(universe) = universes.iter().flatten().next() {
            let verdict = universe.finish();
            assert!(verdict.is_clean(), "{verdict}");
        }
    }
}

/// Keeps the context of a GPU for the other rigs of the process: the driver destroys it with its
/// last user, and takes about 0.2 s to make the next.
fn keep(context: &Arc<CudaContext>) {
    static KEPT: Mutex<Vec<Arc<CudaContext>>> = Mutex::new(Vec::new());
    let mut kept = lock(&KEPT);
    if kept.iter().all(|other| other.ordinal() != context.ordinal()) {
        kept.push(Arc::clone(context));
    }
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}
