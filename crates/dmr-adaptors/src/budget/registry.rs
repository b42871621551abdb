//! One budget per physical GPU, by its UUID.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use dmr_core::process::PerProcess;
use dmr_core::sync::lock;

use super::Budget;
use super::account::Account;

/// The budgets that anybody still has.
static BY_UUID: PerProcess<Mutex<HashMap<[u8; 16], Weak<Account>>>> =
    PerProcess::new(Mutex::default);

impl Budget {
    /// The budget of a physical GPU: one per UUID in the process, however many runtimes and
    /// CUDA ordinals reach it. It is kept for as long as somebody has it.
    ///
    /// The first to ask sets the limit, in bytes. A lower limit of a later one lowers it for all;
    /// a higher one changes nothing: nobody's bound is loosened by somebody else.
    /// [`set_limit`](Self::set_limit) can raise it.
    #[must_use]
    pub fn for_device(uuid: [u8; 16], limit: u64) -> Self {
        let budget = shared(uuid, limit);
        budget.limit_to(limit);
        budget
    }
}

fn shared(uuid: [u8; 16], limit: u64) -> Budget {
    let mut budgets = lock(BY_UUID.get());
    if let Some(account) = budgets.get(&uuid).and_then(Weak::upgrade) {
        return Budget { account };
    }
    let budget = Budget::new(limit);
    budgets.retain(|_, account| account.strong_count() > 0);
    budgets.insert(uuid, Arc::downgrade(&budget.account));
    budget
}
