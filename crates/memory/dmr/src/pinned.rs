//! The layers around a runtime's pinned memory: its budget, and its statistics.

use std::sync::Arc;

use dmr_core::{HostMemoryResource, Usage};
use dmr_pinned::{PinnedPool, PinnedResources};
use dmr_streams::StreamPool;

#[cfg(feature = "budget")]
use dmr_adaptors::budget::Budget;
#[cfg(feature = "statistics")]
use dmr_adaptors::statistics::StatisticsResource;
#[cfg(any(feature = "budget", feature = "statistics"))]
use dmr_pinned::{PinnedKind, PinnedResource};

use crate::DeviceRuntime;
use crate::layers::Layers;

/// A resource of pinned memory whose type is not known: what a runtime's pinned buffers allocate
/// from.
pub type SharedHostResource = Arc<dyn HostMemoryResource>;

/// The stacks over the pinned memory of a runtime, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pinned {
    /// `None` if there are no layers.
    resources: Option<Arc<PinnedResources>>,
    #[cfg(feature = "budget")]
    budget: Option<Budget>,
    #[cfg(feature = "statistics")]
    statistics: [Option<Arc<StatisticsResource<SharedHostResource>>>; PinnedKind::ALL.len()],
}

impl Pinned {
    /// Puts the budget for pinned memory around the pinned memory of these streams, and statistics
    /// where those of device memory are on.
    #[allow(unused_mut, unused_variables, reason = "what is used depends on the features")]
    pub(crate) fn of(layers: &Layers, streams: &Arc<StreamPool>) -> Self {
        let mut pinned = Self::default();
        #[cfg(feature = "budget")]
        pinned.budget.clone_from(&layers.pinned_budget);
        #[cfg(any(feature = "budget", feature = "statistics"))]
        {
            let mut resources = None;
            for kind in PinnedKind::ALL {
                if let Some(resource) = pinned.layered(kind, layers, streams) {
                    let others: PinnedResources = resources.unwrap_or_default();
                    resources = Some(others.with(kind, resource));
                }
            }
            pinned.resources = resources.map(Arc::new);
        }
        pinned
    }

    /// Returns the pool of this kind in its layers; `None` if there are none.
    #[cfg(any(feature = "budget", feature = "statistics"))]
    fn layered(
        &mut self,
        kind: PinnedKind,
        layers: &Layers,
        streams: &Arc<StreamPool>,
    ) -> Option<SharedHostResource> {
        use dmr_adaptors::ResourceLayer;
        let pool =
            || -> SharedHostResource { Arc::new(PinnedResource::new(Arc::clone(streams), kind)) };
        let mut resource: Option<SharedHostResource> = None;
        #[cfg(feature = "budget")]
        if let Some(budget) = &layers.pinned_budget {
            let layer = dmr_adaptors::budget::BudgetLayer::on(budget);
            resource = Some(Arc::new(layer.layer(pool())));
        }
        #[cfg(feature = "statistics")]
        if let Some(layer) = &layers.statistics {
            let statistics = Arc::new(layer.layer(resource.unwrap_or_else(pool)));
            self.statistics[kind as usize] = Some(Arc::clone(&statistics));
            resource = Some(statistics);
        }
        resource
    }

    pub(crate) fn resources(&self) -> Option<&Arc<PinnedResources>> {
        self.resources.as_ref()
    }
}

#[cfg(feature = "budget")]
impl crate::DeviceRuntimeBuilder {
    /// Bounds the pinned memory of the runtime's buffers: `bytes` bytes, live and retired, of all
    /// kinds, never exceeded. A buffer that does not fit waits for dropped ones before it is
    /// refused. The copies of `to_host_async` count, and buffers that were spilled: one that does
    /// not fit stays on the device. Device memory does not count. Nor does free memory that the
    /// pool of pinned memory keeps: [`DeviceRuntime::pinned_usage`] has it as `reserved`, and
    /// [`DeviceRuntime::trim_pinned`] returns it.
    ///
    /// Needs feature `budget`.
    pub fn pinned_budget(self, bytes: u64) -> Self {
        self.pinned_budget_on(&Budget::new(bytes).named(dmr_core::AllocTag::new("pinned memory")))
    }

    /// Bounds the pinned memory of the runtime's buffers by an account of your own.
    ///
    /// Needs feature `budget`.
    pub fn pinned_budget_on(mut self, budget: &Budget) -> Self {
        self.layers.pinned_budget = Some(budget.clone());
        self
    }
}

impl DeviceRuntime {
    /// Returns the accounting of the pinned memory of the runtime's streams, of all kinds.
    #[must_use]
    pub fn pinned_usage(&self) -> Usage {
        PinnedPool::of(self.streams()).usage()
    }

    /// Returns pinned memory that no buffer uses to the driver while more than `keep_bytes` bytes
    /// of a kind are reserved; returns the bytes. The driver's call may wait for other work of the
    /// device.
    ///
    /// # Errors
    ///
    /// As [`PinnedPool::trim_to`].
    pub fn trim_pinned(&self, keep_bytes: u64) -> dmr_core::ResourceResult<u64> {
        dmr_buffer::pinned::trim_pinned(self, keep_bytes)
    }

    /// Returns the account that pinned memory is charged to.
    ///
    /// Needs feature `budget`.
    #[cfg(feature = "budget")]
    #[must_use]
    pub fn pinned_budget(&self) -> Option<&Budget> {
        self.layers.pinned.budget.as_ref()
    }

    /// Returns the counts of pinned memory of a kind, apart from those of device memory. They are
    /// on where [`statistics`](Self::statistics) are.
    ///
    /// Needs feature `statistics`.
    #[cfg(feature = "statistics")]
    #[must_use]
    pub fn pinned_statistics(
        &self,
        kind: PinnedKind,
    ) -> Option<&StatisticsResource<SharedHostResource>> {
        self.layers.pinned.statistics[kind as usize].as_deref()
    }
}
