//! The builder's settings for layers, and the runtime's access to them: one pair for each feature.

#[cfg(feature = "budget")]
mod budget {
    use dmr_adaptors::budget::Budget;

    use crate::layers::BudgetChoice;
    use crate::{DeviceRuntime, DeviceRuntimeBuilder};

    impl DeviceRuntimeBuilder {
        /// Bounds what this process takes from the GPU: `bytes` bytes, live and retired, never
        /// exceeded. With the pool that is what the pool takes and keeps, page by page. All
        /// runtimes of the process that reach the same physical GPU share the account
        /// ([`Budget::for_device`]).
        ///
        /// Needs feature `budget`.
        pub fn budget(mut self, bytes: u64) -> Self {
            self.layers.budget = Some(BudgetChoice::OfTheDevice(bytes));
            self
        }

        /// Bounds it by an account of your own.
        ///
        /// Needs feature `budget`.
        pub fn budget_on(mut self, budget: &Budget) -> Self {
            self.layers.budget = Some(BudgetChoice::Given(budget.clone()));
            self
        }
    }

    #[cfg(feature = "shared")]
    impl DeviceRuntimeBuilder {
        /// Bounds what all processes of the user take from the GPU together: `bytes` bytes, live
        /// and retired, never exceeded. All of them must request the same limit. With the pool that
        /// is what their pools keep, page by page. The bytes of a process that has ended are
        /// released when another one needs them.
        ///
        /// A refusal names the processes that hold the most; `dmr info` lists them all. Linux only;
        /// see [`Budget::shared`].
        ///
        /// Needs feature `shared`.
        pub fn shared_budget(mut self, bytes: u64) -> Self {
            self.layers.budget = Some(BudgetChoice::Shared { limit: bytes, group: None });
            self
        }

        /// Bounds what the processes of the user that name this group take from the GPU together,
        /// as [`shared_budget`](Self::shared_budget) does for those that name none. A group name
        /// has 1 to 64 characters: ASCII letters, digits, `.`, `_` and `-`.
        ///
        /// Needs feature `shared`.
        pub fn shared_budget_of(mut self, group: impl Into<String>, bytes: u64) -> Self {
            let group = Some(group.into());
            self.layers.budget = Some(BudgetChoice::Shared { limit: bytes, group });
            self
        }
    }

    impl DeviceRuntime {
        /// The account that its allocations are charged to.
        ///
        /// Needs feature `budget`.
        #[must_use]
        pub fn budget(&self) -> Option<&Budget> {
            self.layers.budget.as_ref()
        }
    }
}

#[cfg(feature = "logging")]
mod logging {
    use std::path::PathBuf;
    use std::sync::Arc;

    use dmr_adaptors::logging::{BackgroundConfig, LoggingResource, LoggingSink};

    use crate::layers::{LogChoice, SharedResource};
    use crate::{DeviceRuntime, DeviceRuntimeBuilder};

    impl DeviceRuntimeBuilder {
        /// Logs every allocation, free, growth and reap to a CSV file, which `dmr replay` reads;
        /// gzip if its name ends in `.gz`. The file is created by [`build`](Self::build), and an
        /// existing one is overwritten.
        ///
        /// Needs feature `logging`.
        pub fn log_csv(self, path: impl Into<PathBuf>) -> Self {
            self.log_csv_with(path, BackgroundConfig::new())
        }

        /// Logs to a CSV file as [`log_csv`](Self::log_csv) does, behind queues of this
        /// configuration: their size, and what a call does when one is full.
        ///
        /// Needs feature `logging`.
        pub fn log_csv_with(mut self, path: impl Into<PathBuf>, config: BackgroundConfig) -> Self {
            self.layers.log = Some(LogChoice::Csv(path.into(), config));
            self
        }

        /// Logs to a sink of your own.
        ///
        /// Needs feature `logging`.
        pub fn log_to(mut self, sink: Arc<dyn LoggingSink>) -> Self {
            self.layers.log = Some(LogChoice::Sink(sink));
            self
        }
    }

    impl DeviceRuntime {
        /// The log: [`flush`](LoggingResource::flush) it before you read it.
        ///
        /// Needs feature `logging`.
        #[must_use]
        pub fn log(&self) -> Option<&LoggingResource<SharedResource>> {
            self.layers.log.as_deref()
        }
    }
}

#[cfg(feature = "debug-guard")]
mod guard {
    use std::sync::Arc;

    use dmr_adaptors::guard::{DebugGuardLayer, DebugGuardResource};

    use crate::layers::{GuardSettings, SharedResource};
    use crate::{DeviceRuntime, DeviceRuntimeBuilder};

    impl DeviceRuntimeBuilder {
        /// Guards every block with red zones, poison and a quarantine: for finding bugs, not for
        /// speed.
        ///
        /// Needs feature `debug-guard`.
        pub fn debug_guard(self) -> Self {
            self.debug_guard_with(|layer| layer)
        }

        /// Adds a debug guard whose settings `change` makes from the default ones.
        ///
        /// Needs feature `debug-guard`.
        pub fn debug_guard_with(
            mut self,
            change: impl Fn(DebugGuardLayer) -> DebugGuardLayer + Send + Sync + 'static,
        ) -> Self {
            self.layers.guard = Some(GuardSettings(Arc::new(change)));
            self
        }
    }

    impl DeviceRuntime {
        /// The guard: what it has found.
        ///
        /// Needs feature `debug-guard`.
        #[must_use]
        pub fn debug_guard(&self) -> Option<&DebugGuardResource<SharedResource>> {
            self.layers.guard.as_deref()
        }
    }
}

#[cfg(feature = "statistics")]
mod statistics {
    use dmr_adaptors::statistics::{StatisticsLayer, StatisticsResource};

    use crate::layers::SharedResource;
    use crate::{DeviceRuntime, DeviceRuntimeBuilder};

    impl DeviceRuntimeBuilder {
        /// Counts what is allocated: current, peak and total, by tag, stream and scope.
        ///
        /// Needs feature `statistics`.
        pub fn statistics(self) -> Self {
            self.statistics_with(StatisticsLayer::new())
        }

        /// Adds statistics with this layer.
        ///
        /// Needs feature `statistics`.
        pub fn statistics_with(mut self, layer: StatisticsLayer) -> Self {
            self.layers.statistics = Some(layer);
            self
        }
    }

    impl DeviceRuntime {
        /// The counts.
        ///
        /// Needs feature `statistics`.
        #[must_use]
        pub fn statistics(&self) -> Option<&StatisticsResource<SharedResource>> {
            self.layers.statistics.as_deref()
        }
    }
}

#[cfg(feature = "callbacks")]
mod callbacks {
    use dmr_adaptors::callbacks::{AllocationFailure, Response};

    use crate::DeviceRuntimeBuilder;

    impl DeviceRuntimeBuilder {
        /// Adds a callback for an allocation that finds too little memory after a reap. Callbacks
        /// are called in the order in which they are added.
        ///
        /// Needs feature `callbacks`.
        pub fn on_out_of_memory(
            mut self,
            callback: impl Fn(&AllocationFailure<'_>) -> Response + Send + Sync + 'static,
        ) -> Self {
            let layer = self.layers.callbacks.take().unwrap_or_default();
            self.layers.callbacks = Some(layer.with_callback(callback));
            self
        }
    }
}

#[cfg(feature = "spill")]
mod spill {
    use dmr_spill::Spill;

    use crate::{DeviceRuntime, DeviceRuntimeBuilder};

    impl DeviceRuntimeBuilder {
        /// Makes a registry of buffers that are moved to pinned host memory when an allocation
        /// finds too little memory, after the callbacks of
        /// [`on_out_of_memory`](Self::on_out_of_memory). It leases one of the runtime's streams.
        ///
        /// Needs feature `spill`.
        pub fn spill(mut self) -> Self {
            self.layers.spills = true;
            self
        }
    }

    impl DeviceRuntime {
        /// Returns the registry of buffers that may be spilled.
        ///
        /// Needs feature `spill`.
        #[must_use]
        pub fn spill(&self) -> Option<&Spill> {
            self.layers.spill.as_ref()
        }
    }
}
