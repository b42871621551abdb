//! Leases of a pool's own streams: chooses a free slot, and creates its stream when it is first
//! needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dmr_core::{ResourceError, ResourceResult, StreamId};

use crate::stream_entry::{LeaseState, PoolStream};
use crate::{StreamLease, StreamPool};

impl StreamPool {
    /// Leases a stream of the pool's priority. The first lease is the default stream itself.
    ///
    /// # Errors
    ///
    /// [`Capacity`](ResourceError::Capacity) when all are leased: no two leases have one stream.
    /// [`acquire_timeout`](Self::acquire_timeout) waits for one. [`Driver`](ResourceError::Driver)
    /// if a stream cannot be created. [`StreamCapturing`](ResourceError::StreamCapturing) if the
    /// first stream captures a graph while the second is created.
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn acquire(self: &Arc<Self>) -> ResourceResult<StreamLease> {
        self.acquire_with_priority(self.priority)
    }

    /// Leases a stream of this priority: lower is more urgent, 0 is CUDA's default. The driver
    /// clamps it to the device's range.
    ///
    /// A stream keeps its priority: a free stream of another priority is not used.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_with_priority(self: &Arc<Self>, priority: i32) -> ResourceResult<StreamLease> {
        // First: another thread may have held the lock when the process was forked.
        self.device().refuse_fork()?;
        let taken = self.take(&mut self.leases(), priority)?;
        self.lease(taken, priority)
    }

    /// Leases a stream as [`acquire`](Self::acquire) does, and waits up to `timeout` for one while
    /// all are leased.
    ///
    /// The thread sleeps until a lease is returned, by whichever thread. Calls that wait are served
    /// in the order of their arrival; `acquire` does not queue. A thread that itself holds all
    /// leases waits in vain.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire): [`Capacity`](ResourceError::Capacity) when the time is over.
    /// On a lost device a call that would wait returns [`DeviceLost`](ResourceError::DeviceLost).
    pub fn acquire_timeout(self: &Arc<Self>, timeout: Duration) -> ResourceResult<StreamLease> {
        self.acquire_with_priority_timeout(self.priority, timeout)
    }

    /// Leases a stream of this priority as [`acquire_with_priority`](Self::acquire_with_priority)
    /// does, and waits for it as [`acquire_timeout`](Self::acquire_timeout) does.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Self::acquire_timeout). [`Capacity`](ResourceError::Capacity) at once
    /// if all streams of the pool have other priorities.
    pub fn acquire_with_priority_timeout(
        self: &Arc<Self>,
        priority: i32,
        timeout: Duration,
    ) -> ResourceResult<StreamLease> {
        self.device().refuse_fork()?;
        let deadline = Instant::now().checked_add(timeout);
        let take = |leases: &mut Box<[LeaseState]>| self.take(leases, priority);
        let may_wait = || {
            self.device().check()?;
            match self.can_have(priority) {
                true => Ok(()),
                false => Err(none_of_this_priority(0)),
            }
        };
        let taken = self.lease_table().take_in_turn(priority, deadline, take, may_wait)?;
        self.lease(taken, priority)
    }

    /// Returns the streams of the pool's priority in turn, by their permanent ids: for work that
    /// needs *a* stream and no stream of its own.
    ///
    /// Visits all slots in turn, leased or not, and creates streams on its first round.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver) if a stream cannot be created.
    pub fn next(&self) -> ResourceResult<StreamId> {
        self.device().refuse_fork()?;
        loop {
            let slot = self.turn.fetch_add(1, Ordering::Relaxed) % self.max_streams();
            // Skips a stream of another priority, and one that another thread is creating. Slot 0
            // has this priority and is created: it ends the search.
            let usable = match self.stream_of(slot) {
                Some(created) => created.priority == self.priority,
                None if self.take_empty(slot) => {
                    let created = self.create(slot, self.priority);
                    self.untake(slot);
                    created.map(|_| true)?
                }
                None => false,
            };
            if usable {
                return Ok(self.permanent_id(slot));
            }
        }
    }

    /// Ends the lease of this id. Called once, by the lease.
    pub(crate) fn end_lease(&self, id: StreamId) {
        if self.device().is_forked() {
            return;
        }
        // The id is refused from here on, and only then is the slot free for the next lease.
        if let Some(slot) = self.entry(id.slot()) {
            slot.end_lease();
        }
        self.untake(id.slot());
    }

    /// Makes the lease of a slot that was taken, and its stream if it has none.
    fn lease(self: &Arc<Self>, taken: Taken, priority: i32) -> ResourceResult<StreamLease> {
        let Taken { slot, lease } = taken;
        let created = match self.stream_of(slot) {
            Some(created) => created,
            None => self.create(slot, priority).inspect_err(|_| self.untake(slot))?,
        };
        let id = self.id_of(slot, lease);
        if let Some(entry) = self.entry(slot) {
            entry.set_lease(id);
        }
        let stream = Arc::clone(&created.stream);
        Ok(StreamLease::new(Arc::clone(self), id, stream))
    }

    /// Takes a slot, and numbers its next lease.
    fn take(&self, leases: &mut [LeaseState], priority: i32) -> ResourceResult<Taken> {
        let free = |slot: &usize| {
            !leases[*slot].is_taken && leases[*slot].last_number < StreamId::MAX_LEASE
        };
        let created = |slot: &usize| self.stream_of(*slot);
        let has_priority =
            |slot: &usize| created(slot).is_some_and(|created| created.priority == priority);
        let all = || 0..self.max_streams();
        let slot = all()
            .filter(free)
            .find(has_priority)
            .or_else(|| all().filter(free).find(|slot| created(slot).is_none()))
            .ok_or_else(|| match all().find(free) {
                None => ResourceError::capacity("streams of the pool", self.max_streams()).advised(
                    "return one, wait for one with `acquire_timeout`, or raise `max_streams`",
                ),
                Some(_) => none_of_this_priority(all().filter(has_priority).count()),
            })?;
        let lease = &mut leases[slot];
        lease.is_taken = true;
        lease.last_number += 1;
        Ok(Taken { slot, lease: lease.last_number })
    }

    /// Returns whether a slot has, or can get, a stream of this priority.
    fn can_have(&self, priority: i32) -> bool {
        let suits = |slot| self.stream_of(slot).is_none_or(|created| created.priority == priority);
        (0..self.max_streams()).any(suits)
    }

    /// Takes a slot that has no stream yet.
    fn take_empty(&self, slot: usize) -> bool {
        let mut leases = self.leases();
        let free = !leases[slot].is_taken && self.stream_of(slot).is_none();
        leases[slot].is_taken |= free;
        free
    }

    /// Marks a slot as free: its lease has ended, or was not completed.
    pub(crate) fn untake(&self, slot: usize) {
        self.lease_table().put(|leases| leases[slot].is_taken = false);
    }

    fn stream_of(&self, slot: usize) -> Option<&PoolStream> {
        self.entry(slot)?.own()
    }
}

/// A slot that a call has taken, with the number of its next lease.
struct Taken {
    slot: usize,
    lease: u32,
}

fn none_of_this_priority(limit: usize) -> ResourceError {
    ResourceError::capacity("streams of this priority", limit)
        .advised("return one, use another priority, or raise `max_streams`")
}
