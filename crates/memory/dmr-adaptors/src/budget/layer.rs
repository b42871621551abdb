//! [`BudgetLayer`]: the configuration that makes a [`BudgetResource`].

use dmr_core::DeviceMemoryResource;

use super::{Budget, BudgetResource};
use crate::ResourceLayer;

/// Makes [`BudgetResource`]s that share one budget.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a resource"]
pub struct BudgetLayer {
    budget: Budget,
    reap_pending: bool,
    charge_existing: bool,
}

impl BudgetLayer {
    /// Makes a layer with a new budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self::on(&Budget::new(limit))
    }

    /// Makes a layer that charges `budget`, which may be a part of another budget.
    pub fn on(budget: &Budget) -> Self {
        Self { budget: budget.clone(), reap_pending: true, charge_existing: false }
    }

    /// With `true`, the default, an allocation that does not fit waits for retired blocks
    /// ([`reap_pending`](DeviceMemoryResource::reap_pending)) before it is refused.
    pub const fn with_reap_pending(mut self, reap_pending: bool) -> Self {
        self.reap_pending = reap_pending;
        self
    }

    /// With `true`, blocks that are outstanding when the resource is wrapped are charged (default:
    /// `false`). Leave it off for a tenant of a shared pool: the outstanding blocks there belong to
    /// others.
    ///
    /// Such blocks are charged as a sum, without those that the budget is charged for already.
    /// Afterwards, a block that is deallocated through the budget and was never charged releases
    /// its bytes from that sum. So none may be allocated upstream, and no other thread may use the
    /// resource while it is wrapped.
    pub const fn with_charge_existing(mut self, charge_existing: bool) -> Self {
        self.charge_existing = charge_existing;
        self
    }

    /// Returns the budget that the layer charges.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl<R: DeviceMemoryResource + 'static> ResourceLayer<R> for BudgetLayer {
    type Resource = BudgetResource<R>;

    fn layer(&self, upstream: R) -> BudgetResource<R> {
        BudgetResource::new(upstream, &self.budget, self.reap_pending, self.charge_existing)
    }
}
