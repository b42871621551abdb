//! Idle memory: free, or freed and still used by the device. Whether a request could be served from
//! it, and the host's wait for it.
//!
//! What costs much when memory is short is tried only where it could serve the request: moves of
//! pages, returns of segments, looks at one arena after the other, and the host's waits. A wait for
//! everything in flight takes as long as the queues of all streams, so it is for the oldest uses
//! first, and once in a call.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use dmr_core::DeviceMemoryResource;

use crate::PoolResource;
use crate::acquire::Found;
use crate::arena::{Arena, Request, State};
use crate::config::SEGMENT_STEP;
use crate::heap::{IdleRun, UNIT};
use crate::ladder::Share;

/// The numbers of pending chunks of each arena that the host waits for, the oldest ones; at last
/// all.
const STAGES: [Option<usize>; 4] = [Some(1), Some(16), Some(256), None];
/// An arena with more pending chunks, or more with whole pages, is taken to have enough.
const MANY: usize = 512;

/// The idle memory of all arenas, of each at the instant at which it was looked at.
#[derive(Debug, Default)]
pub(crate) struct IdleMemory {
    /// Bytes of pages, or of segments, that are idle as a whole.
    whole: u64,
    /// The arenas that have any.
    arenas: Vec<IdleArena>,
}

#[derive(Debug)]
struct IdleArena {
    /// The slot of the arena's stream.
    slot: usize,
    /// Bytes of the largest neighbours that are all idle; `u64::MAX` if that is not known.
    longest: u64,
    has_pending: bool,
}

impl IdleMemory {
    /// Returns whether pages or segments are idle as a whole.
    pub(crate) fn has_whole(&self) -> bool {
        self.whole > 0
    }
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Looks at the idle memory of all arenas. Waits for nothing.
    pub(crate) fn look_for_idle(&self) -> IdleMemory {
        let mut idle = IdleMemory::default();
        for arena in self.arenas() {
            let state = arena.lock();
            let has_pending = !state.pending.is_empty();
            let mut longest = u64::from(state.heap.largest_free()) * UNIT;
            let visited = self.visit_idle_runs(&state, |run| {
                longest = longest.max(run.bytes());
                idle.whole = idle.whole.saturating_add(match &self.pages {
                    Some(pages) => run.whole_pages(pages.size),
                    None if run.is_whole => run.bytes(),
                    None => 0,
                });
            });
            if visited.is_break() {
                longest = u64::MAX;
                idle.whole = u64::MAX;
            }
            if longest > 0 {
                idle.arenas.push(IdleArena { slot: arena.home.slot(), longest, has_pending });
            }
        }
        idle
    }

    /// Calls `act` for the idle runs of an arena, without free chunks that have no whole page or
    /// segment. Breaks if there are too many, or an observer has some.
    fn visit_idle_runs(&self, state: &State, mut act: impl FnMut(IdleRun)) -> ControlFlow<()> {
        // The chunks that an observer still has are in no list.
        if self.observed.is_some() || state.pending.len() > MANY {
            return ControlFlow::Break(());
        }
        let piece = self.pages.as_ref().map_or(SEGMENT_STEP, |pages| pages.size);
        state.heap.visit_free_runs((piece / UNIT) as u32, MANY, &mut act)?;
        let pending = state.pending.iter();
        pending.filter_map(|pending| state.heap.run_at(pending.value)).for_each(act);
        ControlFlow::Continue(())
    }

    /// Returns whether trimming, or a look at the arenas one by one, could serve the request.
    pub(crate) fn may_serve(&self, idle: &IdleMemory, request: Request) -> bool {
        idle.has_whole() || idle.arenas.iter().any(|arena| arena.longest >= request.needed())
    }

    /// Returns the arenas whose memory in flight could serve the request once it is free: those
    /// with neighbours that would, or all, if pages or segments that would be free as a whole are
    /// enough.
    fn arenas_to_wait_for(&self, idle: &IdleMemory, request: Request) -> Vec<&Arena> {
        let select = |matches: &dyn Fn(&IdleArena) -> bool| -> Vec<&Arena> {
            let matching = idle.arenas.iter().filter(|arena| matches(arena));
            matching.filter_map(|arena| self.arena_at(arena.slot)).collect()
        };
        let large_enough = select(&|arena| arena.longest >= request.needed());
        if !large_enough.is_empty() {
            return large_enough;
        }
        let movable = match &self.pages {
            Some(pages) => {
                let available = self.available_pages(u64::MAX, pages).saturating_mul(pages.size);
                match idle.whole.saturating_add(available) {
                    0 => 0,
                    // The ends of a window can be in pages that have other blocks.
                    movable => movable.saturating_add(2 * (pages.size - UNIT)),
                }
            }
            None if idle.whole == 0 => 0,
            None => {
                let claimed = self.claimed.load(Ordering::Relaxed);
                idle.whole.saturating_add(self.most_from_upstream().saturating_sub(claimed))
            }
        };
        match movable >= request.needed() {
            true => select(&|arena| arena.has_pending),
            false => Vec::new(),
        }
    }

    /// Waits for memory in flight, the oldest first, until a chunk for the request is found.
    /// `None`, without a wait, if all that is in flight would not suffice.
    pub(crate) fn wait_for_memory<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
        idle: &IdleMemory,
    ) -> Option<Found<'p>> {
        let arenas = self.arenas_to_wait_for(idle, request);
        for oldest in STAGES.into_iter().filter(|_| !arenas.is_empty()) {
            for &arena in &arenas {
                let uses = match oldest {
                    Some(number) => arena.lock().uses_of_oldest(number),
                    None => arena.pending_uses(),
                };
                if uses.is_empty() {
                    continue;
                }
                // On an error it stays pending.
                let _ = self.uses().synchronize(&uses);
                arena.free_all_ordered(self.uses());
                if let Some(found) = self.acquire_of_any(own, request) {
                    return Some(found);
                }
            }
            // Pages and segments that are free as a whole by now. An error is the next caller's.
            if let Ok(Some(found)) = self.grow(own, request, Share::Limit) {
                return Some(found);
            }
        }
        // What an observer has been told of late is in no list of pending chunks.
        if self.observed.is_some() {
            let _ = self.wait_for_freed_regions();
        }
        None
    }

    /// Acquires a chunk of the own arena, or of any other one. Skips no arena because it is locked.
    pub(crate) fn acquire_of_any<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
    ) -> Option<Found<'p>> {
        let hand = self.transit.open();
        if let Some(chunk) = self.poll_and_acquire(own, request) {
            return Some(own.found(chunk).in_hand(hand));
        }
        drop(hand);
        self.lend_any(own.home, request)
    }
}
