//! Leases of a pool's own streams: chooses a free slot, and creates its stream when it is first needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{ResourceError, ResourceResult, StreamId};

use crate::slot::{PERMANENT, PoolStream};
use crate::{StreamLease, StreamPool};

impl StreamPool {
    /// Leases a stream of the pool's priority. The first lease is the default stream itself.
    ///
    /// # Errors
    ///
    /// [`Capacity`](ResourceError::Capacity) when all are leased: no two leases have one stream.
    /// [`Driver`](ResourceError::Driver) if a stream cannot be created.
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if the first stream captures a graph while the
    /// second is created. [`ForkedProcess`](ResourceError::ForkedProcess).
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
        let (slot, lease) = self.take(priority)?;
        let created = match self.stream_of(slot) {
            Some(created) => created,
            None => self.create(slot, priority).inspect_err(|_| self.untake(slot))?,
        };
        self.set_lease(slot, lease);
        let (id, stream) = (self.id_of(slot, lease), Arc::clone(&created.stream));
        Ok(StreamLease::new(Arc::clone(self), id, stream))
    }

    /// Returns the streams of the pool's priority in turn, by their permanent ids: for work that needs
    /// *a* stream and no stream of its own.
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
            // Skips a stream of another priority, and one that another thread is creating. Slot 0 has
            // this priority and is created: it ends the search.
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
        self.set_lease(id.slot(), PERMANENT);
        self.untake(id.slot());
    }

    /// Takes a slot, and numbers its next lease.
    fn take(&self, priority: i32) -> ResourceResult<(usize, u32)> {
        let mut leases = self.leases();
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
                None => ResourceError::capacity("streams of the pool", self.max_streams()),
                Some(_) => ResourceError::capacity(
                    "streams of this priority",
                    all().filter(has_priority).count(),
                ),
            })?;
        let lease = &mut leases[slot];
        lease.is_taken = true;
        lease.last_number += 1;
        Ok((slot, lease.last_number))
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
        self.leases()[slot].is_taken = false;
    }

    fn stream_of(&self, slot: usize) -> Option<&PoolStream> {
        self.stream_slot(slot)?.stream.get()
    }

    /// Sets the number of the current lease.
    fn set_lease(&self, slot: usize, lease: u32) {
        if let Some(slot) = self.stream_slot(slot) {
            slot.lease.store(lease, Ordering::Release);
        }
    }
}
