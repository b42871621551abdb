//! The ladder: where a chunk comes from when a stream's own arena has none free.
//!
//! The steps are tried in turn, the cheapest first. A search that has failed is repeated as long as
//! another thread had memory in its hands meanwhile ([`Transit`](crate::transit::Transit)).

use std::cell::LazyCell;
use std::sync::Arc;

use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_recorder::Refused;
use dmr_recorder::hooks;
use dmr_streams::uses::Dependencies;

use crate::PoolResource;
use crate::arena::{Arena, ChunkLocation, FreedChunk, Placement, Request};
use crate::heap::AcquiredChunk;
use crate::idle::IdleMemory;
use crate::ladder::{LADDER, LadderStep, Share};
use crate::stats::PoolReport;
use crate::transit::Hand;

/// The most times that the ladder is climbed for one request.
const TRIES: usize = 16;

/// One climb of the ladder.
#[derive(Clone, Copy)]
struct Climb {
    /// The first of the call. At its end the host waits for memory in flight that could serve the
    /// request; a repetition looks for memory that was in other threads' hands.
    is_first: bool,
    /// The number of upstream's refusals when the call began.
    refusals: u64,
}

/// A chunk that a search has acquired.
#[derive(Debug)]
pub(crate) struct Found<'p> {
    pub(crate) arena: &'p Arena,
    pub(crate) chunk: AcquiredChunk,
    /// The dependencies that the own stream was made to wait for; `None` for a chunk that was not
    /// lent.
    after: Option<Dependencies>,
    /// The hand that holds the chunk until it is a block's or free again; `None` for a chunk that
    /// nothing but a lack of use slots can keep from becoming a block's.
    hand: Option<Hand<'p>>,
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Acquires a chunk that the arena's stream may use at once, unless one was acquired `already`,
    /// and the use slot of its block: the one that the chunk's last block has left, or a new one.
    #[inline(never)]
    pub(crate) fn acquire_slowly(
        &self,
        own: &Arena,
        already: Option<AcquiredChunk>,
        request: Request,
    ) -> ResourceResult<Placement> {
        let found = match already {
            Some(chunk) => own.found(chunk),
            None => self.climb_again(own, request)?,
        };
        let Found { arena, chunk, .. } = found;
        let mut state = arena.lock_for_block();
        let slot = match state.heap.take_slot(chunk.id, request.tag) {
            Some(slot) => slot,
            None => {
                drop(state);
                let payload = found.location().to_payload();
                let slot = match self.uses().reserve(&self.owner, payload, own.home) {
                    Ok(slot) => slot,
                    Err(error) => {
                        self.put_back(found, own.home);
                        return Err(error);
                    }
                };
                state = arena.lock_for_block();
                slot
            }
        };
        state.count_block(request.bytes);
        drop(state);
        if let Some(hand) = found.hand {
            hand.spend();
        }
        Ok(Placement { chunk, slot })
    }

    /// Frees a chunk that has not become a block's. The stream `home` is ordered after its uses.
    #[cold]
    pub(crate) fn put_back(&self, found: Found<'_>, home: StreamId) {
        let location = found.location();
        let Found { arena, chunk, after, hand } = found;
        match after {
            // As it was: no work was submitted for it.
            Some(after) => {
                let mut state = arena.lock();
                if after.is_empty() {
                    state.heap.release(chunk.id, chunk.since);
                } else {
                    state.push(chunk.id, after, chunk.since);
                }
            }
            None => {
                let after = Dependencies::default();
                let chunk =
                    FreedChunk { location, home, after, slot: None, deallocated: 0, freed: 0 };
                self.free_chunk(chunk);
            }
        }
        drop(hand);
    }

    /// Climbs the ladder, and repeats that as long as the search may have missed memory in another
    /// thread's hand.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](ResourceError::OutOfMemory) if there is not enough, or upstream's error;
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if the stream has begun to capture a
    /// graph.
    #[cold]
    fn climb_again<'p>(&'p self, own: &'p Arena, request: Request) -> ResourceResult<Found<'p>> {
        let mut refused = None;
        let refusals = self.refusals();
        let began = self.reports.begin_search();
        for nth in 0..TRIES {
            let search = self.transit.search();
            let climb = Climb { is_first: nth == 0, refusals };
            if let Some(found) = self.climb(own, request, climb, &mut refused)? {
                return Ok(found);
            }
            if !search.may_have_missed() {
                break;
            }
        }
        self.refuse_captured(own.home)?;
        // Upstream may have refused another thread, and was not asked again.
        let refused = refused.or_else(|| self.refusal_after(refusals));
        let refused = refused.unwrap_or_else(|| self.out_of_memory(request.bytes));
        if !is_full(&refused) {
            return Err(refused);
        }
        let report = || PoolReport { usage: self.own_usage(), shortage: self.estimated_shortage() };
        let PoolReport { usage, shortage } = self.reports.since(began, report);
        let free = shortage.cached;
        let largest_free = shortage.largest_free;
        let refused = refused.in_pool(request.bytes as usize, &usage, shortage);
        hooks::refused(|| Refused {
            bytes: request.bytes,
            stream: Some(own.home),
            tag: request.tag,
            free,
            largest_free,
            ..Refused::by(&refused)
        });
        Err(refused)
    }

    /// Climbs the ladder once. Stores the error of upstream in `refused`.
    fn climb<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
        climb: Climb,
        refused: &mut Option<ResourceError>,
    ) -> ResourceResult<Option<Found<'p>>> {
        self.free_closed();
        self.decay_slack();
        if let Some(chunk) = self.acquire_done_with(own, request) {
            return Ok(Some(own.found(chunk)));
        }
        let began = self.idle.begin_search();
        let idle = LazyCell::new(|| self.idle.since(began, || Arc::new(self.look_for_idle())));
        for step in LADDER {
            let found = match step {
                // A repetition has been refused these, and takes from the whole limit at once.
                LadderStep::OwnPage | LadderStep::Grow(Share::Slack) if !climb.is_first => None,
                LadderStep::OwnPage if own.lock().restart_many_loans() => {
                    self.map_own_page(own, request)
                }
                LadderStep::OwnPage => None,
                LadderStep::LendReady => self.lend_ready(own, request),
                LadderStep::LendWaiting => self.lend_waiting(own, request),
                // On an error of the first, the other one returns its own.
                LadderStep::Grow(Share::Slack) => {
                    self.grow(own, request, Share::Slack).unwrap_or_default()
                }
                LadderStep::Grow(Share::Limit) => {
                    match self.grow_to_limit(own, request, &idle, false) {
                        Ok(found) => found,
                        Err(error) if !is_full(&error) => return Err(error),
                        Err(error) => {
                            *refused = Some(error);
                            None
                        }
                    }
                }
                LadderStep::Reclaim => match self.reclaim(own, request, climb, &idle) {
                    Ok(found) => found,
                    Err(error) => {
                        refused.get_or_insert(error);
                        None
                    }
                },
            };
            if let Some(found) = found {
                own.lock().count_step(step, !std::ptr::eq(found.arena, own));
                // A wait that the driver has refused, because the stream captures by now, ends the
                // capture: then the caller needs the error, and not the memory that was found
                // instead.
                if step.may_wait()
                    && let Err(captures) = self.refuse_captured(own.home)
                {
                    self.put_back(found, own.home);
                    return Err(captures);
                }
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Refuses a home stream that captures a graph.
    fn refuse_captured(&self, home: StreamId) -> ResourceResult<()> {
        self.streams.enter_home(home)?.refuse_capture()
    }

    /// Lets contention and peak decay, by the bytes that were allocated since.
    fn decay_slack(&self) {
        let mut allocated = 0;
        let mut live = 0;
        for arena in self.arenas() {
            allocated += arena.allocated();
            live += arena.live();
        }
        self.slack.decay(allocated, live);
    }

    /// Acquires a chunk after the host has waited for memory in flight, and free segments have gone
    /// back to upstream. Skips no arena because it is locked.
    ///
    /// # Errors
    ///
    /// Upstream's, which gets a last request.
    fn reclaim<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
        climb: Climb,
        idle: &IdleMemory,
    ) -> ResourceResult<Option<Found<'p>>> {
        hooks::short_of_memory();
        let may_serve = self.may_serve(idle, request);
        // Over blocks, free segments of the wrong size may be all that upstream lacks; pages have
        // been moved by now. Then the host waits, as no earlier step does.
        if self.pages.is_none() && may_serve {
            // What cannot go back stays, and the caller has an error to return.
            let _ = self.trim_own_to(0);
            if let Ok(Some(found)) = self.grow(own, request, Share::Limit) {
                return Ok(Some(found));
            }
        }
        if climb.is_first
            && let Some(found) = self.wait_for_memory(own, request, idle)
        {
            return Ok(Some(found));
        }
        if may_serve && let Some(found) = self.acquire_of_any(own, request) {
            return Ok(Some(found));
        }
        if self.pages.is_some() && !climb.is_first {
            return Ok(None);
        }
        let reaped = match climb.is_first {
            true => self.upstream.reap_pending(),
            false => self.upstream.try_reap(),
        };
        if self.pages.is_none() && may_serve {
            let _ = self.trim_own_to(0);
        }
        // What upstream has refused before the call, or before it freed memory of others, it may
        // have now. Otherwise a refusal of any thread since the call began stands.
        let again = reaped.unwrap_or(0) > 0 || self.refusals() == climb.refusals;
        self.grow_to_limit(own, request, idle, again)
    }

    /// Takes memory from upstream, up to the pool's maximum, or moves idle pages. What upstream has
    /// refused before is asked for only if `again`.
    ///
    /// # Errors
    ///
    /// Upstream's.
    fn grow_to_limit<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
        idle: &IdleMemory,
        again: bool,
    ) -> ResourceResult<Option<Found<'p>>> {
        match self.paging() {
            Some(paging) if !self.secure_page(idle, request.tag, again, paging)? => Ok(None),
            None if again => {
                self.ask_upstream_again();
                self.grow(own, request, Share::Limit)
            }
            _ => self.grow(own, request, Share::Limit),
        }
    }
}

impl<'p> Found<'p> {
    /// Moves the chunk into a hand, which was open when the chunk was acquired.
    pub(crate) fn in_hand(self, hand: Hand<'p>) -> Self {
        hand.hold();
        Self { hand: Some(hand), ..self }
    }

    /// Notes that the own stream is made to wait for these dependencies of the chunk.
    pub(crate) fn lent_after(self, after: Dependencies) -> Self {
        Self { after: Some(after), ..self }
    }

    fn location(&self) -> ChunkLocation {
        ChunkLocation { arena: self.arena.home.slot(), chunk: self.chunk.id }
    }
}

impl Arena {
    /// Returns a chunk of this arena as found.
    pub(crate) fn found(&self, chunk: AcquiredChunk) -> Found<'_> {
        Found { arena: self, chunk, after: None, hand: None }
    }
}

/// Returns whether returning memory to upstream may help against this error.
pub(crate) fn is_full(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}
