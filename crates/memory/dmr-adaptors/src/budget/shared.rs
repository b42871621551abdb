//! [`Budget::shared`]: a budget within a limit that processes share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use dmr_core::AllocTag;
use dmr_core::error::SharedShortage;
use dmr_core::process::{LeakedInChild, PerProcess};
use dmr_core::sync::lock;
use dmr_shared_limit::{ChargeError, Largest, SharedLimit, SharedLimitConfig, SharedLimitError};

use super::Budget;
use super::account::{MAX_BYTES, signed};
use super::outer::{OuterLimit, OuterRefusal};
use super::tree::{EXISTING, RESERVED, Tree};

/// The time for which a charge waits for the account at least, and a query at most.
const MOMENT: Duration = Duration::from_millis(50);

impl Budget {
    /// Returns the budget of a physical GPU that all processes of the user, or of a group of them,
    /// share: what is charged by all of them together never exceeds the limit. The bytes of a
    /// process that has ended, in whatever way, are released when another one needs them.
    ///
    /// One budget for each configuration in the process, which exists as long as a handle to it or
    /// to a part of it does. [`remaining`](Self::remaining) is what is left for all processes;
    /// [`reserved_bytes`](Self::reserved_bytes) and [`holders`](Self::holders) are of this process.
    /// A charge takes a few microseconds more than that of another budget: put a pool above it. If
    /// a process is stopped at the wrong moment, charges wait for it, for at most [5
    /// s](SharedLimitConfig::with_lock_timeout), and are refused then. A waiting
    /// [`reserve`](Self::reserve) notices releases of other processes within 2 ms.
    ///
    /// # Errors
    ///
    /// [`Problem`](dmr_shared_limit::Problem) has them all: another limit is in force, the account
    /// belongs to another user, is damaged, of another version or of another namespace; Linux only.
    pub fn shared(config: &SharedLimitConfig) -> Result<Self, SharedLimitError> {
        type Budgets = HashMap<SharedLimitConfig, Weak<Tree>>;
        /// The budgets that still exist.
        static BY_CONFIG: PerProcess<Mutex<Budgets>> = PerProcess::new(Mutex::default);

        let existing = |budgets: &Budgets| {
            let tree = budgets.get(config)?.upgrade()?;
            Some(Self::of(&tree))
        };
        if let Some(budget) = existing(&lock(BY_CONFIG.get())) {
            return Ok(budget);
        }
        // The lock is not held while an account is waited for.
        let limit = SharedLimit::join(config)?;
        let shared = Shared { limit, tags: LeakedInChild::default() };
        let budget = Self::of(&Arc::new(Tree::new(MAX_BYTES, Some(Arc::new(shared)))));
        let mut budgets = lock(BY_CONFIG.get());
        if let Some(by_another_thread) = existing(&budgets) {
            // Before `budget` is dropped, which waits for the account.
            drop(budgets);
            return Ok(by_another_thread);
        }
        budgets.retain(|_, tree| tree.strong_count() > 0);
        budgets.insert(config.clone(), Arc::downgrade(&budget.tree));
        Ok(budget)
    }
}

/// A limit that processes share, and what each tag of this process has charged to it.
#[derive(Debug)]
struct Shared {
    limit: SharedLimit,
    /// Bytes by tag: a hint, because a block of a reservation is charged as `(reserved)`.
    tags: LeakedInChild<Mutex<HashMap<AllocTag, u64>>>,
}

impl Shared {
    /// Calls `call` with the tag that holds the most, after the bytes of a tag have changed.
    fn count<T>(&self, bytes: i64, tag: AllocTag, call: impl FnOnce(Largest<'_>) -> T) -> T {
        let mut tags = lock(&self.tags);
        if bytes > 0 {
            let held = tags.entry(tag).or_default();
            *held = held.saturating_add_signed(bytes);
        } else {
            // Bytes that the tag does not have were charged before the block had the tag.
            let mut rest = bytes.unsigned_abs();
            for tag in [tag, RESERVED, EXISTING] {
                let Some(held) = tags.get_mut(&tag) else { continue };
                let taken = rest.min(*held);
                *held -= taken;
                rest -= taken;
            }
            tags.retain(|_, held| *held > 0);
        }
        let largest = tags.iter().max_by_key(|(_, bytes)| **bytes);
        let largest = largest.map(|(tag, bytes)| Largest { tag: tag.name(), bytes: *bytes });
        drop(tags);
        call(largest.unwrap_or_default())
    }
}

impl OuterLimit for Shared {
    fn limit(&self) -> u64 {
        self.limit.limit()
    }

    fn try_charge(
        &self,
        bytes: u64,
        tag: AllocTag,
        deadline: Option<Instant>,
    ) -> Result<(), OuterRefusal> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let patience = deadline.map_or(Duration::MAX, |deadline| left(deadline).max(MOMENT));
        let charge = |largest: Largest<'_>| self.limit.charge_within(bytes, largest, patience);
        let Err(error) = self.count(signed(bytes), tag, charge) else { return Ok(()) };
        self.count(-signed(bytes), tag, |_| ());
        let (remaining, processes, problem) = match error {
            ChargeError::OverLimit(refusal) => (refusal.remaining(), refusal.processes, None),
            error => (0, Vec::new(), Some(error.to_string().into())),
        };
        let shared = SharedShortage { processes: processes.into(), problem };
        Err(OuterRefusal { limit: self.limit(), remaining, shared })
    }

    fn adjust(&self, bytes: i64, tag: AllocTag) {
        self.count(bytes, tag, |largest| match u64::try_from(bytes) {
            Ok(bytes) => self.limit.charge_existing(bytes, largest),
            Err(_) => self.limit.release(bytes.unsigned_abs(), largest),
        });
    }

    fn remaining(&self) -> u64 {
        self.limit.usage_within(MOMENT).map_or(0, |usage| usage.remaining())
    }
}
