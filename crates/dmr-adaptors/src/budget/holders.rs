//! The holders of a tree of accounts, and their bytes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dmr_core::StreamPoolId;
use dmr_core::error::Holder;

use super::account::Account;
use super::tree::{EXISTING, RESERVED, Refusal, Refused, Tree};

impl Tree {
    /// Returns the content of the error for a refusal. Call it without a lock.
    pub(super) fn refusal(&self, refused: Refused) -> Refusal {
        match refused {
            Refused::Full { account, remaining } => Refusal {
                name: account.name(),
                limit: account.limit(),
                remaining,
                pending: self.pending_bytes(&account),
                holders: self.holders(&account),
                shared: None,
            },
            Refused::Outer(refusal) => {
                Refusal { pending: self.pending_bytes(&self.root), ..*refusal }
            }
            Refused::Forked => Refusal::default(),
        }
    }

    /// Returns what holds an account, most bytes first. Call it without a lock.
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
        let ids: HashSet<_> = within.iter().map(|account| account.id).collect();
        let pending = state.pending_within(account);
        drop(state);
        self.charges.for_each(|_, charge| {
            if ids.contains(&charge.account) {
                add(charge.tag, charge.bytes);
            }
        });
        for pending in pending {
            pending.for_each(|block| add(block.tag, block.bytes));
        }
        let mut holders: Vec<_> = sums.into_values().collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.tag.cmp(&b.tag)));
        holders
    }

    /// Returns the bytes of pending blocks that are charged to an account or below it.
    pub(super) fn pending_bytes(&self, account: &Arc<Account>) -> u64 {
        let Some(state) = self.lock() else { return 0 };
        state.pending_within(account).iter().map(|pending| pending.bytes()).sum()
    }

    /// Returns the bytes that an account and those below it are charged for live blocks, and for
    /// pending ones, of resources on these streams.
    pub(super) fn charged_on(&self, account: &Arc<Account>, streams: StreamPoolId) -> [u64; 2] {
        let Some(state) = self.lock() else { return [0; 2] };
        let ids: HashSet<_> = state.within(account).iter().map(|account| account.id).collect();
        let mut pending = state.pending_within(account);
        drop(state);
        let mut live = 0;
        self.charges.for_each(|known, charge| {
            if known == Some(streams) && ids.contains(&charge.account) {
                live += charge.bytes;
            }
        });
        pending.retain(|pending| pending.streams() == streams);
        [live, pending.iter().map(|pending| pending.bytes()).sum()]
    }
}
