//! The ladder: where a chunk comes from when a stream's own arena has none free.
//!
//! The steps are tried in turn, from what costs least to what costs most; which they are depends on
//! the mode of the configuration. A search that has failed is repeated as long as another thread had
//! memory in its hands meanwhile ([`Transit`](crate::transit::Transit)).

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_streams::uses::FreeSlot;

use crate::PoolResource;
use crate::arena::{Arena, Request};
use crate::heap::{ChunkId, Taken};
use crate::resource::ChunkLocation;

/// How often the ladder is climbed for one request.
const TRIES: usize = 16;

/// A chunk that was acquired, and the slot of the stream of the arena that it is from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) arena: usize,
    pub(crate) taken: Taken,
}

/// How much the pool may have from upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// A little more than what is live, or was at its peak.
    Slack,
    /// Its maximum, or what upstream has. Pages are moved before that.
    Limit,
}

/// Whether a stream is made to wait for a chunk of another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lend {
    /// No: only what it may use at once.
    NoWait,
    Wait,
}

/// A step of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LadderStep {
    /// A page of its own, for a stream that has had many chunks of other arenas.
    Settle,
    /// A chunk of the own arena that other streams are done with, or of another arena.
    Lend(Lend),
    /// Memory from upstream. The waits that a stream is spared so cost memory: of pages, `compact`
    /// takes only a few before it waits, unless threads are in each other's way.
    Grow(Share),
    /// What is pending is waited for by the host, what is kept goes back to upstream and is taken anew.
    Reclaim,
}

impl LadderStep {
    /// Returns whether the stream may have been made to wait.
    fn may_wait(self) -> bool {
        self != Self::Lend(Lend::NoWait)
    }
}

/// How often each step of the search for memory has found a chunk, since the pool was made.
/// Allocations that find one free in the arena of their own stream take no step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepCounts {
    /// Chunks that other streams had used, or had, and that could be used at once.
    pub lent_ready: u64,
    /// Chunks that the stream was made to wait for.
    pub lent_waiting: u64,
    /// Chunks of new memory, within the pool's slack.
    pub grown_within_slack: u64,
    /// Chunks of new memory or of moved pages, up to the pool's maximum.
    pub grown: u64,
    /// Chunks that were found after the host had waited, or memory had gone back to upstream.
    pub reclaimed: u64,
    /// Pages that were moved to other addresses. Counts pages, not chunks.
    pub pages_moved: u64,
}

impl StepCounts {
    pub(crate) fn count(&mut self, step: LadderStep) {
        *match step {
            LadderStep::Lend(Lend::NoWait) => &mut self.lent_ready,
            LadderStep::Lend(Lend::Wait) => &mut self.lent_waiting,
            LadderStep::Grow(Share::Slack) => &mut self.grown_within_slack,
            LadderStep::Settle | LadderStep::Grow(Share::Limit) => &mut self.grown,
            LadderStep::Reclaim => &mut self.reclaimed,
        } += 1;
    }

    /// Adds the counts of one arena.
    pub(crate) fn add(&mut self, other: &Self) {
        self.lent_ready += other.lent_ready;
        self.lent_waiting += other.lent_waiting;
        self.grown_within_slack += other.grown_within_slack;
        self.grown += other.grown;
        self.reclaimed += other.reclaimed;
    }
}

/// The same steps in both modes: what differs is the slack.
const LADDER: [LadderStep; 6] = [
    LadderStep::Settle,
    LadderStep::Lend(Lend::NoWait),
    LadderStep::Grow(Share::Slack),
    LadderStep::Lend(Lend::Wait),
    LadderStep::Grow(Share::Limit),
    LadderStep::Reclaim,
];

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Acquires a chunk that the arena's stream may use at once, unless it has `already` one; and the
    /// slot for its block: the one that its last block has left, or a new one.
    #[inline(never)]
    pub(crate) fn acquire_slowly(
        &self,
        own: &Arena,
        already: Option<Taken>,
        request: Request,
        tag: AllocTag,
    ) -> ResourceResult<(Found, FreeSlot)> {
        let found = match already {
            Some(taken) => own.found(taken),
            None => self.climb_again(own, request).map_err(|error| {
                if !is_full(&error) {
                    return error;
                }
                error.in_pool(request.bytes as usize, &self.own_usage(), self.estimated_shortage())
            })?,
        };
        let Found { arena: at, taken } = found;
        let slot = self.arena_at(at).and_then(|arena| arena.lock().use_slot(taken.id, tag));
        let slot = slot.map_or_else(|| self.new_slot(at, taken.id, own.home), Ok);
        match slot {
            Ok(slot) => {
                if let Some(arena) = self.arena_at(at) {
                    let mut state = arena.lock();
                    state.add_seat(taken.id, tag);
                    state.counts.add_block(request.bytes);
                }
                Ok((found, slot))
            }
            Err(error) => {
                self.free_unused(found.location(), own.home);
                Err(error)
            }
        }
    }

    fn new_slot(&self, arena: usize, chunk: ChunkId, home: StreamId) -> ResourceResult<FreeSlot> {
        self.uses().reserve(&self.owner, ChunkLocation { arena, chunk }.to_payload(), home)
    }

    /// Climbs the ladder, again as long as the search may have missed memory in another thread's hand.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](ResourceError::OutOfMemory) if there is not enough, or upstream's error;
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if the stream has begun to capture a graph.
    #[cold]
    fn climb_again(&self, own: &Arena, request: Request) -> ResourceResult<Found> {
        let mut refused = None;
        for _ in 0..TRIES {
            let search = self.transit.search();
            if let Some(found) = self.climb(own, request, &mut refused)? {
                return Ok(found);
            }
            if !search.may_have_missed() {
                break;
            }
        }
        self.refuse_captured(own.home)?;
        Err(refused.unwrap_or_else(|| self.out_of_memory(request.bytes)))
    }

    /// Climbs the ladder once. Why upstream has no more goes to `refused`.
    fn climb(
        &self,
        own: &Arena,
        request: Request,
        refused: &mut Option<ResourceError>,
    ) -> ResourceResult<Option<Found>> {
        self.free_closed();
        self.decay_slack();
        if let Some(taken) = self.take_done_with(own, request) {
            return Ok(Some(own.found(taken)));
        }
        for step in LADDER {
            let found = match step {
                LadderStep::Settle if own.lock().lives_on_loans() => self.map_at_home(own, request),
                LadderStep::Settle => None,
                LadderStep::Lend(Lend::NoWait) => self.lend_ready(own, request),
                LadderStep::Lend(Lend::Wait) => self.lend_waiting(own, request),
                // On an error of the first, the other one returns its own.
                LadderStep::Grow(Share::Slack) => {
                    self.grow(own, request, Share::Slack).unwrap_or_default()
                }
                LadderStep::Grow(Share::Limit) => match self.grow(own, request, Share::Limit) {
                    Ok(found) => found,
                    Err(error) if !is_full(&error) => return Err(error),
                    Err(error) => {
                        *refused = Some(error);
                        None
                    }
                },
                LadderStep::Reclaim => match self.reclaim(own, request) {
                    Ok(found) => found,
                    Err(error) => {
                        refused.get_or_insert(error);
                        None
                    }
                },
            };
            if let Some(found) = found {
                own.lock().count_step(step, found.arena != own.home.slot());
                // A wait that the driver has refused, because the stream captures by now, ends the
                // capture: the memory that was found instead is not what the caller needs.
                if step.may_wait()
                    && let Err(captures) = self.refuse_captured(own.home)
                {
                    self.free_unused(found.location(), own.home);
                    return Err(captures);
                }
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Lets what raises the allowance decay, by the bytes that were allocated since.
    fn decay_slack(&self) {
        let (mut allocated, mut live) = (0, 0);
        for arena in self.arenas() {
            allocated += arena.allocated();
            live += arena.live();
        }
        self.slack.decay(allocated, live);
    }

    /// Acquires a chunk after all that is pending is waited for, and what is kept has gone back to
    /// upstream. No arena is skipped because a thread is in it.
    ///
    /// # Errors
    ///
    /// Upstream's, which is asked for more at last.
    fn reclaim(&self, own: &Arena, request: Request) -> ResourceResult<Option<Found>> {
        if self.pages.is_none() {
            // What cannot go back stays, and the caller has an error to return.
            let _ = self.trim_own_to(0);
            if let Ok(Some(found)) = self.grow(own, request, Share::Limit) {
                return Ok(Some(found));
            }
        }
        let _ = self.wait_for_pending();
        if let Some(taken) = self.settle_and_take(own, request) {
            return Ok(Some(own.found(taken)));
        }
        if let Some(found) = self.lend_any(own.home, request) {
            return Ok(Some(found));
        }
        let _ = self.upstream.reap_pending();
        if self.pages.is_none() {
            let _ = self.trim_own_to(0);
        }
        self.ask_upstream_again();
        self.grow(own, request, Share::Limit)
    }
}

impl Found {
    fn location(self) -> ChunkLocation {
        ChunkLocation { arena: self.arena, chunk: self.taken.id }
    }
}

impl Arena {
    /// Returns a chunk of this arena as found.
    pub(crate) fn found(&self, taken: Taken) -> Found {
        Found { arena: self.home.slot(), taken }
    }
}

/// Returns whether memory that goes back to upstream may help.
pub(crate) fn is_full(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}
