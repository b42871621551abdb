//! Dependencies: the work that must complete before freed memory is used again.

use std::fmt;

use dmr_core::error::StreamProblem;
use dmr_core::ledger::UseId;
use dmr_core::{BlockId, ByteRange, ResourceError, ResourceResult, StreamId, StreamPoolId};
use dmr_recorder::hooks::HostWait;
use smallvec::SmallVec;

use super::UseTable;
use super::needs::Needs;
use crate::progress::RecordedEvent;
use crate::{HomeStream, StreamGuard};

/// Device work that must complete first: uses of the streams of one pool, as numbers.
///
/// A plain value: it holds no event and keeps nothing alive, and a use in it that is done by now
/// does no harm. [`UseTable`] has the functions that compare a stream with it and make streams and
/// the host wait for it. The use table of another stream pool refuses it.
#[derive(Clone, Default)]
pub struct Dependencies {
    pub(super) uses: SmallVec<[UseId; 2]>,
    origin: Origin,
}

/// The stream pool whose streams the uses are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// There are no uses yet.
    #[default]
    None,
    Pool(StreamPoolId),
    /// Uses of several pools were added, so no use table accepts them.
    Mixed,
}

/// The order of a stream's next work and [`Dependencies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyOrder {
    /// They are known to be done.
    Done,
    /// Work that is submitted to the stream from now on comes after them.
    Before,
    /// Neither is known.
    Unordered,
}

impl Dependencies {
    /// Returns a dependency on the work submitted to `stream` up to sequence number `seq`
    /// ([`UseTable::submitted`]).
    #[must_use]
    pub fn on(stream: StreamId, seq: u64) -> Self {
        let mut on = Self::default();
        on.add(stream, seq);
        on
    }

    /// Returns a dependency on a use of a stream of `pool`.
    #[must_use]
    pub fn on_use(pool: StreamPoolId, used: UseId) -> Self {
        let mut on = Self::default();
        on.add_use(pool, used);
        on
    }

    /// Adds a dependency on the work submitted to `stream` up to sequence number `seq`.
    pub fn add(&mut self, stream: StreamId, seq: u64) {
        self.add_origin(stream.pool().map_or(Origin::Mixed, Origin::Pool));
        self.uses.push(UseId::new(stream.slot(), seq));
    }

    /// Adds all dependencies of `other`.
    pub fn add_all(&mut self, other: &Self) {
        self.add_origin(other.origin);
        self.uses.extend_from_slice(&other.uses);
    }

    /// Returns whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.uses.is_empty()
    }

    /// Returns the newest use of each stream: work that comes after these comes after all.
    #[must_use]
    pub fn newest_of_each_stream(mut self) -> Self {
        self.sort();
        self.uses =
            streams_of(&self.uses).filter_map(|of_stream| of_stream.last()).copied().collect();
        self
    }

    /// Sorts the uses: those of one stream are together, oldest first.
    fn sort(&mut self) {
        self.uses.sort_unstable_by_key(|used| (used.slot(), used.seq()));
        self.uses.dedup();
    }

    /// Adds a use of a stream of `pool`.
    #[inline]
    pub(super) fn add_use(&mut self, pool: StreamPoolId, used: UseId) {
        self.add_origin(Origin::Pool(pool));
        self.uses.push(used);
    }

    #[inline]
    fn add_origin(&mut self, added: Origin) {
        self.origin = match (self.origin, added) {
            (origin, Origin::None) => origin,
            (Origin::None, added) => added,
            (origin, added) if origin == added => origin,
            _ => Origin::Mixed,
        };
    }

    /// Returns whether all uses are of streams of `pool`.
    #[inline]
    fn are_of(&self, pool: StreamPoolId) -> bool {
        match self.origin {
            Origin::None => true,
            Origin::Pool(known) => known == pool,
            Origin::Mixed => false,
        }
    }
}

impl<'a> FromIterator<&'a Self> for Dependencies {
    fn from_iter<I: IntoIterator<Item = &'a Self>>(all: I) -> Self {
        let mut on = Self::default();
        all.into_iter().for_each(|each| on.add_all(each));
        on
    }
}

/// Splits sorted uses by their streams.
fn streams_of(sorted: &[UseId]) -> impl Iterator<Item = &[UseId]> {
    sorted.chunk_by(|a, b| a.slot() == b.slot())
}

impl fmt::Debug for Dependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.uses).finish()
    }
}

impl UseTable<'_> {
    /// Returns the sequence number that stands for all work submitted to `stream` so far, recorded
    /// or not. Numbers of one stream grow. For a stream of another pool, returns a number that no
    /// use reaches.
    #[must_use]
    #[inline]
    pub fn submitted(&self, stream: StreamId) -> u64 {
        match self.is_ours(stream) {
            true => self.pool.progress().submitted(stream.slot()).seq(),
            false => UseId::MAX_SEQ,
        }
    }

    /// Returns a dependency on all work submitted to `stream` so far, recorded or not, also after
    /// its lease was returned. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another pool.
    pub fn work_so_far(&self, stream: StreamId) -> ResourceResult<Dependencies> {
        let stream = self.of_this_pool(stream)?;
        Ok(Dependencies::on(stream, self.submitted(stream)))
    }

    /// Returns the recorded uses of these bytes of a live block that are not known to be done;
    /// `None` if a window on one of them is open.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a stale id.
    pub fn recorded_uses_of(
        &self,
        block: BlockId,
        bytes: ByteRange,
    ) -> ResourceResult<Option<Dependencies>> {
        // Another thread may have held a slot when the process was forked.
        self.pool.device().refuse_fork()?;
        let pool = self.pool.id();
        let progress = self.pool.progress();
        let mut after = Dependencies::default();
        let need = |used| {
            if !progress.is_done(used) {
                after.add_use(pool, used);
            }
        };
        Ok(self.slots().visit_host_waits(block, bytes, progress, need)?.then_some(after))
    }

    /// Returns whether `stream` is retired, so that nothing can be submitted to it any more.
    #[must_use]
    pub fn has_ended(&self, stream: StreamId) -> bool {
        !self.is_ours(stream) || self.pool.is_retired(stream.slot())
    }

    /// Returns whether all of `after` is known to be done. Makes no driver call.
    #[must_use]
    pub fn is_known_done(&self, after: &Dependencies) -> bool {
        let progress = self.pool.progress();
        self.accepts(after) && after.uses.iter().all(|used| progress.is_done(*used))
    }

    /// Returns whether work that is submitted to `stream` from now on comes after all of `after`,
    /// or all of `after` is known to be done. Makes no driver call.
    #[must_use]
    #[inline]
    pub fn is_after(&self, stream: StreamId, after: &Dependencies) -> bool {
        self.order_of(stream, after) != DependencyOrder::Unordered
    }

    /// As [`is_after`](Self::is_after), for the work submitted up to `seq` to the stream in the
    /// slot `other` of this pool.
    #[must_use]
    #[inline]
    pub fn is_after_number(&self, stream: StreamId, other: usize, seq: u64) -> bool {
        self.is_ours(stream) && !self.holds_up(stream.slot(), UseId::new(other, seq))
    }

    /// Returns the order of `after` and the work that is submitted to `stream` from now on. Makes
    /// no driver call.
    #[must_use]
    #[inline]
    pub fn order_of(&self, stream: StreamId, after: &Dependencies) -> DependencyOrder {
        if !self.accepts(after) || !self.is_ours(stream) {
            return DependencyOrder::Unordered;
        }
        let progress = self.pool.progress();
        let slot = stream.slot();
        let mut order = DependencyOrder::Done;
        for used in &after.uses {
            if !progress.is_done(*used) {
                if self.holds_up(slot, *used) {
                    return DependencyOrder::Unordered;
                }
                order = DependencyOrder::Before;
            }
        }
        order
    }

    /// Returns the order of a use of a stream of this pool, and of the work that is submitted to
    /// `stream`, of this pool as well, from now on. Makes no driver call.
    #[must_use]
    #[inline]
    pub fn order_of_use(&self, stream: StreamId, used: UseId) -> DependencyOrder {
        if self.pool.progress().is_done(used) {
            DependencyOrder::Done
        } else if self.holds_up(stream.slot(), used) {
            DependencyOrder::Unordered
        } else {
            DependencyOrder::Before
        }
    }

    /// Makes the home stream of a block wait for all of `after` that is not known to be done or
    /// waited for.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another pool or a retired one,
    /// and for dependencies of another pool; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver), when some waits may have been queued.
    pub fn wait_for(&self, stream: StreamId, after: &Dependencies) -> ResourceResult<()> {
        if self.is_after(stream, after) {
            return Ok(());
        }
        let HomeStream::Live(stream) = self.pool.enter_home(stream)? else {
            return Err(self.pool.misuse(stream));
        };
        stream.refuse_capture()?;
        self.wait_on(&stream, after)
    }

    /// Makes `stream` wait for all of `after` that is not known to be done or waited for. The
    /// stream captures no graph, or the driver refuses the wait and its capture ends.
    ///
    /// # Errors
    ///
    /// As [`wait_for`](Self::wait_for).
    pub fn wait_on(&self, stream: &StreamGuard<'_>, after: &Dependencies) -> ResourceResult<()> {
        self.refuse_others(after)?;
        let mut needs = Needs::new(0);
        for used in &after.uses {
            if self.holds_up(stream.slot(), *used) {
                needs.add(*used, 0);
            }
        }
        if needs.as_slice().is_empty() { Ok(()) } else { self.wait(stream, &needs) }
    }

    /// Queries whether all of `after` is done. The result is remembered for all earlier uses of the
    /// same streams.
    ///
    /// # Errors
    ///
    /// [`DeviceLost`](ResourceError::DeviceLost); [`StreamMisuse`](ResourceError::StreamMisuse) for
    /// dependencies of another pool; [`StreamCapturing`](ResourceError::StreamCapturing) if no
    /// event was recorded behind the work yet, and none can be; [`Driver`](ResourceError::Driver),
    /// which may come from work submitted earlier.
    pub fn poll(&self, after: &Dependencies) -> ResourceResult<bool> {
        self.refuse_others(after)?;
        for used in &after.uses {
            if !self.pool.progress().is_done(*used) && !self.query(*used)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Polls each of `after`, so that the uses that are done are known to be. The work of a stream
    /// completes in order, so this takes a few queries for each stream: its newest use is polled,
    /// if that is not done its oldest, and if that is done those between them are bisected.
    pub fn poll_each(&self, after: &Dependencies) {
        if !self.accepts(after) {
            return;
        }
        let mut sorted = after.clone();
        sorted.sort();
        let progress = self.pool.progress();
        // A use whose query fails is not known to be done, and is polled again later.
        let is_done =
            |used: &UseId| progress.is_done(*used) || self.query(*used).unwrap_or_default();
        for of_stream in streams_of(&sorted.uses) {
            let Some((newest, older)) = of_stream.split_last() else { continue };
            if !is_done(newest) && older.first().is_some_and(is_done) {
                let _ = older.partition_point(is_done);
            }
        }
    }

    /// Waits until all of `after` is done.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll): the first. The uses of other streams were waited for all the same.
    /// [`Driver`](ResourceError::Driver) with `CUDA_ERROR_NOT_READY` if the thread's
    /// [deadline](dmr_core::waits) has passed before.
    pub fn synchronize(&self, after: &Dependencies) -> ResourceResult<()> {
        let device = self.pool.device();
        let progress = self.pool.progress();
        self.refuse_others(after)?;
        device.check()?;
        let mut outcome = Ok(());
        for used in after.clone().newest_of_each_stream().uses {
            let event = progress.event_for(self.pool, used);
            outcome = outcome.and(match event {
                Ok(Some(event)) => {
                    let _waiting = HostWait::for_stream(self.pool.permanent_id(used.slot()));
                    progress.synchronize(device, &event)
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            });
        }
        outcome
    }

    /// Returns an event for each use that is not known to be done. The events may outlive the pool.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for work of another pool;
    /// [`ForkedProcess`](ResourceError::ForkedProcess);
    /// [`DeviceLost`](ResourceError::DeviceLost); if an event has to be recorded and cannot be,
    /// [`StreamCapturing`](ResourceError::StreamCapturing) or
    /// [`Driver`](ResourceError::Driver).
    pub fn events_of(&self, after: &Dependencies) -> ResourceResult<SmallVec<[RecordedEvent; 4]>> {
        self.refuse_others(after)?;
        self.pool.device().check()?;
        let mut events = SmallVec::new();
        for used in &after.uses {
            let event = self.pool.progress().event_for(self.pool, *used)?;
            events.extend(event.map(RecordedEvent::of));
        }
        Ok(events)
    }

    /// Queries whether a use is done; makes no driver call on a lost device.
    fn query(&self, used: UseId) -> ResourceResult<bool> {
        self.pool.device().check()?;
        let progress = self.pool.progress();
        match progress.event_for(self.pool, used)? {
            None => Ok(true),
            Some(event) => progress.query(self.pool.device(), &event),
        }
    }

    #[inline]
    fn accepts(&self, after: &Dependencies) -> bool {
        after.are_of(self.pool.id())
    }

    fn refuse_others(&self, after: &Dependencies) -> ResourceResult<()> {
        if self.accepts(after) {
            return Ok(());
        }
        let stream = self.pool.default_stream();
        Err(ResourceError::stream_misuse(stream, StreamProblem::OtherPool))
    }
}
