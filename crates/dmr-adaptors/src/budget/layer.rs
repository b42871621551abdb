//! [`BudgetLayer`]: the configuration that makes a [`GlobalDeviceBudget`].

use dmr_core::DeviceMemoryResource;

use super::{Budget, GlobalDeviceBudget};
use crate::ResourceLayer;

/// Makes [`GlobalDeviceBudget`]s that charge one budget: all that one layer makes share it.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a resource"]
pub struct BudgetLayer {
    budget: Budget,
    reap_pending: bool,
    counts_what_is_out: bool,
}

impl BudgetLayer {
    /// A layer with a budget of its own, of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self::on(&Budget::new(limit))
    }

    /// A layer that charges this budget, or this part of one.
    pub fn on(budget: &Budget) -> Self {
        Self { budget: budget.clone(), reap_pending: true, counts_what_is_out: budget.is_whole() }
    }

    /// Whether an allocation that does not fit waits for retired blocks
    /// ([`reap_pending`](DeviceMemoryResource::reap_pending)) before it is refused. It does unless
    /// this says otherwise.
    pub const fn with_reap_pending(mut self, waits: bool) -> Self {
        self.reap_pending = waits;
        self
    }

    /// Whether what the resource has out when it is wrapped is charged. It is, except to a part of
    /// a budget: what a tenant finds in a pool belongs to others.
    ///
    /// Such blocks are given back like any other. Nobody may use the resource while it is wrapped.
    pub const fn with_what_is_out(mut self, is_charged: bool) -> Self {
        self.counts_what_is_out = is_charged;
        self
    }

    /// The budget that it charges.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl<R: DeviceMemoryResource + 'static> ResourceLayer<R> for BudgetLayer {
    type Resource = GlobalDeviceBudget<R>;

    fn layer(&self, inner: R) -> GlobalDeviceBudget<R> {
        GlobalDeviceBudget::new(inner, &self.budget, self.reap_pending, self.counts_what_is_out)
    }
}
