//! The holders of the bytes of a tree, and the error of a refusal, which names them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dmr_core::error::Holder;
use dmr_core::{AllocTag, ResourceError, StreamPoolId};

use crate::sync::lock;

use super::account::Account;
use super::tree::{EXISTING, RESERVED, Refused, Tree};

impl Tree {
    /// Returns the error for `bytes` that were refused. Call it without a lock, as the others of this file.
    pub(super) fn error(&self, refused: Refused, bytes: u64) -> ResourceError {
        let requested = usize::try_from(bytes).unwrap_or(usize::MAX);
        match refused {
            Refused::Full { account, remaining } => {
                let (name, limit) = (*lock(&account.name), account.limit());
                let pending = self.retired_bytes(&account, None);
                let holders = self.holders(&account);
                ResourceError::out_of_budget(name, requested, limit, remaining, pending, holders)
            }
            Refused::Outer(refusal) => {
                let pending = self.retired_bytes(&self.root, None);
                let (name, limit, left) = (AllocTag::UNTAGGED, refusal.limit, refusal.remaining);
                ResourceError::out_of_budget(name, requested, limit, left, pending, Vec::new())
                    .shared_by(refusal.shared)
            }
            Refused::Forked => {
                ResourceError::out_of_budget(AllocTag::UNTAGGED, requested, 0, 0, 0, Vec::new())
            }
        }
    }

    /// Returns the holders of an account, most bytes first.
    pub(super) fn holders(&self, account: &Arc<Account>) -> Vec<Holder> {
        let Some(state) = self.lock() else { return Vec::new() };
        let mut sums = HashMap::new();
        let mut add = |tag, bytes| {
            let sum = sums.entry(tag).or_insert(Holder { tag, bytes: 0, blocks: 0 });
            sum.bytes += bytes;
            sum.blocks += u64::from(tag != EXISTING);
        };
        let within = state.within(account);
        for below in within.iter().filter(|below| !Arc::ptr_eq(below, account)) {
            if below.unused() > 0 {
                add(RESERVED, below.unused());
            }
        }
        drop(state);
        let ids: HashSet<_> = within.iter().map(|account| account.id).collect();
        self.charges.for_each(|_, charge| {
            if ids.contains(&charge.account) {
                add(charge.tag, charge.bytes);
            }
        });
        for block in self.retired().iter().flat_map(|queue| queue.iter()) {
            if block.source.account.is_within(account) {
                add(block.tag, block.bytes);
            }
        }
        let mut holders: Vec<_> = sums.into_values().collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.tag.cmp(&b.tag)));
        holders
    }

    /// Returns the bytes that an account and those below it are charged for live blocks of these streams.
    pub(super) fn live_bytes(&self, account: &Arc<Account>, streams: StreamPoolId) -> u64 {
        let Some(state) = self.lock() else { return 0 };
        let ids: HashSet<_> = state.within(account).iter().map(|account| account.id).collect();
        drop(state);
        let mut live = 0;
        self.charges.for_each(|known, charge| {
            if known == Some(streams) && ids.contains(&charge.account) {
                live += charge.bytes;
            }
        });
        live
    }
}
