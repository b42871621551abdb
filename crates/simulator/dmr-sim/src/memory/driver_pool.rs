//! `CUmemoryPool`: the freed memory that a stream-ordered allocation may use, and the waits that it
//! then needs.
//!
//! The rules are those of the CUDA Driver API's "Stream Ordered Memory Allocator": memory freed on
//! the same stream is reused at once, and so is memory whose free the host has waited for; memory
//! whose free the allocating stream already comes after, by event dependencies; memory whose free
//! has already executed; and, when the device is out of memory, any freed memory, by a dependency
//! that the driver adds. The latter three are attributes.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::access::{AddressRange, Clock, Epoch};
use crate::memory::address::ALIGNMENT;

/// The granularity of a pool's growth, in bytes.
pub(crate) const CHUNK: u64 = 2 << 20;

/// The frees of blocks in a range: the latest of each stream that the host has not found complete.
pub(crate) type FreedBy = SmallVec<[Epoch; 2]>;

#[derive(Debug)]
pub(crate) struct DriverPool {
    pub(crate) device: usize,
    pub(crate) follow_event_dependencies: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal_dependencies: bool,
    pub(crate) release_threshold: u64,
    /// Bytes that the pool may reserve; 0: no limit.
    pub(crate) max_bytes: u64,
    /// The chunks reserved from the device: start and bytes.
    chunks: BTreeMap<u64, u64>,
    free: BTreeMap<u64, Free>,
    /// The free ranges by bytes and start.
    free_by_size: BTreeSet<(u64, u64)>,
    /// The host's clock when `free` was last tidied.
    host: Clock,
    /// Allocated blocks, by start.
    taken: BTreeMap<u64, Taken>,
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
    freed_by: FreedBy,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    set_aside: u64,
    asked: u64,
}

/// Memory that a pool allocates.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    /// The operation that the driver makes the stream wait for.
    pub(crate) wait_for: FreedBy,
}

/// The state of the machine on which the choice of memory depends.
pub(crate) struct Known<'a> {
    /// The allocating stream.
    pub(crate) stream: u32,
    /// The operations that come before that stream's next one.
    pub(crate) clock: &'a Clock,
    /// The operations that the host has found complete.
    pub(crate) host: &'a Clock,
    /// Returns whether an operation has executed.
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
            free_by_size: BTreeSet::new(),
            host: Clock::default(),
            taken: BTreeMap::new(),
            reserved: Counter::default(),
            used: Counter::default(),
        }
    }

    /// Takes memory that is free by the rules that add no wait.
    pub(crate) fn reuse(&mut self, asked: u64, known: &Known<'_>) -> Option<Grant> {
        self.remove_frees_that_the_host_has_seen(known.host);
        let rules: [&dyn Fn(Epoch) -> bool; 3] = [
            &|epoch| epoch.stream == known.stream,
            &|epoch| self.follow_event_dependencies && known.clock.covers(epoch),
            &|epoch| self.opportunistic && (known.executed)(epoch),
        ];
        let bytes = set_aside(asked)?;
        // The rules are tried in this order, and the best fit by the first that finds memory is
        // taken.
        let rule_for = |free: &Free| {
            let by = |epoch: &Epoch| rules.iter().position(|allows| allows(*epoch));
            free.freed_by.iter().try_fold(0, |last, epoch| Some(by(epoch)?.max(last)))
        };
        let mut found: Option<(usize, u64)> = None;
        for &(_, at) in self.free_by_size.range((bytes, 0)..) {
            let Some(rule) = self.free.get(&at).and_then(rule_for) else { continue };
            if found.is_none_or(|(best, _)| rule < best) {
                found = Some((rule, at));
            }
            if rule == 0 {
                break;
            }
        }
        let (_, at) = found?;
        self.take(at, bytes, asked);
        Some(Grant { at, wait_for: FreedBy::new() })
    }

    /// Takes memory whose free the driver makes the stream wait for: if there is no other.
    pub(crate) fn reuse_by_waiting(&mut self, asked: u64, known: &Known<'_>) -> Option<Grant> {
        if !self.internal_dependencies {
            return None;
        }
        let bytes = set_aside(asked)?;
        let &(_, at) = self.free_by_size.range((bytes, 0)..).next()?;
        let mut wait_for = self.take(at, bytes, asked);
        wait_for.retain(|epoch| !(known.executed)(*epoch));
        Some(Grant { at, wait_for })
    }

    /// Adds memory of the device.
    pub(crate) fn grow(&mut self, at: u64, bytes: u64) {
        self.chunks.insert(at, bytes);
        self.insert_free(at, Free { bytes, freed_by: FreedBy::new() });
        self.reserved.add(bytes);
    }

    /// Returns whether the pool's own limit allows `bytes` more.
    pub(crate) fn may_grow(&self, bytes: u64) -> bool {
        let total = self.reserved.current.checked_add(bytes);
        self.max_bytes == 0 || total.is_some_and(|total| total <= self.max_bytes)
    }

    /// Frees the block at `at` once `by` has executed; at once if it is `None`. It no longer
    /// counts as used from the call on (observed on an H200 with driver 580).
    pub(crate) fn free(&mut self, at: u64, by: Option<Epoch>) {
        let Some(Taken { set_aside, asked }) = self.taken.remove(&at) else { return };
        self.used.current -= asked;
        let freed_by = by.into_iter().collect();
        self.insert_free(at, Free { bytes: set_aside, freed_by });
        self.merge_around(at);
    }

    /// Removes fully free chunks whose frees have executed, as long as `keep` bytes stay
    /// reserved.
    pub(crate) fn release(
        &mut self,
        keep: u64,
        executed: impl Fn(Epoch) -> bool,
    ) -> Vec<AddressRange> {
        let mut released = Vec::new();
        if self.reserved.current <= keep {
            return released;
        }
        for (&chunk, &bytes) in &self.chunks {
            let parts = self.free.range(chunk..chunk + bytes);
            let done = |free: &Free| free.freed_by.iter().all(|epoch| executed(*epoch));
            let idle: u64 = parts.filter(|(_, free)| done(free)).map(|(_, free)| free.bytes).sum();
            if idle == bytes && self.reserved.current - bytes >= keep {
                self.reserved.current -= bytes;
                released.push(AddressRange::new(chunk, bytes));
            }
        }
        for chunk in &released {
            self.chunks.remove(&chunk.start());
            while let Some((&at, _)) = self.free.range(chunk.start()..chunk.end()).next() {
                self.remove_free(at);
            }
        }
        released
    }

    /// Returns the number of allocated blocks.
    pub(crate) fn blocks_out(&self) -> usize {
        self.taken.len()
    }

    fn insert_free(&mut self, at: u64, free: Free) {
        self.free_by_size.insert((free.bytes, at));
        self.free.insert(at, free);
    }

    fn remove_free(&mut self, at: u64) -> Option<Free> {
        let free = self.free.remove(&at)?;
        self.free_by_size.remove(&(free.bytes, at));
        Some(free)
    }

    /// Allocates the start of a free range; returns the frees of that range.
    fn take(&mut self, at: u64, bytes: u64, asked: u64) -> FreedBy {
        let Some(Free { bytes: have, freed_by }) = self.remove_free(at) else {
            return FreedBy::new();
        };
        if have > bytes {
            let rest = Free { bytes: have - bytes, freed_by: freed_by.clone() };
            self.insert_free(at + bytes, rest);
        }
        self.taken.insert(at, Taken { set_aside: bytes, asked });
        self.used.add(asked);
        freed_by
    }

    /// Removes the frees that the host has found complete: their memory is free for every stream.
    fn remove_frees_that_the_host_has_seen(&mut self, host: &Clock) {
        if self.host == *host {
            return; // later frees are not in this clock
        }
        self.host.clone_from(host);
        let mut changed = Vec::new();
        for (&at, free) in &mut self.free {
            let before = free.freed_by.len();
            free.freed_by.retain(|epoch| !host.covers(*epoch));
            if free.freed_by.len() < before {
                changed.push(at);
            }
        }
        for at in changed {
            self.merge_around(at);
        }
    }

    /// Merges the free range at `at` with its neighbours in the same chunk, if they were freed on
    /// the same streams: otherwise a stream would have to wait for its own memory.
    fn merge_around(&mut self, at: u64) {
        let before = self.free.range(..at).next_back().map(|(&start, _)| start);
        let start = before.filter(|&start| self.merge_with_next(start)).unwrap_or(at);
        self.merge_with_next(start);
    }

    fn merge_with_next(&mut self, at: u64) -> bool {
        let Some(this) = self.free.get(&at) else { return false };
        let next = at + this.bytes;
        let Some(other) = self.free.get(&next) else { return false };
        let on = |free: &Free, stream| free.freed_by.iter().any(|epoch| epoch.stream == stream);
        let same_streams = this.freed_by.len() == other.freed_by.len()
            && this.freed_by.iter().all(|epoch| on(other, epoch.stream));
        if self.chunks.contains_key(&next) || !same_streams {
            return false;
        }
        let (Some(mut this), Some(other)) = (self.remove_free(at), self.remove_free(next)) else {
            return false;
        };
        this.bytes += other.bytes;
        for theirs in other.freed_by {
            for mine in this.freed_by.iter_mut().filter(|mine| mine.stream == theirs.stream) {
                mine.seq = mine.seq.max(theirs.seq);
            }
        }
        self.insert_free(at, this);
        true
    }
}

/// Returns the bytes to reserve for a request.
pub(crate) fn set_aside(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}
