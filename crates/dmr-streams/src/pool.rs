//! A fixed number of streams of one device, known by number.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::CudaStream;
use cudarc::driver::result;
use cudarc::driver::sys::CUstreamCaptureStatus;
use dmr_core::error::StreamProblem;
use dmr_core::process::LeakedInChild;
use dmr_core::{ResourceError, ResourceResult, StreamId, StreamPoolId};

use crate::progress::{Event, Progress};
use crate::uses::{Slots, UseTable};
use crate::{Device, StreamLease, pinned};

/// How a [`StreamPool`] is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamPoolConfig {
    /// How many streams there can be. Brought between 1 and [`StreamId::MAX_SLOTS`].
    pub max_streams: usize,
    /// How many streams of other owners can be adopted in the pool's life. The sum of both is
    /// brought down to [`StreamId::MAX_SLOTS`].
    pub max_adopted: usize,
    /// The priority of streams that are acquired without naming one: lower is more urgent, 0 is
    /// CUDA's default. The driver brings it into the device's range.
    pub priority: i32,
}

impl StreamPoolConfig {
    /// 32 streams of priority 0, and 32 of other owners.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_streams: 32, max_adopted: 32, priority: 0 }
    }

    /// Sets [`max_streams`](Self::max_streams).
    #[must_use]
    pub const fn with_max_streams(mut self, max_streams: usize) -> Self {
        self.max_streams = max_streams;
        self
    }

    /// Sets [`max_adopted`](Self::max_adopted).
    #[must_use]
    pub const fn with_max_adopted(mut self, max_adopted: usize) -> Self {
        self.max_adopted = max_adopted;
        self
    }

    /// Sets [`priority`](Self::priority).
    #[must_use]
    pub const fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

impl Default for StreamPoolConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// A fixed number of streams of one device, handed out as leases.
///
/// Slot 0 is the *default stream*, what [`StreamId::DEFAULT`] means here; it is created with the
/// pool. The others are created when they are first needed and kept as long as the pool lives, so
/// that an id names the same stream for ever. All are non-blocking: CUDA's legacy null stream
/// does not order them.
///
/// # Who may name a stream
///
/// | id | from | valid |
/// | --- | --- | --- |
/// | of a lease | [`acquire`](Self::acquire) | until the lease is dropped |
/// | permanent | [`default_stream`](Self::default_stream), [`next`](Self::next), resolving `DEFAULT` | as long as the pool lives |
///
/// A lease keeps its stream from other *leases*; permanent ids may name the same stream. Two
/// users of one stream are ordered with each other and nothing worse.
///
/// An id is checked when it is named. If its lease is dropped by another thread right after the
/// check, the work goes to the stream it was meant for, which then may have a new user: a stream
/// is never destroyed under an id, and no id ever changes its stream.
///
/// # cudarc
///
/// The streams are cudarc's own, destroyed when the last `Arc` is gone, so drop pool, leases and
/// streams in any order. cudarc counts them: it is in multi-stream mode from the first pool on,
/// and its `CudaSlice`s are ordered between these streams by cudarc's own events (unless you have
/// disabled them). When it enters that mode cudarc synchronises the context once.
pub struct StreamPool {
    id: StreamPoolId,
    device: Device,
    priority: i32,
    /// The pool's own streams, then those of other owners. (In a forked child cudarc would destroy
    /// them.)
    slots: LeakedInChild<Box<[Slot]>>,
    /// How many of the slots are for the pool's own streams.
    max_streams: usize,
    /// What is free, by slot. Never held across a driver call.
    books: LeakedInChild<Mutex<Box<[Entry]>>>,
    turn: AtomicUsize,
    progress: LeakedInChild<Progress>,
    uses: LeakedInChild<Slots<Option<Event>>>,
    reclaim: LeakedInChild<OnceLock<Arc<CudaStream>>>,
    pinned: LeakedInChild<pinned::Queue<pinned::Retired>>,
}

/// What is read without a lock.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) stream: OnceLock<Created>,
    /// The number of the lease that is held, or [`PERMANENT`] if none is.
    pub(crate) lease: AtomicU32,
    /// The stream is another owner's, who may have destroyed it by now.
    pub(crate) retired: AtomicBool,
}

impl Slot {
    /// Its stream, if it has one and nobody has taken it back.
    #[inline]
    pub(crate) fn alive(&self) -> Option<&Created> {
        if self.retired.load(Ordering::Acquire) { None } else { self.stream.get() }
    }
}

/// One of a pool's streams, and the id under which it may be stored.
#[derive(Clone, Copy)]
pub struct Located<'p> {
    pub(crate) id: StreamId,
    stream: &'p Arc<CudaStream>,
}

impl<'p> Located<'p> {
    /// Its id, never [`StreamId::DEFAULT`].
    #[must_use]
    #[inline]
    pub fn id(self) -> StreamId {
        self.id
    }

    /// The stream.
    #[must_use]
    #[inline]
    pub fn stream(self) -> &'p Arc<CudaStream> {
        self.stream
    }
}

impl fmt::Debug for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Located").field(&self.id).finish()
    }
}

pub(crate) struct Created {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) priority: i32,
}

/// What is decided under the lock.
#[derive(Clone, Copy, Default)]
pub(crate) struct Entry {
    /// Leased, or being created.
    pub(crate) taken: bool,
    /// The number of the latest lease.
    pub(crate) last_lease: u32,
}

/// The lease number of ids that need no lease.
const PERMANENT: u32 = 0;

impl StreamPool {
    /// Makes a pool and its default stream.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver); [`Capacity`](ResourceError::Capacity) if the process
    /// has made 2²⁴ − 2 pools.
    pub fn new(device: Device, config: StreamPoolConfig) -> ResourceResult<Arc<Self>> {
        let max_streams = config.max_streams.clamp(1, StreamId::MAX_SLOTS);
        let slots = max_streams.saturating_add(config.max_adopted).min(StreamId::MAX_SLOTS);
        let id = StreamPoolId::next()
            .ok_or(ResourceError::capacity("stream pools of a process", (1 << 24) - 2))?;
        let pool = Self {
            id,
            device,
            priority: config.priority,
            slots: LeakedInChild::new((0..slots).map(|_| Slot::default()).collect()),
            max_streams,
            books: LeakedInChild::new(Mutex::new(vec![Entry::default(); slots].into())),
            turn: AtomicUsize::new(0),
            progress: LeakedInChild::new(Progress::new(slots)),
            uses: LeakedInChild::new(Slots::new(slots)),
            reclaim: LeakedInChild::default(),
            pinned: LeakedInChild::new(pinned::Queue::new()),
        };
        pool.create(0, config.priority)?;
        Ok(Arc::new(pool))
    }

    /// The identity of this pool, which its ids carry.
    #[must_use]
    #[inline]
    pub fn id(&self) -> StreamPoolId {
        self.id
    }

    /// The device that the streams are on.
    #[must_use]
    #[inline]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many streams there can be.
    #[must_use]
    pub fn max_streams(&self) -> usize {
        self.max_streams
    }

    /// The permanent id of the default stream: what [`StreamId::DEFAULT`] resolves to.
    #[must_use]
    #[inline]
    pub fn default_stream(&self) -> StreamId {
        self.permanent_id(0)
    }

    /// Leases a stream of the pool's priority. The first lease is the default stream itself.
    ///
    /// # Errors
    ///
    /// [`Capacity`](ResourceError::Capacity) when all are leased: never a stream that somebody
    /// else has leased. [`Driver`](ResourceError::Driver) if a stream cannot be created.
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn acquire(self: &Arc<Self>) -> ResourceResult<StreamLease> {
        self.acquire_with_priority(self.priority)
    }

    /// Leases a stream of this priority: lower is more urgent, 0 is CUDA's default. The driver
    /// brings it into the device's range.
    ///
    /// A stream keeps its priority, so a free one of another priority does not help.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_with_priority(self: &Arc<Self>, priority: i32) -> ResourceResult<StreamLease> {
        // First: another thread may have held the lock when the process was forked.
        self.device.refuse_fork()?;
        let (slot, lease) = self.take(priority)?;
        let created = match self.slots[slot].stream.get() {
            Some(created) => created,
            None => self.create(slot, priority).inspect_err(|_| self.untake(slot))?,
        };
        self.slots[slot].lease.store(lease, Ordering::Release);
        let (id, stream) = (self.id_of(slot, lease), Arc::clone(&created.stream));
        Ok(StreamLease::new(Arc::clone(self), id, stream))
    }

    /// The streams of the pool's priority in turn, each for whoever asks: a permanent id, for
    /// work that needs *a* stream and no stream of its own.
    ///
    /// Goes round all slots, leased or not, and creates streams on its first round.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver) if a stream cannot be created.
    pub fn next(&self) -> ResourceResult<StreamId> {
        self.device.refuse_fork()?;
        loop {
            let slot = self.turn.fetch_add(1, Ordering::Relaxed) % self.max_streams;
            // Of another priority, or being created for somebody else: the next one. Slot 0 ends
            // the search at the latest.
            let usable = match self.slots[slot].stream.get() {
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

    /// The stream behind an id. Takes no lock.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool or of a returned
    /// lease.
    #[inline]
    pub fn resolve(&self, stream: StreamId) -> ResourceResult<&Arc<CudaStream>> {
        Ok(&self.find(stream)?.1.stream)
    }

    /// The id itself, and [`default_stream`](Self::default_stream) for [`StreamId::DEFAULT`]:
    /// what may be stored. Takes no lock.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub fn resolve_id(&self, stream: StreamId) -> ResourceResult<StreamId> {
        Ok(self.find(stream)?.0)
    }

    /// Both at once: the id that may be stored, and the stream behind it. Takes no lock.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub fn locate(&self, stream: StreamId) -> ResourceResult<Located<'_>> {
        let (id, created) = self.find(stream)?;
        Ok(Located { id, stream: &created.stream })
    }

    /// The stream on which a block was allocated, also after its lease was returned. Takes no lock.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool, and for a stream
    /// whose owner, who had lent it to the pool, has taken it back.
    #[inline]
    pub fn home_stream(&self, home: StreamId) -> ResourceResult<&Arc<CudaStream>> {
        let ours = home.pool() == Some(self.id);
        match self.slots.get(home.slot()).filter(|_| ours).and_then(Slot::alive) {
            Some(created) => Ok(&created.stream),
            None => self.resolve(home),
        }
    }

    /// Whether two ids name the same stream: different leases of one slot do.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
    pub fn same_stream(&self, a: StreamId, b: StreamId) -> ResourceResult<bool> {
        Ok(self.find(a)?.0.slot() == self.find(b)?.0.slot())
    }

    /// Who uses what on these streams: blocks of any resource that tracks uses, pinned buffers.
    #[must_use]
    #[inline]
    pub fn uses(&self) -> UseTable<'_> {
        UseTable::of(self)
    }

    /// A stream that no user's work waits on, for frees that must wait: non-blocking, never
    /// leased, created when it is first needed.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver) if it cannot be created.
    pub fn reclaim_stream(&self) -> ResourceResult<&Arc<CudaStream>> {
        if let Some(stream) = self.reclaim.get() {
            return Ok(stream);
        }
        let stream = self.new_stream(self.priority)?;
        Ok(self.reclaim.get_or_init(|| stream))
    }

    /// The reclaim stream, if it was needed before.
    pub(crate) fn reclaim(&self) -> Option<&Arc<CudaStream>> {
        self.reclaim.get()
    }

    /// Waits until all work submitted to a stream so far is done.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve), and [`Driver`](ResourceError::Driver), which may come from
    /// work submitted earlier.
    pub fn synchronize(&self, stream: StreamId) -> ResourceResult<()> {
        let slot = self.find(stream)?.0.slot();
        self.synchronize_slot(slot)
    }

    /// How many streams there can be in all: the pool's own, and those of other owners. Slots of
    /// ids are below this number.
    #[must_use]
    pub fn max_slots(&self) -> usize {
        self.slots.len()
    }

    /// The id of the same stream that needs no lease: valid as long as the pool lives, or until
    /// the stream's owner, who had lent it to the pool, takes it back.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve).
    pub fn permanent(&self, stream: StreamId) -> ResourceResult<StreamId> {
        Ok(self.permanent_id(self.find(stream)?.0.slot()))
    }

    /// Whether a stream that was just found is capturing a graph, as
    /// [`is_captured`](Self::is_captured) says.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    #[inline]
    pub fn is_capturing(&self, stream: Located<'_>) -> ResourceResult<bool> {
        self.has_capture(stream.stream)
    }

    /// Whether the stream that an id names, also after its lease was returned, is capturing a
    /// graph. The driver is asked, which costs it little more than a look.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool, and
    /// [`Driver`](ResourceError::Driver).
    #[inline]
    pub fn is_captured(&self, stream: StreamId) -> ResourceResult<bool> {
        if stream.pool() != Some(self.id) {
            return Err(ResourceError::stream_misuse(stream, StreamProblem::OtherPool));
        }
        self.is_slot_capturing(stream.slot())
    }

    /// Pinned memory that was dropped.
    pub(crate) fn pinned(&self) -> &pinned::Queue<pinned::Retired> {
        &self.pinned
    }

    #[inline]
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    /// The slots for streams that the pool makes itself.
    pub(crate) fn own_slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().take(self.max_streams)
    }

    /// The slots for streams of other owners.
    pub(crate) fn adopted_slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().skip(self.max_streams)
    }

    #[inline]
    pub(crate) fn slots(&self) -> &Slots<Option<Event>> {
        &self.uses
    }

    /// The stream of a slot, leased or not: once there, it stays.
    #[inline]
    pub(crate) fn permanent_stream(&self, slot: usize) -> ResourceResult<&Arc<CudaStream>> {
        let created = self.slots[slot].stream.get();
        let misuse =
            || ResourceError::stream_misuse(self.permanent_id(slot), StreamProblem::ReturnedLease);
        created.map(|created| &created.stream).ok_or_else(misuse)
    }

    /// Whether the stream of a slot is capturing a graph. The driver is asked, which costs it
    /// little more than a look.
    #[inline]
    pub(crate) fn is_slot_capturing(&self, slot: usize) -> ResourceResult<bool> {
        if self.progress.ended(slot).is_some() {
            return Ok(false);
        }
        self.has_capture(self.permanent_stream(slot)?)
    }

    #[inline]
    fn has_capture(&self, stream: &Arc<CudaStream>) -> ResourceResult<bool> {
        // SAFETY: the stream is alive for as long as it is borrowed.
        let ask = |stream| unsafe { result::stream::is_capturing(stream) };
        let status = self
            .device
            .call_on(stream.cu_stream(), ask)
            .map_err(|error| self.device.driver_error("cuStreamIsCapturing", error))?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    pub(crate) fn synchronize_slot(&self, slot: usize) -> ResourceResult<()> {
        let stream = self.permanent_stream(slot)?;
        self.device.bind()?;
        if let Some(last) = self.progress.ended(slot) {
            // SAFETY: the event is alive.
            return unsafe { result::event::synchronize(last.handle()) }
                .map_err(|error| self.device.driver_error("cuEventSynchronize", error));
        }
        // SAFETY: `stream` is alive for as long as it is borrowed.
        unsafe { result::stream::synchronize(stream.cu_stream()) }
            .map_err(|error| self.device.driver_error("cuStreamSynchronize", error))
    }

    /// Ends the lease that this id names. Called once, by the lease.
    pub(crate) fn give_back(&self, id: StreamId) {
        if self.device.is_forked() {
            return;
        }
        // Refused from here on, and only then free for the next one.
        self.slots[id.slot()].lease.store(PERMANENT, Ordering::Release);
        self.untake(id.slot());
    }

    #[inline]
    fn find(&self, stream: StreamId) -> ResourceResult<(StreamId, &Created)> {
        let id = if stream.is_default() { self.default_stream() } else { stream };
        if id.pool() == Some(self.id)
            && let Some(slot) = self.slots.get(id.slot())
            && (id.lease() == PERMANENT || slot.lease.load(Ordering::Acquire) == id.lease())
            && let Some(created) = slot.alive()
        {
            return Ok((id, created));
        }
        Err(self.misuse(stream))
    }

    /// Why an id names no stream here.
    #[cold]
    fn misuse(&self, stream: StreamId) -> ResourceError {
        let ours = stream.is_default() || stream.pool() == Some(self.id);
        let problem = if ours { StreamProblem::ReturnedLease } else { StreamProblem::OtherPool };
        ResourceError::stream_misuse(stream, problem)
    }

    /// Sets a slot aside and numbers its next lease.
    fn take(&self, priority: i32) -> ResourceResult<(usize, u32)> {
        let mut books = self.books();
        let free =
            |slot: &usize| !books[*slot].taken && books[*slot].last_lease < StreamId::MAX_LEASE;
        let created = |slot: &usize| self.slots[*slot].stream.get();
        let has_priority =
            |slot: &usize| created(slot).is_some_and(|created| created.priority == priority);
        let all = || 0..self.max_streams;
        let slot = all()
            .filter(free)
            .find(has_priority)
            .or_else(|| all().filter(free).find(|slot| created(slot).is_none()))
            .ok_or_else(|| match all().find(free) {
                None => ResourceError::capacity("streams of the pool", self.max_streams),
                Some(_) => ResourceError::capacity(
                    "streams of this priority",
                    all().filter(has_priority).count(),
                ),
            })?;
        let entry = &mut books[slot];
        entry.taken = true;
        entry.last_lease += 1;
        Ok((slot, entry.last_lease))
    }

    /// Sets a slot aside that has no stream yet.
    fn take_empty(&self, slot: usize) -> bool {
        let mut books = self.books();
        let free = !books[slot].taken && self.slots[slot].stream.get().is_none();
        books[slot].taken |= free;
        free
    }

    pub(crate) fn untake(&self, slot: usize) {
        self.books()[slot].taken = false;
    }

    /// Creates the stream of a slot that the caller has set aside.
    fn create(&self, slot: usize, priority: i32) -> ResourceResult<&Created> {
        if slot > 0 {
            self.progress.announce_second_stream(self)?;
        }
        let created = Created { stream: self.new_stream(priority)?, priority };
        crate::names::name_stream(&created.stream, slot);
        Ok(self.slots[slot].stream.get_or_init(|| created))
    }

    /// A stream of the pool's priority that is in no slot: whoever makes it keeps it.
    pub(crate) fn private_stream(&self) -> ResourceResult<Arc<CudaStream>> {
        self.new_stream(self.priority)
    }

    fn new_stream(&self, priority: i32) -> ResourceResult<Arc<CudaStream>> {
        self.device.refuse_fork()?;
        let context = self.device.context();
        // cudarc would answer an error of some earlier call as if creating had failed. It stays
        // where it was, for whoever asks cudarc.
        let earlier = context.check_err();
        let stream = context
            .new_stream_with_priority(priority)
            .map_err(|error| self.device.driver_error("cuStreamCreateWithPriority", error));
        context.record_err(earlier);
        stream
    }

    #[inline]
    pub(crate) fn permanent_id(&self, slot: usize) -> StreamId {
        self.id_of(slot, PERMANENT)
    }

    #[inline]
    pub(crate) fn id_of(&self, slot: usize, lease: u32) -> StreamId {
        // Slots and leases are within the limits, or they would not have been numbered.
        StreamId::from_parts(self.id, slot, lease).unwrap_or(StreamId::DEFAULT)
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Box<[Entry]>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPool {
    fn drop(&mut self) {
        self.end_pinned();
    }
}

impl fmt::Debug for StreamPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leased = |slot: &&Slot| slot.lease.load(Ordering::Relaxed) != PERMANENT;
        let created = |slot: &&Slot| slot.stream.get().is_some();
        f.debug_struct("StreamPool")
            .field("id", &self.id)
            .field("device", &self.device)
            .field("max_streams", &self.max_streams)
            .field("created", &self.slots.iter().filter(created).count())
            .field("leased", &self.slots.iter().filter(leased).count())
            .finish_non_exhaustive()
    }
}
