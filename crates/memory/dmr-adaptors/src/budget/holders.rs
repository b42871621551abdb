//! The holders of the bytes of a tree, and the error of a refusal, which names them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dmr_core::error::Holder;
use dmr_core::{AllocTag, ResourceError, StreamPoolId};

use crate::sync::lock;

use super::account::Account;
use super::charges::Charge;
use super::outer::OuterRefusal;
use super::tree::{EXISTING, RESERVED, Refused, Tree};

impl Tree {
    /// Returns the error for `bytes` that were refused. Call it without a lock, as the others of
    /// this file.
    pub(super) fn error(&self, refused: Refused, bytes: u64) -> ResourceError {
        let requested = usize::try_from(bytes).unwrap_or(usize::MAX);
        let new = |name, limit, remaining, pending, holders| {
            ResourceError::out_of_budget(name, requested, limit, remaining, pending, holders)
        };
        match refused {
            Refused::Full { account, remaining } => {
                let name = *lock(&account.name);
                let pending = self.retired_bytes(&account, None);
                new(name, account.limit(), remaining, pending, self.holders(&account))
            }
            Refused::Outer(OuterRefusal { limit, remaining, shared }) => {
                let pending = self.retired_bytes(&self.root, None);
                new(AllocTag::UNTAGGED, limit, remaining, pending, Vec::new()).shared_by(shared)
            }
            Refused::Forked => new(AllocTag::UNTAGGED, 0, 0, 0, Vec::new()),
        }
    }

    /// Returns the holders of an account, most bytes first.
    pub(super) fn holders(&self, account: &Arc<Account>) -> Vec<Holder> {
        let mut sums = HashMap::new();
        let mut add = |tag, bytes| {
            let sum = sums.entry(tag).or_insert(Holder { tag, bytes: 0, blocks: 0 });
            sum.bytes += bytes;
            sum.blocks += u64::from(tag != EXISTING);
        };
        let within = self.for_each_charge(account, |_, charge| add(charge.tag, charge.bytes));
        for below in within.iter().filter(|below| !Arc::ptr_eq(below, account)) {
            if below.unused() > 0 {
                add(RESERVED, below.unused());
            }
        }
        for block in self.retired().iter().flat_map(|queue| queue.iter()) {
            if block.source.account.is_within(account) {
                add(block.tag, block.bytes);
            }
        }
        let mut holders: Vec<_> = sums.into_values().collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.tag.cmp(&b.tag)));
        holders
    }

    /// Returns the bytes that an account and those below it are charged for live blocks of these
    /// streams.
    pub(super) fn live_bytes(&self, account: &Arc<Account>, streams: StreamPoolId) -> u64 {
        let mut live = 0;
        self.for_each_charge(account, |of, charge| {
            live += if of == Some(streams) { charge.bytes } else { 0 };
        });
        live
    }

    /// Calls `visit` for each charge of an account and those below it, with the streams of the
    /// block. Returns these accounts.
    fn for_each_charge(
        &self,
        account: &Arc<Account>,
        mut visit: impl FnMut(Option<StreamPoolId>, Charge),
    ) -> Vec<Arc<Account>> {
        let Some(state) = self.lock() else { return Vec::new() };
        let is_within = |below: &&Arc<Account>| below.is_within(account);
        let within: Vec<_> = state.accounts.values().filter(is_within).cloned().collect();
        drop(state);
        let ids: HashSet<_> = within.iter().map(|account| account.id).collect();
        self.charges.for_each(|streams, charge| {
            if ids.contains(&charge.account) {
                visit(streams, charge);
            }
        });
        within
    }
}
