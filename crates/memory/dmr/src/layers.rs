//! The adaptors that a runtime puts around its backend, and what the program reads from them.
//!
//! From the backend outwards: the budget, below the pool, because it bounds what the process takes
//! from the GPU; the guard, whose red zones the layers around it do not see; the log and the
//! statistics, which record what the program requests; and the callbacks, outermost, so that each
//! attempt of an allocation that they rescue is in the log and in the counts.

#[cfg(feature = "debug-guard")]
use std::fmt;
use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_streams::StreamPool;

use crate::RuntimeError;
use crate::pinned::Pinned;

#[cfg(feature = "budget")]
use dmr_adaptors::budget::{Budget, BudgetLayer};
#[cfg(feature = "callbacks")]
use dmr_adaptors::callbacks::FailureCallbackLayer;
#[cfg(feature = "debug-guard")]
use dmr_adaptors::guard::{DebugGuardLayer, DebugGuardResource};
#[cfg(feature = "logging")]
use dmr_adaptors::logging::{
    BackgroundConfig, CsvSink, LoggingLayer, LoggingResource, LoggingSink,
};
#[cfg(feature = "statistics")]
use dmr_adaptors::statistics::{StatisticsLayer, StatisticsResource};
#[cfg(feature = "shared")]
use dmr_shared_limit::SharedLimitConfig;

/// A resource whose type is not known: what a runtime allocates from, and what its layers wrap.
pub type SharedResource = Arc<dyn DeviceMemoryResource>;

/// The settings of the layers, from the backend outwards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    #[cfg(feature = "budget")]
    pub(crate) budget: Option<BudgetChoice>,
    #[cfg(feature = "debug-guard")]
    pub(crate) guard: Option<GuardSettings>,
    #[cfg(feature = "logging")]
    pub(crate) log: Option<LogChoice>,
    #[cfg(feature = "statistics")]
    pub(crate) statistics: Option<StatisticsLayer>,
    #[cfg(feature = "callbacks")]
    pub(crate) callbacks: Option<FailureCallbackLayer>,
    #[cfg(feature = "budget")]
    pub(crate) pinned_budget: Option<Budget>,
    #[cfg(feature = "spill")]
    pub(crate) spills: bool,
}

/// The layers of a runtime that a program asks something.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    #[cfg(feature = "pool")]
    pub(crate) pool: Option<Arc<dmr_pool::PoolResource<SharedResource>>>,
    #[cfg(feature = "budget")]
    pub(crate) budget: Option<Budget>,
    #[cfg(feature = "debug-guard")]
    pub(crate) guard: Option<Arc<DebugGuardResource<SharedResource>>>,
    #[cfg(feature = "logging")]
    pub(crate) log: Option<Arc<LoggingResource<SharedResource>>>,
    #[cfg(feature = "statistics")]
    pub(crate) statistics: Option<Arc<StatisticsResource<SharedResource>>>,
    pub(crate) pinned: Pinned,
    #[cfg(feature = "spill")]
    pub(crate) spill: Option<dmr_spill::Spill>,
}

/// The account of the runtime's budget.
#[cfg(feature = "budget")]
#[derive(Clone, Debug)]
pub(crate) enum BudgetChoice {
    /// The account of the GPU, which all runtimes of this process share.
    OfTheDevice(u64),
    /// The account of the GPU that the processes of the user share, or those of a group.
    #[cfg(feature = "shared")]
    Shared {
        limit: u64,
        group: Option<String>,
    },
    Given(Budget),
}

#[cfg(feature = "logging")]
#[derive(Clone, Debug)]
pub(crate) enum LogChoice {
    Csv(std::path::PathBuf, BackgroundConfig),
    Sink(Arc<dyn LoggingSink>),
}

/// The settings of the guard's layer, which is made with its device.
#[cfg(feature = "debug-guard")]
#[derive(Clone)]
pub(crate) struct GuardSettings(pub(crate) ChangeGuard);

#[cfg(feature = "debug-guard")]
pub(crate) type ChangeGuard = Arc<dyn Fn(DebugGuardLayer) -> DebugGuardLayer + Send + Sync>;

#[cfg(feature = "debug-guard")]
impl fmt::Debug for GuardSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuardSettings")
    }
}

impl Layers {
    /// Puts the budget, if there is one, around what takes memory from the device.
    #[allow(unused_mut, unused_variables, reason = "what is used depends on the features")]
    pub(crate) fn put_budget(
        &mut self,
        mut resource: SharedResource,
        streams: &Arc<StreamPool>,
    ) -> Result<(SharedResource, Handles), RuntimeError> {
        let mut handles = Handles::default();
        #[cfg(feature = "budget")]
        if let Some(choice) = self.budget.take() {
            use dmr_adaptors::ResourceLayer;
            let (budget, charge_existing) = match choice {
                BudgetChoice::Given(budget) => (budget, false),
                // All that this process has of the GPU.
                BudgetChoice::OfTheDevice(limit) => {
                    (Budget::for_device(streams.device().uuid()?, limit), true)
                }
                #[cfg(feature = "shared")]
                BudgetChoice::Shared { limit, group } => {
                    let mut config = SharedLimitConfig::new(streams.device().uuid()?, limit);
                    if let Some(group) = group {
                        config = config.with_group(group);
                    }
                    (Budget::shared(&config)?, true)
                }
            };
            let layer = BudgetLayer::on(&budget).with_charge_existing(charge_existing);
            resource = Arc::new(layer.layer(resource));
            handles.budget = Some(budget);
        }
        Ok((resource, handles))
    }

    /// Puts the other layers around a resource that works on these streams.
    #[allow(unused_mut, unused_variables, reason = "what is used depends on the features")]
    pub(crate) fn put_around(
        self,
        mut resource: SharedResource,
        mut handles: Handles,
        streams: &Arc<StreamPool>,
    ) -> Result<(SharedResource, Handles), RuntimeError> {
        #[cfg(any(
            feature = "callbacks",
            feature = "debug-guard",
            feature = "logging",
            feature = "statistics"
        ))]
        use dmr_adaptors::ResourceLayer;
        handles.pinned = Pinned::of(&self, streams);
        #[cfg(feature = "debug-guard")]
        if let Some(GuardSettings(change)) = self.guard {
            let ops = Arc::new(dmr_streams::PatternOps::new(Arc::clone(streams))?);
            let guard = Arc::new(change(DebugGuardLayer::new(ops)).layer(resource));
            resource = Arc::clone(&guard) as SharedResource;
            handles.guard = Some(guard);
        }
        #[cfg(feature = "logging")]
        if let Some(choice) = self.log {
            let sink: Arc<dyn LoggingSink> = match choice {
                LogChoice::Sink(sink) => sink,
                LogChoice::Csv(path, config) => Arc::new(
                    CsvSink::with_config(&path, config)
                        .map_err(|error| RuntimeError::log(&path, &error))?,
                ),
            };
            let log = Arc::new(LoggingLayer::new(sink).layer(resource));
            resource = Arc::clone(&log) as SharedResource;
            handles.log = Some(log);
        }
        #[cfg(feature = "statistics")]
        if let Some(layer) = self.statistics {
            let statistics = Arc::new(layer.layer(resource));
            resource = Arc::clone(&statistics) as SharedResource;
            handles.statistics = Some(statistics);
        }
        #[cfg(feature = "callbacks")]
        let mut callbacks = self.callbacks;
        #[cfg(feature = "spill")]
        if self.spills {
            let spill = dmr_spill::Spill::new(streams)?;
            // Behind the program's own callbacks, which may have something to free that needs no
            // copy.
            callbacks = Some(callbacks.unwrap_or_default().with_callback(spill.callback()));
            handles.spill = Some(spill);
        }
        #[cfg(feature = "callbacks")]
        if let Some(layer) = callbacks {
            resource = Arc::new(layer.layer(resource));
        }
        Ok((resource, handles))
    }
}
