//! The stream pool: a fixed number of streams of one device, named by ids.
//!
//! An id is the index of a stream's entry and the number of a lease. So a call finds its stream
//! without a lock, by an index and one comparison, and an id whose lease was returned is refused
//! instead of naming the next user's stream. Everything that is known of a stream is found by the
//! same index: its timeline, its free use slots, its lease.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use dmr_core::process::LeakedInChild;
use dmr_core::{ResourceError, ResourceResult, StreamId, StreamPoolId};

use crate::adopt::Owner;
use crate::attachments::Attachments;
use crate::config::LIBRARY_STREAMS;
use crate::holds::Holds;
use crate::lease_table::{LeaseTable, Locked};
use crate::progress::Progress;
use crate::stream_entry::{LeaseState, PERMANENT, PoolStream, StreamEntry};
use crate::uses::{ClosedQueues, Slots};
use crate::{Device, StreamPoolConfig};

/// A fixed number of streams of one device, which are leased.
///
/// Slot 0 is the *default stream*, to which [`StreamId::DEFAULT`] resolves; it is created with the
/// pool. The others are created when they are first needed and kept as long as the pool lives, so
/// that an id always names the same stream. Behind the leased slots are those of *library streams*,
/// for the library's own work, which no program captures or waits on. All are non-blocking: CUDA's
/// legacy null stream does not order them.
///
/// # Ids
///
/// | id | from | valid |
/// | --- | --- | --- |
/// | of a lease | [`acquire`](Self::acquire), [`adopt`](Self::adopt) | until the lease is dropped |
/// | permanent | [`default_stream`](Self::default_stream), [`next`](Self::next), resolving `DEFAULT` | as long as the pool lives |
///
/// No two leases have one stream; permanent ids may name a leased stream. Work of two users of one
/// stream is ordered, which is safe.
///
/// An id is checked at each call. If another thread drops its lease right after the check, the call
/// still uses the stream that the id named, which may then have a new lease: an id never names
/// another stream.
///
/// # cudarc
///
/// The streams are values of cudarc, destroyed when the last `Arc` is gone: drop pool, leases and
/// streams in any order. cudarc counts them: it is in multi-stream mode from the first pool on, and
/// its own events order its `CudaSlice`s between these streams (unless they are disabled). See
/// [`new`](Self::new) for how it enters that mode.
pub struct StreamPool {
    id: StreamPoolId,
    /// The permanent id of slot 0.
    default_stream: StreamId,
    device: Device,
    pub(crate) priority: i32,
    /// The pool's own streams, then library streams, then those of other owners. (In a forked child
    /// cudarc would destroy them.)
    slots: LeakedInChild<Box<[StreamEntry]>>,
    /// The number of slots for streams that are leased.
    max_streams: usize,
    /// By slot. Never held across a driver call.
    leases: LeakedInChild<LeaseTable<Box<[LeaseState]>>>,
    pub(crate) turn: AtomicUsize,
    progress: LeakedInChild<Progress>,
    uses: LeakedInChild<Slots>,
    /// Retired blocks of all owners whose last window has closed.
    closed: LeakedInChild<ClosedQueues>,
    attachments: LeakedInChild<Attachments>,
    /// The owners of adopted streams, by slot. Dropped last.
    pub(crate) owners: LeakedInChild<Mutex<BTreeMap<usize, Owner>>>,
}

impl StreamPool {
    /// Makes a pool and its default stream.
    ///
    /// Ends no capture. If the program has a context that cudarc has made no stream of yet, this
    /// waits for the work on CUDA's default stream, because cudarc has recorded none of it.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if this would have to wait for CUDA's
    /// default stream while a blocking stream captures a graph; [`Driver`](ResourceError::Driver);
    /// [`Capacity`](ResourceError::Capacity) if the process has made 2²⁴ − 2 pools.
    pub fn new(device: Device, config: StreamPoolConfig) -> ResourceResult<Arc<Self>> {
        let max_streams = config.max_streams.clamp(1, StreamPoolConfig::MAX_STREAMS);
        let max_adopted = config.max_adopted.min(StreamPoolConfig::MAX_STREAMS - max_streams);
        let max_own = max_streams + LIBRARY_STREAMS;
        let slots = max_own + max_adopted;
        let own = (0..max_own).map(|_| StreamEntry::for_own());
        let adopted = (0..max_adopted).map(|_| StreamEntry::for_adopted());
        let id = StreamPoolId::next()
            .ok_or(ResourceError::capacity("stream pools of a process", (1 << 24) - 2))?;
        let pool = Self {
            id,
            default_stream: id_of(id, 0, PERMANENT),
            device,
            priority: config.priority,
            slots: LeakedInChild::new(own.chain(adopted).collect()),
            max_streams,
            leases: LeakedInChild::new(LeaseTable::new(vec![LeaseState::default(); slots].into())),
            turn: AtomicUsize::new(0),
            progress: LeakedInChild::new(Progress::new(max_own, max_adopted)),
            uses: LeakedInChild::new(Slots::new(id, slots)),
            closed: LeakedInChild::default(),
            attachments: LeakedInChild::default(),
            owners: LeakedInChild::default(),
        };
        dmr_recorder::register_stream_pool(id, pool.device.ordinal());
        pool.create(0, config.priority)?;
        pool.register_device();
        Ok(Arc::new(pool))
    }

    /// Returns the identity of this pool, which its ids carry.
    #[must_use]
    #[inline]
    pub fn id(&self) -> StreamPoolId {
        self.id
    }

    /// Returns the device of the streams.
    #[must_use]
    #[inline]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the maximum number of streams that the pool makes itself.
    #[must_use]
    pub fn max_streams(&self) -> usize {
        self.max_streams
    }

    /// Returns the permanent id of the default stream: what [`StreamId::DEFAULT`] resolves to.
    #[must_use]
    #[inline]
    pub fn default_stream(&self) -> StreamId {
        self.default_stream
    }

    /// Notes that the stream of a slot leaves the library.
    pub(crate) fn lend(&self, slot: usize) {
        if let Some(entry) = self.entry(slot) {
            entry.lend();
        }
    }

    /// Returns the id under which a stream may be stored: the id itself, and
    /// [`default_stream`](Self::default_stream) for [`StreamId::DEFAULT`]. Takes no lock.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool, of a returned
    /// lease or of a retired stream.
    #[inline]
    pub fn resolve_id(&self, stream: StreamId) -> ResourceResult<StreamId> {
        self.find(stream)
    }

    /// Returns whether two ids name the same stream, as ids of different leases of one slot do.
    ///
    /// # Errors
    ///
    /// As [`resolve_id`](Self::resolve_id).
    pub fn same_stream(&self, a: StreamId, b: StreamId) -> ResourceResult<bool> {
        Ok(self.find(a)?.slot() == self.find(b)?.slot())
    }

    /// Returns the maximum number of all streams: the pool's own, library streams and those of
    /// other owners. Slots of ids are below this number.
    #[must_use]
    pub fn max_slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the id of the same stream that needs no lease: valid as long as the pool lives, or
    /// until the stream is [retired](Self::retire_stream).
    ///
    /// # Errors
    ///
    /// As [`resolve_id`](Self::resolve_id).
    pub fn permanent(&self, stream: StreamId) -> ResourceResult<StreamId> {
        Ok(self.permanent_id(self.find(stream)?.slot()))
    }

    /// Returns the permanent id of the stream that has the slot of `stream` now: that of another
    /// one, if `stream` was retired and its slot is used again.
    #[must_use]
    pub fn successor(&self, stream: StreamId) -> StreamId {
        self.permanent_id(stream.slot())
    }

    #[inline]
    pub(crate) fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    pub(crate) fn closed_queues(&self) -> &ClosedQueues {
        &self.closed
    }

    #[inline]
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Option<&StreamEntry> {
        self.slots.get(index)
    }

    /// Returns all slots, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, &StreamEntry)> {
        self.slots.iter().enumerate()
    }

    /// Returns whether the slot is that of the reclaim stream.
    pub(crate) fn is_reclaim(&self, slot: usize) -> bool {
        slot == self.max_streams
    }

    /// Returns the calls and launches that hold an adopted stream; `None` for the pool's own.
    #[inline]
    pub(crate) fn holds(&self, slot: usize) -> Option<&Holds> {
        self.slots.get(slot).and_then(StreamEntry::holds)
    }

    /// Returns whether the stream in a slot is retired.
    #[inline]
    pub(crate) fn is_retired(&self, slot: usize) -> bool {
        self.holds(slot).is_some_and(Holds::is_retired)
    }

    #[inline]
    pub(crate) fn slots(&self) -> &Slots {
        &self.uses
    }

    /// Returns the id under which a stream may be stored, if it names a stream now.
    #[inline]
    fn find(&self, stream: StreamId) -> ResourceResult<StreamId> {
        let id = if stream.is_default() { self.default_stream() } else { stream };
        if id.pool() == Some(self.id)
            && let Some(slot) = self.slots.get(id.slot())
            && slot.admits(id)
            && slot.is_live()
        {
            return Ok(id);
        }
        Err(self.misuse(stream))
    }

    /// Creates the stream of a slot that the caller has taken.
    pub(crate) fn create(&self, slot: usize, priority: i32) -> ResourceResult<&PoolStream> {
        if slot > 0 {
            self.progress.announce_second_stream(self)?;
        }
        let created = PoolStream { stream: self.device.new_stream(priority)?, priority };
        crate::names::name_stream(&created.stream, slot);
        dmr_recorder::hooks::stream_created(self.id_of(slot, PERMANENT));
        Ok(self.slots[slot].set_own(created, self.id_of(slot, PERMANENT)))
    }

    /// Creates a stream of the pool's priority that has no slot, for the caller.
    pub(crate) fn private_stream(&self) -> ResourceResult<Arc<CudaStream>> {
        self.device.new_stream(self.priority)
    }

    #[inline]
    pub(crate) fn permanent_id(&self, slot: usize) -> StreamId {
        let lease = self.slots.get(slot).map_or(PERMANENT, StreamEntry::permanent);
        self.id_of(slot, lease)
    }

    #[inline]
    pub(crate) fn id_of(&self, slot: usize, lease: u32) -> StreamId {
        id_of(self.id, slot, lease)
    }

    pub(crate) fn leases(&self) -> Locked<'_, Box<[LeaseState]>> {
        self.leases.lock()
    }

    pub(crate) fn lease_table(&self) -> &LeaseTable<Box<[LeaseState]>> {
        &self.leases
    }
}

#[inline]
fn id_of(pool: StreamPoolId, slot: usize, lease: u32) -> StreamId {
    // Slots and leases are within the limits: `new`, `take` and `take_entry_for` check them.
    StreamId::from_parts(pool, slot, lease).unwrap_or(StreamId::DEFAULT)
}

impl Drop for StreamPool {
    fn drop(&mut self) {
        self.end_attachments();
        self.unregister_device();
    }
}

impl fmt::Debug for StreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leased = |slot: &&StreamEntry| slot.is_leased();
        let created = |slot: &&StreamEntry| slot.is_live();
        f.debug_struct("StreamPool")
            .field("id", &self.id)
            .field("device", &self.device)
            .field("max_streams", &self.max_streams)
            .field("created", &self.slots.iter().filter(created).count())
            .field("leased", &self.slots.iter().filter(leased).count())
            .finish_non_exhaustive()
    }
}
