//! `CUmemoryPool`: which freed memory a stream-ordered allocation may take, and what it must then
//! wait for.
//!
//! The rules are those of the CUDA Driver API's "Stream Ordered Memory Allocator": memory freed
//! on the same stream is reused at once; memory whose free the allocating stream already comes
//! after, by event dependencies; memory whose free has already executed; and, when the device is
//! out of memory, any, by a dependency that the driver adds. All but the first are attributes.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::address::ALIGNMENT;
use crate::clock::{Clock, Epoch};

/// A pool grows by multiples of this.
pub(crate) const CHUNK: u64 = 2 << 20;

/// What a free range must still come after: the frees of what lay there.
pub(crate) type Pending = SmallVec<[Epoch; 2]>;

#[derive(Debug)]
pub(crate) struct DriverPool {
    pub(crate) device: usize,
    pub(crate) follow_event_dependencies: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal_dependencies: bool,
    pub(crate) release_threshold: u64,
    /// Bytes that the pool may reserve; 0: no limit.
    pub(crate) max_bytes: u64,
    /// Taken from the device: start and bytes.
    chunks: BTreeMap<u64, u64>,
    free: BTreeMap<u64, Free>,
    /// Handed out: start and bytes set aside.
    taken: BTreeMap<u64, u64>,
    pub(crate) reserved: Counter,
    pub(crate) used: Counter,
}

/// A current value and its high-water mark.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    pub(crate) current: u64,
    pub(crate) high: u64,
}

impl Counter {
    fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }
}

#[derive(Clone, Debug)]
struct Free {
    bytes: u64,
    pending: Pending,
}

/// Memory that a pool hands out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    /// What the driver makes the stream wait for.
    pub(crate) wait_for: Pending,
}

/// How the pool learns what the machine knows.
pub(crate) struct Known<'a> {
    /// The allocating stream.
    pub(crate) stream: u32,
    /// What that stream comes after.
    pub(crate) clock: &'a Clock,
    /// Whether an operation has executed.
    pub(crate) executed: &'a dyn Fn(Epoch) -> bool,
}

impl DriverPool {
    pub(crate) fn new(device: usize, max_bytes: u64) -> Self {
        Self {
            device,
            follow_event_dependencies: true,
            opportunistic: true,
            internal_dependencies: true,
            release_threshold: 0,
            max_bytes,
            chunks: BTreeMap::new(),
            free: BTreeMap::new(),
            taken: BTreeMap::new(),
            reserved: Counter::default(),
            used: Counter::default(),
        }
    }

    /// Memory that is free already, by the rules that add no wait.
    pub(crate) fn reuse(&mut self, bytes: u64, known: &Known<'_>) -> Option<Grant> {
        let rules: [&dyn Fn(Epoch) -> bool; 3] = [
            &|epoch| epoch.stream == known.stream,
            &|epoch| self.follow_event_dependencies && known.clock.covers(epoch),
            &|epoch| self.opportunistic && (known.executed)(epoch),
        ];
        let mut found = None;
        for upto in 1..=rules.len() {
            let allowed = |epoch: &Epoch| rules[..upto].iter().any(|rule| rule(*epoch));
            found = self.best_fit(bytes, |free| free.pending.iter().all(allowed));
            if found.is_some() {
                break;
            }
        }
        let at = found?;
        self.take(at, bytes, known);
        Some(Grant { at, wait_for: Pending::new() })
    }

    /// Memory whose free the driver makes the stream wait for: when there is no other.
    pub(crate) fn reuse_by_waiting(&mut self, bytes: u64, known: &Known<'_>) -> Option<Grant> {
        if !self.internal_dependencies {
            return None;
        }
        let at = self.best_fit(bytes, |_| true)?;
        let wait_for = self.take(at, bytes, known);
        Some(Grant { at, wait_for })
    }

    /// Adds memory of the device.
    pub(crate) fn grow(&mut self, at: u64, bytes: u64) {
        self.chunks.insert(at, bytes);
        self.free.insert(at, Free { bytes, pending: Pending::new() });
        self.reserved.add(bytes);
    }

    /// Whether the pool's own limit allows `bytes` more.
    pub(crate) fn may_grow(&self, bytes: u64) -> bool {
        self.max_bytes == 0 || self.reserved.current + bytes <= self.max_bytes
    }

    /// The block at `at` is free once `pending` has executed: at once if there is none.
    pub(crate) fn free(&mut self, at: u64, pending: Option<Epoch>) {
        let Some(bytes) = self.taken.remove(&at) else { return };
        let pending: Pending = pending.into_iter().collect();
        if pending.is_empty() {
            self.used.current -= bytes;
        }
        self.free.insert(at, Free { bytes, pending });
        self.merge_around(at);
    }

    /// A free has executed: its memory no longer counts as used.
    pub(crate) fn free_executed(&mut self, done: Epoch) {
        let mut now_idle = Vec::new();
        for (&at, free) in &mut self.free {
            let before = free.pending.len();
            free.pending.retain(|epoch| *epoch != done);
            if before > 0 && free.pending.is_empty() {
                self.used.current -= free.bytes;
                now_idle.push(at);
            }
        }
        for at in now_idle {
            self.merge_around(at);
        }
    }

    /// Chunks that are wholly free and idle, released until no more than `keep` bytes are
    /// reserved.
    pub(crate) fn release(&mut self, keep: u64) -> Vec<(u64, u64)> {
        let mut released = Vec::new();
        for (&at, &bytes) in &self.chunks {
            if self.reserved.current <= keep {
                break;
            }
            let idle = self.free.get(&at).is_some_and(|f| f.bytes == bytes && f.pending.is_empty());
            if idle {
                self.reserved.current -= bytes;
                released.push((at, bytes));
            }
        }
        for (at, _) in &released {
            self.chunks.remove(at);
            self.free.remove(at);
        }
        released
    }

    /// How many blocks are handed out.
    pub(crate) fn blocks_out(&self) -> usize {
        self.taken.len()
    }

    fn best_fit(&self, bytes: u64, usable: impl Fn(&Free) -> bool) -> Option<u64> {
        self.free
            .iter()
            .filter(|(_, free)| free.bytes >= bytes && usable(free))
            .min_by_key(|(_, free)| free.bytes)
            .map(|(&at, _)| at)
    }

    /// Hands out the start of a free range; answers what it was still waiting for.
    fn take(&mut self, at: u64, bytes: u64, known: &Known<'_>) -> Pending {
        let Some(Free { bytes: have, pending }) = self.free.remove(&at) else {
            return Pending::new();
        };
        // A range that still has pending frees counts as used already.
        if pending.is_empty() {
            self.used.add(bytes);
        }
        if have > bytes {
            let rest = Free { bytes: have - bytes, pending: pending.clone() };
            self.free.insert(at + bytes, rest);
        }
        self.taken.insert(at, bytes);
        pending.into_iter().filter(|epoch| !(known.executed)(*epoch)).collect()
    }

    /// Joins the free range at `at` with its neighbours in the same chunk, if they wait for the
    /// same.
    fn merge_around(&mut self, at: u64) {
        let before = self.free.range(..at).next_back().map(|(&start, _)| start);
        let start = before.filter(|&start| self.merge_with_next(start)).unwrap_or(at);
        self.merge_with_next(start);
    }

    fn merge_with_next(&mut self, at: u64) -> bool {
        let Some(this) = self.free.get(&at) else { return false };
        let next = at + this.bytes;
        let Some(other) = self.free.get(&next) else { return false };
        if self.chunks.contains_key(&next) || this.pending != other.pending {
            return false;
        }
        let bytes = this.bytes + other.bytes;
        self.free.remove(&next);
        if let Some(this) = self.free.get_mut(&at) {
            this.bytes = bytes;
        }
        true
    }
}

/// Bytes set aside for a request.
pub(crate) fn set_aside(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}
