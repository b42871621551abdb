//! The stacks that programs are played on.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use dmr_adaptors::ResourceBuilder;
use dmr_adaptors::budget::BudgetLayer;
use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_adaptors::logging::{InMemorySink, LoggingLayer};
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, MemoryObserver, ResourceResult};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{PatternOps, Tracked};
use dmr_testkit::Rig;

use crate::random::Random;
use crate::watched::Watched;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// The stack of resources that allocates a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stack {
    /// The direct backend inside `Tracked`.
    DirectTracked,
    /// The virtual backend inside `Tracked`: memory is freed without waiting for other streams.
    VirtualTracked,
    /// The async backend.
    Async,
    /// A pool over the direct backend.
    PoolDirect,
    /// A pool over the async backend.
    PoolAsync,
    /// A pool that maps pages.
    PoolPages,
    /// A pool that maps pages and waits before it reserves more.
    PoolCompact,
    /// A pool over pages that reports its blocks to the simulator.
    PoolObserved,
    /// A budget around an observed pool.
    BudgetPool,
    /// The debug guard around the async backend.
    GuardAsync,
    /// Log and statistics around an observed pool.
    LogPool,
    /// A pool over the direct backend inside a failure callback, which allocates from the pool.
    CallbackPool,
}

impl Stack {
    /// Every stack.
    pub const ALL: [Self; 12] = [
        Self::DirectTracked,
        Self::VirtualTracked,
        Self::Async,
        Self::PoolDirect,
        Self::PoolAsync,
        Self::PoolPages,
        Self::PoolCompact,
        Self::PoolObserved,
        Self::BudgetPool,
        Self::GuardAsync,
        Self::LogPool,
        Self::CallbackPool,
    ];

    /// The pools whose memory the player itself reports to the simulator: they can grow blocks.
    pub const POOLS: [Self; 4] =
        [Self::PoolDirect, Self::PoolAsync, Self::PoolPages, Self::PoolCompact];

    fn name(self) -> &'static str {
        match self {
            Self::DirectTracked => "direct-tracked",
            Self::VirtualTracked => "virtual-tracked",
            Self::Async => "async",
            Self::PoolDirect => "pool-direct",
            Self::PoolAsync => "pool-async",
            Self::PoolPages => "pool-pages",
            Self::PoolCompact => "pool-compact",
            Self::PoolObserved => "pool-observed",
            Self::BudgetPool => "budget-pool",
            Self::GuardAsync => "guard-async",
            Self::LogPool => "log-pool",
            Self::CallbackPool => "callback-pool",
        }
    }

    /// Returns whether its pool maps pages.
    #[must_use]
    pub const fn has_pages(self) -> bool {
        !matches!(
            self,
            Self::DirectTracked
                | Self::Async
                | Self::GuardAsync
                | Self::PoolDirect
                | Self::PoolAsync
                | Self::CallbackPool
        )
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Stack {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|stack| stack.name() == name)
            .ok_or_else(|| format!("{name:?} is no stack"))
    }
}

/// The pool of a stack.
pub type Pool = PoolResource<Watched>;

/// A stack that has been built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The outermost resource.
    pub resource: Arc<dyn DeviceMemoryResource>,
    /// The outermost resource, if it is a pool without a layer around it.
    pub pool: Option<Arc<Pool>>,
    /// `true` if the player, and not the stack, reports blocks to the simulator.
    pub reports_blocks: bool,
    /// `true` if a debug guard may keep deallocated blocks.
    pub is_guarded: bool,
    /// The number of allocations by a failure callback.
    pub callbacks: Arc<AtomicU64>,
}

/// The options of a stack.
#[derive(Clone, Debug, Default)]
pub struct Wiring {
    /// The observer of the pool, instead of the stack's own one.
    pub observer: Option<Arc<dyn MemoryObserver>>,
}

/// The reason why a stack was not built.
pub type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// A configuration of a pool that was drawn.
#[derive(Debug)]
pub struct DrawnConfig {
    /// The configuration.
    pub config: PoolConfig,
    /// The factor of the sizes of blocks.
    pub scale: u64,
}

/// Draws the configuration of a pool, and the size of its blocks. Pools are small enough to be full
/// sometimes; with large blocks, the pool's slack is used up first.
#[must_use]
pub fn draw_config(seed: u64) -> DrawnConfig {
    let mut random = Random::new(seed);
    let config = PoolConfig::fast().with_growth(2 * MIB);
    let (mut config, scale) = match random.below(4) {
        0 => (config.with_growth(32 * MIB), 64),
        limited => (config.with_maximum_size(2 * MIB * limited), 1),
    };
    if random.one_in(3) {
        config = config.with_dedicated_from(300_000 * scale);
    }
    if random.one_in(4) {
        config = config.with_release_threshold(2 * MIB * scale);
    }
    if random.one_in(4) {
        config = config.with_initial_size(2 * MIB);
    }
    DrawnConfig { config, scale }
}

/// Builds a stack on a rig; `seed` draws the configuration.
///
/// # Errors
///
/// Those of the resources' constructors.
pub fn build(stack: Stack, rig: &Rig, seed: u64, wiring: &Wiring) -> Result<Built, BuildError> {
    let streams = rig.streams();
    let layered = |resource| Built {
        resource,
        pool: None,
        reports_blocks: false,
        is_guarded: false,
        callbacks: Arc::default(),
    };
    Ok(match stack {
        Stack::DirectTracked => {
            let direct = DirectCudaResource::new(Arc::clone(streams));
            layered(Arc::new(Tracked::new(direct, Arc::clone(streams))?))
        }
        Stack::VirtualTracked => {
            let pages = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new())?;
            layered(Arc::new(Tracked::new(pages, Arc::clone(streams))?))
        }
        Stack::Async => layered(Arc::new(async_resource(rig)?)),
        Stack::GuardAsync => {
            // Operations of its own: the guard collects the results of all their checks.
            let ops: Arc<dyn DeviceOps> = Arc::new(PatternOps::new(Arc::clone(streams))?);
            let guard = ResourceBuilder::new(async_resource(rig)?).layer(DebugGuardLayer::new(ops));
            Built { is_guarded: true, ..layered(guard.build_shared()) }
        }
        Stack::PoolDirect | Stack::PoolAsync | Stack::PoolPages | Stack::PoolCompact => {
            let pool = Arc::new(pool(stack, rig, seed, wiring.observer.clone())?);
            let reports_blocks = wiring.observer.is_none();
            Built { pool: Some(Arc::clone(&pool)), reports_blocks, ..layered(pool) }
        }
        Stack::CallbackPool => {
            let callbacks = Arc::new(AtomicU64::new(0));
            let of_callback = Arc::new(OnceLock::new());
            let callback =
                callback_that_allocates(Arc::clone(&of_callback), Arc::clone(&callbacks));
            let direct = DirectCudaResource::new(Arc::clone(streams));
            let upstream = ResourceBuilder::new(direct).layer(callback).build();
            let config = draw_config(seed).config;
            let universe = rig.simulator().cloned();
            let watched = Watched::new(Box::new(upstream), universe);
            let pool = Arc::new(PoolResource::new(watched, Arc::clone(streams), config)?);
            // The pool is new, so nothing was set before.
            let _ = of_callback.set(Arc::downgrade(&pool));
            Built {
                pool: Some(Arc::clone(&pool)),
                reports_blocks: true,
                callbacks,
                ..layered(pool)
            }
        }
        Stack::PoolObserved => {
            let pool = Arc::new(pool(stack, rig, seed, observer(rig, wiring))?);
            Built { pool: Some(Arc::clone(&pool)), ..layered(pool) }
        }
        Stack::BudgetPool => {
            let inner = pool(stack, rig, seed, observer(rig, wiring))?;
            let bytes = (1 + 2 * (seed % 2)) * MIB * draw_config(seed).scale;
            layered(ResourceBuilder::new(inner).layer(BudgetLayer::new(bytes)).build_shared())
        }
        Stack::LogPool => {
            let inner = pool(stack, rig, seed, observer(rig, wiring))?;
            let log = LoggingLayer::new(Arc::new(InMemorySink::new()));
            let layers = ResourceBuilder::new(inner).layer(log).layer(StatisticsLayer::new());
            layered(layers.build_shared())
        }
    })
}

/// A callback that allocates from the pool whose upstream has no memory, and frees the block.
fn callback_that_allocates(
    pool: Arc<OnceLock<Weak<Pool>>>,
    callbacks: Arc<AtomicU64>,
) -> FailureCallbackLayer {
    FailureCallbackLayer::new().with_callback(move |failure| {
        if let Some(pool) = pool.get().and_then(Weak::upgrade) {
            callbacks.fetch_add(1, Ordering::Relaxed);
            if let Ok(block) = pool.allocate(4096, failure.stream, AllocTag::new("callback")) {
                // A free that is refused leaves a block, and the accounting reports it.
                drop(pool.deallocate(block));
            }
        }
        Response::Decline
    })
}

impl Built {
    /// Returns whether a free is refused while the home stream of its block captures. A guard may
    /// keep the block until later.
    pub(crate) fn refuses_captured_frees(&self) -> bool {
        !self.is_guarded
    }
}

fn observer(rig: &Rig, wiring: &Wiring) -> Option<Arc<dyn MemoryObserver>> {
    wiring.observer.clone().or_else(|| rig.device().memory_observer())
}

fn async_resource(rig: &Rig) -> ResourceResult<AsyncCudaResource> {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new())
}

fn pool(
    stack: Stack,
    rig: &Rig,
    seed: u64,
    observer: Option<Arc<dyn MemoryObserver>>,
) -> Result<Pool, BuildError> {
    let streams = Arc::clone(rig.streams());
    let upstream: Box<dyn DeviceMemoryResource> = match stack {
        Stack::PoolDirect => Box::new(DirectCudaResource::new(Arc::clone(&streams))),
        Stack::PoolAsync => Box::new(async_resource(rig)?),
        _ => Box::new(VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new())?),
    };
    let mut config = draw_config(seed).config;
    if stack.has_pages() {
        config = config.with_page_size(2 * MIB);
    }
    if stack == Stack::PoolCompact {
        // Pages move as soon as that saves any.
        config = config.with_page_slack_divisor(50).with_waits_first(true);
    }
    let universe = observer.is_none().then(|| rig.simulator().cloned()).flatten();
    let pool = PoolResource::new(Watched::new(upstream, universe), streams, config)?;
    Ok(match observer {
        Some(observer) => pool.with_observer(observer),
        None => pool,
    })
}
