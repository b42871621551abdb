//! Unmapping pages that are leaving, and returning free ones to upstream.
//!
//! An unmapping takes effect at once, in no stream's order, so it must come after all work with the
//! address. The host never waits for that here: what is not known to be done stays in the queue,
//! and the next call looks again. Only dropping the pool waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult};
use dmr_recorder::hooks;
use dmr_streams::uses::Dependencies;

use super::detached::Detached;
use super::{Leaving, Pages, Paging};
use crate::PoolResource;
use crate::arena::Arena;
use crate::recorded;
use crate::span::{MappedPage, PageState, SpanMemory};

/// An address that was taken off the queue of those that pages leave. Goes back to its end when
/// this is dropped, unless its page was unmapped.
struct Next<'p> {
    pages: &'p Pages,
    leaving: Option<Leaving>,
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.pages.leaving().extend(self.leaving.take());
    }
}

fn leaving_uses(leaving: &VecDeque<Leaving>) -> Dependencies {
    leaving.iter().map(|leaving| &leaving.after).collect()
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Polls the leaving pages and unmaps those whose work is done.
    ///
    /// # Errors
    ///
    /// The driver's first; the rest is unmapped all the same, and the next call tries again what
    /// could not be.
    pub(crate) fn unmap_leaving(&self) -> ResourceResult<()> {
        let Some(paging) = self.paging() else { return Ok(()) };
        let (uses, count) = {
            let leaving = paging.pages.leaving();
            (leaving_uses(&leaving), leaving.len())
        };
        self.uses().poll_each(&uses);
        let mut outcome = Ok(());
        // No hand: these are addresses, and their pages are in use elsewhere or spare.
        for _ in 0..count {
            let leaving = paging.pages.leaving().pop_front();
            let mut next = Next { pages: paging.pages, leaving };
            let Some(leaving) = &next.leaving else { break };
            if !self.uses().is_known_done(&leaving.after) {
                continue;
            }
            match self.unmap_one(leaving, paging) {
                Ok(()) => next.leaving = None,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    fn unmap_one(&self, leaving: &Leaving, paging: Paging<'_>) -> ResourceResult<()> {
        let Some(arena) = self.arena_at(leaving.home.slot()) else { return Ok(()) };
        let Some(page) = arena.lock().leaving_page(leaving.address) else { return Ok(()) };
        paging.memory.unmap(&page, leaving.address)?;
        arena.lock().set_page_state(leaving.address, PageState::Empty);
        Ok(())
    }

    /// Unmaps pages of an arena that are free as a whole and whose work is known to be done, and
    /// destroys them, as long as more than `bytes` bytes are reserved.
    pub(crate) fn trim_pages(
        &self,
        arena: &Arena,
        bytes: u64,
        paging: Paging<'_>,
    ) -> ResourceResult<()> {
        let newest = {
            let state = arena.lock();
            [state.heap.newest_free_pages(paging.pages.size), state.heap.newest_free()]
        };
        // Free pages first, and then all that is free or pending: a page that is merged with it can
        // go back only then.
        for since in newest.into_iter().flatten() {
            // On an error they stay.
            let _ = self.uses().poll(&Dependencies::on(arena.home, since));
        }
        let unmapped = self.unmap_free_pages(arena, bytes, paging);
        unmapped.and(self.destroy_spare(bytes))
    }

    fn unmap_free_pages(
        &self,
        arena: &Arena,
        bytes: u64,
        paging: Paging<'_>,
    ) -> ResourceResult<()> {
        let Paging { pages, memory } = paging;
        let is_done = |since| self.uses().is_known_done(&Dependencies::on(arena.home, since));
        // One chunk a turn, so that the arena is not locked while pages are unmapped.
        loop {
            let most = bytes.saturating_add(pages.spare_bytes());
            let excess = self.reserved.load(Ordering::Relaxed).saturating_sub(most);
            if excess == 0 {
                return Ok(());
            }
            let hand = self.transit.open();
            let (chunk, free) = {
                let mut state = arena.lock();
                let wanted = excess.div_ceil(pages.size);
                let free = state.heap.find_free_pages(wanted, pages.size, is_done);
                let Some(free) = free else { return Ok(()) };
                hand.hold();
                let chunk = state.heap.acquire_pages(&free);
                let free = state.pages_of(chunk);
                (Detached::new(arena, &state, chunk, Dependencies::default(), self.uses()), free)
            };
            let mut outcome = Ok(());
            for MappedPage { address, page } in free {
                let unmapped = memory.unmap(&page, address);
                if unmapped.is_ok() {
                    arena.lock().set_page_state(address, PageState::Empty);
                    hooks::unmapped(recorded::page(address, pages.size, arena.home));
                    pages.spare().push_back(page);
                }
                outcome = outcome.and(unmapped);
            }
            drop(chunk);
            outcome?;
        }
    }

    /// Returns spare pages that are no longer mapped anywhere to upstream, as long as more than
    /// `bytes` bytes are reserved.
    pub(crate) fn destroy_spare(&self, bytes: u64) -> ResourceResult<()> {
        let Some(Paging { pages, memory }) = self.paging() else { return Ok(()) };
        let mut outcome = Ok(());
        let hand = self.transit.open();
        let count = pages.spare().len();
        for _ in 0..count {
            if self.reserved.load(Ordering::Relaxed) <= bytes {
                break;
            }
            let Some(page) = pages.spare().pop_front() else { break };
            hand.hold();
            // Another reference is where the page is leaving.
            let handle = page.handle();
            let size = page.bytes();
            let kept = match Arc::try_unwrap(page).map(|page| memory.destroy(page)) {
                Ok(Ok(())) => {
                    self.count_released(pages.size);
                    continue;
                }
                Ok(Err(refused))
                    if (refused.memory.handle(), refused.memory.bytes()) == (handle, size) =>
                {
                    outcome = outcome.and(Err(refused.error));
                    Arc::new(refused.memory)
                }
                // The page is upstream's. The other memory is leaked.
                Ok(Err(other)) => {
                    self.count_released(pages.size);
                    let expected = format_args!("handle {handle:#x}");
                    let other = format_args!("{:?}", other.memory);
                    let wrong = ResourceError::wrong_memory("destroy", other, expected);
                    outcome = outcome.and(Err(wrong));
                    continue;
                }
                Err(shared) => shared,
            };
            pages.spare().push_back(kept);
        }
        outcome
    }

    /// Waits for the work that uses free and leaving pages.
    pub(crate) fn wait_for_free_pages(&self) {
        let Some(Paging { pages, .. }) = self.paging() else { return };
        // What fails here stays mapped, and is leaked.
        for arena in self.arenas() {
            arena.free_all_ordered(self.uses());
            arena.lock().heap.flush();
            let newest = arena.lock().heap.newest_free_pages(pages.size);
            if let Some(since) = newest {
                let _ = self.uses().synchronize(&Dependencies::on(arena.home, since));
            }
        }
        let leaving = leaving_uses(&pages.leaving());
        let _ = self.uses().synchronize(&leaving);
    }

    /// Releases the addresses at which nothing is mapped.
    pub(crate) fn release_addresses(&self) {
        let Some(Paging { memory, .. }) = self.paging() else { return };
        let is_empty =
            |memory: &SpanMemory| matches!(memory, SpanMemory::Pages(map) if map.is_empty());
        for arena in self.arenas() {
            loop {
                let span = arena.lock().remove_span(is_empty);
                let Some(SpanMemory::Pages(map)) = span else { break };
                self.report_destroyed(map.addresses.base());
                // Addresses that cannot go back now never can.
                let _ = memory.release(map.addresses);
            }
        }
    }
}
