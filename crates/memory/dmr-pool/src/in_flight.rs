//! Memory in flight: freed, and still used by the device. Whether a wait of the host for it could
//! serve a request, and the wait.
//!
//! A refusal comes after everything else has been tried, with many threads at a time when memory is
//! short. A wait for everything in flight takes as long as the queues of all streams. So the host
//! waits only if the memory in flight could serve the request once it is free, for the oldest uses
//! first, and once in a call.

use std::sync::atomic::Ordering;

use dmr_core::DeviceMemoryResource;

use crate::PoolResource;
use crate::acquire::Found;
use crate::arena::{Arena, Request};
use crate::heap::{IdleRun, UNIT};
use crate::ladder::Share;
use crate::pages::Pages;

/// The numbers of pending chunks of each arena that the host waits for, the oldest ones; at last
/// all.
const STAGES: [Option<usize>; 4] = [Some(1), Some(16), Some(256), None];
/// The most chunk records that are looked at while an arena is locked.
const AT_A_TIME: usize = 4096;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Waits for memory in flight, the oldest first, until a chunk for the request is found.
    /// `None`, without a wait, if all that is in flight would not suffice.
    pub(crate) fn wait_for_memory<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
    ) -> Option<Found<'p>> {
        let arenas = self.arenas_that_suffice(request);
        for oldest in STAGES {
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
                if let Some(found) = self.find_idle(own, request) {
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
    pub(crate) fn find_idle<'p>(&'p self, own: &'p Arena, request: Request) -> Option<Found<'p>> {
        let hand = self.transit.open();
        if let Some(chunk) = self.poll_and_acquire(own, request) {
            return Some(own.found(chunk).in_hand(hand));
        }
        drop(hand);
        self.lend_any(own.home, request)
    }

    /// Returns the arenas whose memory in flight could serve the request once it is free: those
    /// with neighbours that would, or all, if pages or segments that would be free as a whole are
    /// enough. Waits for nothing.
    fn arenas_that_suffice(&self, request: Request) -> Vec<&Arena> {
        let pending = |arena: &&Arena| arena.lock().pending_units > 0;
        let in_flight: Vec<_> = self.arenas().filter(pending).collect();
        if in_flight.is_empty() || self.observed.is_some() {
            return in_flight;
        }
        let page = self.pages.as_ref().map(|pages| pages.size);
        let claimed = self.claimed.load(Ordering::Relaxed);
        let mut movable = self.most_from_upstream().saturating_sub(claimed);
        movable = movable.saturating_add(self.pages.as_ref().map_or(0, Pages::spare_bytes));
        let mut sufficient = Vec::new();
        for arena in self.arenas() {
            let mut longest = 0;
            self.visit_idle_runs(arena, |run| {
                longest = longest.max(run.bytes());
                movable = movable.saturating_add(match page {
                    Some(page) => run.whole_pages(page),
                    None if run.is_whole => run.bytes(),
                    None => 0,
                });
            });
            if longest >= request.needed() {
                sufficient.push(arena);
            }
        }
        // The ends of a window can be in pages that have other blocks.
        let ends = page.map_or(0, |page| 2 * (page - UNIT));
        let is_enough = movable > 0 && movable.saturating_add(ends) >= request.needed();
        match sufficient.is_empty() && is_enough {
            true => in_flight,
            false => sufficient,
        }
    }

    /// Calls `act` for all neighbours of an arena that are free or pending. Unlocks the arena now
    /// and then.
    fn visit_idle_runs(&self, arena: &Arena, mut act: impl FnMut(IdleRun)) {
        let mut from = 1;
        loop {
            let mut state = arena.lock();
            state.heap.flush();
            state.heap.idle_runs(from, from.saturating_add(AT_A_TIME)).for_each(&mut act);
            from = from.saturating_add(AT_A_TIME);
            if from >= state.heap.records() {
                return;
            }
        }
    }
}
