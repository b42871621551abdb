//! [`Budget::shared`]: a budget within a limit that processes share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use dmr_core::AllocTag;
use dmr_core::error::SharedShortage;
use dmr_core::process::{LeakedInChild, PerProcess};
use dmr_core::sync::lock;
use dmr_shared_limit::{ChargeError, Largest, SharedLimit, SharedLimitConfig, SharedLimitError};

use super::Budget;
use super::outer::OuterLimit;
use super::tree::{RESERVED, Refusal, Tree};

impl Budget {
    /// Returns the budget of a physical GPU that all processes of the user, or of a group of them, share: what is
    /// charged by all of them together never exceeds the limit. The bytes of a process that has ended, in whatever
    /// way, are released when another one needs them.
    ///
    /// One budget for each configuration in the process, which exists as long as a handle to it or to a part of it
    /// does. [`remaining`](Self::remaining) is what is left for all processes;
    /// [`reserved_bytes`](Self::reserved_bytes) and [`holders`](Self::holders) are of this process. A charge takes a
    /// few microseconds more than that of another budget: put a pool above it. If a process is stopped at the
    /// wrong moment, charges wait for it, for at most
    /// [5 s](SharedLimitConfig::with_lock_timeout), and are refused then. A waiting [`reserve`](Self::reserve) notices
    /// releases of other processes within 2 ms.
    ///
    /// # Errors
    ///
    /// [`Problem`](dmr_shared_limit::Problem) has them all: another limit is in force, the account belongs to
    /// another user, is damaged, of another version or of another namespace; Linux only.
    pub fn shared(config: &SharedLimitConfig) -> Result<Self, SharedLimitError> {
        type Budgets = HashMap<SharedLimitConfig, Weak<Tree>>;
        /// The budgets that still exist.
        static BY_CONFIG: PerProcess<Mutex<Budgets>> = PerProcess::new(Mutex::default);

        let existing =
            |budgets: &Budgets| budgets.get(config).and_then(Weak::upgrade).map(Self::of);
        if let Some(budget) = existing(&lock(BY_CONFIG.get())) {
            return Ok(budget);
        }
        // The lock is not held while an account is waited for.
        let limit = SharedLimit::join(config)?;
        let budget =
            Self::within(limit.limit(), Arc::new(Shared { limit, tags: LeakedInChild::default() }));
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
    /// Bytes by tag; they add up to what is charged. A hint, because a block of a reservation is charged as `(reserved)`.
    tags: LeakedInChild<Mutex<HashMap<AllocTag, u64>>>,
}

impl Shared {
    /// Adds to the bytes of a tag, and returns the tag that holds the most.
    fn added(&self, tag: AllocTag, bytes: u64) -> (AllocTag, u64) {
        let mut tags = lock(&self.tags);
        let held = tags.entry(tag).or_default();
        *held = held.saturating_add(bytes);
        largest(&tags)
    }

    /// Takes from the bytes of a tag what it has, and the rest from `(reserved)`: a block of a reservation was charged
    /// as that. Where that has less, because unused room was released before, from the tag with the most. Returns the
    /// tag that holds the most.
    fn removed(&self, tag: AllocTag, mut bytes: u64) -> (AllocTag, u64) {
        let mut tags = lock(&self.tags);
        let mut first = [tag, RESERVED].into_iter();
        while bytes > 0 && !tags.is_empty() {
            let tag = first.next().unwrap_or_else(|| largest(&tags).0);
            let Some(held) = tags.get_mut(&tag) else { continue };
            let taken = bytes.min(*held);
            (*held, bytes) = (*held - taken, bytes - taken);
            if *held == 0 {
                tags.remove(&tag);
            }
        }
        largest(&tags)
    }

    fn refusal(&self, error: ChargeError) -> Refusal {
        let (remaining, shared) = match error {
            ChargeError::OverLimit(refusal) => {
                let (remaining, processes) = (refusal.remaining(), refusal.processes.into());
                (remaining, SharedShortage { processes, problem: None })
            }
            error => {
                let problem = Some(error.to_string().into());
                (0, SharedShortage { problem, ..SharedShortage::default() })
            }
        };
        Refusal {
            name: AllocTag::UNTAGGED,
            limit: self.limit.limit(),
            remaining,
            pending: 0,
            holders: Vec::new(),
            shared: Some(Box::new(shared)),
        }
    }
}

fn largest(tags: &HashMap<AllocTag, u64>) -> (AllocTag, u64) {
    let largest = tags.iter().max_by_key(|(_, bytes)| **bytes);
    largest.map_or((AllocTag::UNTAGGED, 0), |(tag, bytes)| (*tag, *bytes))
}

fn shown((tag, bytes): &(AllocTag, u64)) -> Largest<'static> {
    Largest { tag: tag.name(), bytes: *bytes }
}

impl OuterLimit for Shared {
    fn try_charge(&self, bytes: u64, tag: AllocTag) -> Result<(), Refusal> {
        let charged = self.limit.charge(bytes, shown(&self.added(tag, bytes)));
        charged.map_err(|error| {
            self.removed(tag, bytes);
            self.refusal(error)
        })
    }

    fn charge_anyway(&self, bytes: u64, tag: AllocTag) {
        self.limit.charge_existing(bytes, shown(&self.added(tag, bytes)));
    }

    fn release(&self, bytes: u64, tag: AllocTag) {
        self.limit.release(bytes, shown(&self.removed(tag, bytes)));
    }

    fn remaining(&self) -> u64 {
        self.limit.usage().map_or(0, |usage| usage.remaining())
    }
}
