//! A part of a program that shares a runtime's device and streams, and has layers of its own.

use std::sync::Arc;
#[cfg(feature = "budget")]
use std::time::Duration;

#[cfg(feature = "budget")]
use dmr_adaptors::budget::{Budget, BudgetLayer, Reservation};
#[cfg(feature = "statistics")]
use dmr_adaptors::statistics::{StatisticsLayer, StatisticsResource};
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_streams::{DeviceContext, PinnedResources, StreamPool};

use crate::builder::same_streams;
use crate::pinned::Pinned;
use crate::{DeviceRuntime, RuntimeError, SharedResource};

/// The streams and the pinned memory of a [`DeviceRuntime`], and a resource over the runtime's own:
/// what buffers and launches take. Made by [`DeviceRuntime::tenant_builder`] and
/// [`DeviceRuntime::tenant`].
///
/// `Clone` is cheap, and names the same tenant. A reservation ends with the last clone: keep one
/// for as long as buffers of the tenant grow, or are restored.
#[derive(Clone, Debug)]
pub struct Tenant {
    streams: Arc<StreamPool>,
    resource: SharedResource,
    pinned: Pinned,
    #[allow(dead_code, reason = "what is read depends on the features")]
    layers: TenantLayers,
}

/// The layers of a tenant that a program reads.
#[derive(Clone, Debug, Default)]
struct TenantLayers {
    #[cfg(feature = "budget")]
    budget: Option<Budget>,
    /// Kept for as long as the tenant.
    #[cfg(feature = "budget")]
    reservation: Option<Arc<Reservation>>,
    #[cfg(feature = "statistics")]
    statistics: Option<Arc<StatisticsResource<SharedResource>>>,
    #[cfg(feature = "spill")]
    spill: Option<dmr_spill::Spill>,
}

/// Builds a [`Tenant`].
///
/// Whatever the order of the calls, the layers are put around the runtime's resource in this order,
/// from the inside out: budget, statistics, spilling. So buffers that are spilled make room in the
/// tenant's own budget.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct TenantBuilder<'a> {
    runtime: &'a DeviceRuntime,
    #[allow(dead_code, reason = "only a budget has a name")]
    name: AllocTag,
    #[cfg(feature = "budget")]
    bound: Option<Bound>,
    #[cfg(feature = "statistics")]
    counts: bool,
    #[cfg(feature = "spill")]
    spills: bool,
}

/// The bound of a tenant's bytes.
#[cfg(feature = "budget")]
#[derive(Clone, Debug)]
enum Bound {
    Limit(u64),
    Share { of: Budget, bytes: u64 },
    Reservation { of: Budget, bytes: u64, timeout: Duration },
}

impl DeviceRuntime {
    /// Starts a tenant: a context for a part of the program, such as a query, with a budget,
    /// spilling and statistics of its own. Errors of its budget have this name. A name that is made
    /// at run time is interned once and kept for ever ([`AllocTag::intern`]).
    ///
    /// ```no_run
    /// # #[cfg(all(feature = "budget", feature = "spill", feature = "statistics"))]
    /// # fn query(gpu: &dmr::DeviceRuntime) -> dmr::Result {
    /// use std::time::Duration;
    ///
    /// use dmr::prelude::*;
    ///
    /// let queries = Budget::new(8 << 30).named(AllocTag::new("queries")); // one for all
    /// let query = gpu
    ///     .tenant_builder(AllocTag::new("query 7"))
    ///     .reserve(&queries, 2 << 30, Duration::from_secs(10))
    ///     .spill()
    ///     .statistics()
    ///     .build()?;
    /// let stream = query.streams().acquire()?;
    /// let table = DeviceBuffer::<u8>::zeroed(&query, &stream, 1 << 30)?; // of what was reserved
    /// # Ok(())
    /// # }
    /// ```
    pub fn tenant_builder(&self, name: AllocTag) -> TenantBuilder<'_> {
        TenantBuilder {
            runtime: self,
            name,
            #[cfg(feature = "budget")]
            bound: None,
            #[cfg(feature = "statistics")]
            counts: false,
            #[cfg(feature = "spill")]
            spills: false,
        }
    }

    /// Makes a tenant with other layers, or in another order, than
    /// [`tenant_builder`](Self::tenant_builder) has. `stack` takes the runtime's resource and
    /// returns it with these layers.
    ///
    /// Free a block through the tenant that allocated it; buffers do.
    ///
    /// # Errors
    ///
    /// [`Mismatch`](RuntimeError::Mismatch) if what `stack` returns works on the streams of another
    /// pool.
    pub fn tenant<R: DeviceMemoryResource + 'static>(
        &self,
        stack: impl FnOnce(SharedResource) -> R,
    ) -> Result<Tenant, RuntimeError> {
        let resource = stack(Arc::clone(self.resource()));
        same_streams(&resource, self.streams())?;
        Ok(self.tenant_of(Arc::new(resource), TenantLayers::default()))
    }

    fn tenant_of(&self, resource: SharedResource, layers: TenantLayers) -> Tenant {
        let streams = Arc::clone(self.streams());
        let pinned = self.layers.pinned.clone();
        Tenant { streams, resource, pinned, layers }
    }
}

impl TenantBuilder<'_> {
    /// Builds the tenant. Waits for a reservation.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Resource`]: [`OutOfBudget`](dmr_core::ResourceError::OutOfBudget) if the
    /// bytes are not there when the timeout of the reservation is over, and the errors of leasing a
    /// stream to spill on. [`RuntimeError::Settings`] if the budget is the runtime's own.
    pub fn build(self) -> Result<Tenant, RuntimeError> {
        #[allow(unused_mut, reason = "what is used depends on the features")]
        let mut resource = Arc::clone(self.runtime.resource());
        #[allow(unused_mut, reason = "what is used depends on the features")]
        let mut layers = TenantLayers::default();
        #[cfg(feature = "budget")]
        if let Some(bound) = &self.bound {
            use dmr_adaptors::ResourceLayer;
            let budget = self.budget_of(bound, &mut layers)?;
            resource = Arc::new(BudgetLayer::on(&budget).layer(resource));
            layers.budget = Some(budget);
        }
        #[cfg(feature = "statistics")]
        if self.counts {
            use dmr_adaptors::ResourceLayer;
            let statistics = Arc::new(StatisticsLayer::new().layer(resource));
            resource = Arc::clone(&statistics) as SharedResource;
            layers.statistics = Some(statistics);
        }
        #[cfg(feature = "spill")]
        if self.spills {
            use dmr_adaptors::{ResourceLayer, callbacks::FailureCallbackLayer};
            // Copies on the runtime's stream, if it has one: streams are limited, tenants are not.
            let spill = match self.runtime.spill() {
                Some(spill) => spill.sibling(),
                None => dmr_spill::Spill::new(self.runtime.streams())?,
            };
            let callbacks = FailureCallbackLayer::new().with_callback(spill.callback());
            resource = Arc::new(callbacks.layer(resource));
            layers.spill = Some(spill);
        }
        Ok(self.runtime.tenant_of(resource, layers))
    }
}

#[cfg(feature = "budget")]
impl TenantBuilder<'_> {
    /// Bounds the tenant's blocks: `bytes` bytes, live and retired, never exceeded. Nothing is set
    /// aside. Of `limit`, [`share_of`](Self::share_of) and [`reserve`](Self::reserve) the last call
    /// counts.
    ///
    /// Needs feature `budget`.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.bound = Some(Bound::Limit(bytes));
        self
    }

    /// Bounds the tenant's blocks by `bytes` bytes, and together with those of all other shares by
    /// `budget` ([`Budget::sub_budget`]). Nothing is set aside.
    ///
    /// Needs feature `budget`.
    pub fn share_of(mut self, budget: &Budget, bytes: u64) -> Self {
        self.bound = Some(Bound::Share { of: budget.clone(), bytes });
        self
    }

    /// Takes `bytes` bytes out of `budget` for the tenant's blocks, which are bounded by them, and
    /// waits up to `timeout` for them, first come, first served ([`Budget::reserve`]). They return
    /// when the last clone of the tenant is dropped and its blocks are freed.
    ///
    /// `budget` bounds the bytes of blocks, so it is not the [`budget`](DeviceRuntime::budget) of
    /// the runtime, which is charged for the memory that these blocks are made of:
    /// `Budget::new(bytes)` makes one for all tenants. A pool takes some percent more from the
    /// device than its blocks have; leave that between the two limits.
    ///
    /// Needs feature `budget`.
    pub fn reserve(mut self, budget: &Budget, bytes: u64, timeout: Duration) -> Self {
        self.bound = Some(Bound::Reservation { of: budget.clone(), bytes, timeout });
        self
    }

    fn budget_of(&self, bound: &Bound, layers: &mut TenantLayers) -> Result<Budget, RuntimeError> {
        if let Bound::Share { of, .. } | Bound::Reservation { of, .. } = bound
            && self.runtime.budget().is_some_and(|runtime| runtime.shares_root_with(of))
        {
            return Err(RuntimeError::Settings {
                problem: "the runtime's own budget is charged for the memory below the tenants, so a tenant's blocks \
                          would be charged to it twice: pass a budget for all tenants, made by `Budget::new`",
            });
        }
        Ok(match bound {
            Bound::Limit(bytes) => Budget::new(*bytes).named(self.name),
            Bound::Share { of, bytes } => of.sub_budget(self.name, *bytes),
            Bound::Reservation { of, bytes, timeout } => {
                let reservation = of.reserve(*bytes, *timeout)?;
                let budget = Budget::clone(&reservation).named(self.name);
                layers.reservation = Some(Arc::new(reservation));
                budget
            }
        })
    }
}

#[cfg(feature = "statistics")]
impl TenantBuilder<'_> {
    /// Counts what the tenant allocates: current, peak and total, by tag, stream and scope.
    ///
    /// Needs feature `statistics`.
    pub fn statistics(mut self) -> Self {
        self.counts = true;
        self
    }
}

#[cfg(feature = "spill")]
impl TenantBuilder<'_> {
    /// Makes a registry of buffers of this tenant, which are moved to pinned host memory when an
    /// allocation of the tenant finds too little memory, also in its own budget. Buffers of others
    /// stay. It copies on the stream of the runtime's registry if [the runtime
    /// spills](crate::DeviceRuntimeBuilder::spill), and else leases one of the runtime's streams.
    ///
    /// Needs feature `spill`.
    pub fn spill(mut self) -> Self {
        self.spills = true;
        self
    }
}

impl Tenant {
    /// Returns the budget of the tenant's blocks.
    ///
    /// Needs feature `budget`.
    #[cfg(feature = "budget")]
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.layers.budget.as_ref()
    }

    /// Returns the counts of the tenant.
    ///
    /// Needs feature `statistics`.
    #[cfg(feature = "statistics")]
    #[must_use]
    pub fn statistics(&self) -> Option<&StatisticsResource<SharedResource>> {
        self.layers.statistics.as_deref()
    }

    /// Returns the registry of the tenant's buffers that may be spilled.
    ///
    /// Needs feature `spill`.
    #[cfg(feature = "spill")]
    #[must_use]
    pub fn spill(&self) -> Option<&dmr_spill::Spill> {
        self.layers.spill.as_ref()
    }
}

impl DeviceContext for Tenant {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    fn pinned_resources(&self) -> Option<&Arc<PinnedResources>> {
        self.pinned.resources()
    }
}
