//! Unmapping pages that are leaving, and giving free ones back to upstream.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceResult};
use dmr_streams::uses::Dependencies;

use super::{Leaving, Page, Pages, Paging, Slot};
use crate::PoolResource;
use crate::arena::Arena;

/// How many pages may turn out to be in use before no more are asked about.
const QUESTIONS: usize = 8;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Unmaps the leaving pages whose work is done, which the driver is asked about.
    ///
    /// # Errors
    ///
    /// The driver's first; the rest is unmapped all the same, and the next call tries again what could
    /// not be.
    pub(crate) fn unmap_left(&self) -> ResourceResult<()> {
        let Some(paging) = self.paging() else { return Ok(()) };
        let mut outcome = Ok(());
        let (mut stays, mut busy) = (Vec::new(), 0);
        // Not in the head of the loop: there it would stay locked, across driver calls. No hand: these
        // are addresses, and their pages are in use elsewhere or spare.
        let leaving = std::mem::take(&mut *paging.pages.leaving());
        for left in leaving {
            // What has become free later will hardly be done sooner.
            let is_done = busy < QUESTIONS && self.uses().poll(&left.after).unwrap_or_default();
            if !is_done {
                busy += 1;
                stays.push(left);
            } else if let Err(error) = self.unmap_one(&left, paging) {
                stays.push(left);
                outcome = outcome.and(Err(error));
            }
        }
        paging.pages.leaving().append(&mut stays);
        outcome
    }

    fn unmap_one(&self, left: &Leaving, paging: Paging<'_>) -> ResourceResult<()> {
        let Paging { pages, memory } = paging;
        let Some(arena) = self.arena_at(left.home.slot()) else { return Ok(()) };
        let Some(page) = arena.lock().leaving_page(left.address, pages.size) else { return Ok(()) };
        memory.unmap(&page, left.address)?;
        arena.lock().set_slot(left.address, pages.size, Slot::Empty);
        Ok(())
    }

    /// Gives pages back to upstream that are free as a whole and whose work is known to be done, as
    /// long as more than `bytes` bytes are reserved.
    pub(crate) fn trim_pages(&self, bytes: u64) -> ResourceResult<()> {
        let Some(paging) = self.paging() else { return Ok(()) };
        let mut outcome = self.unmap_left().and(self.destroy_spare(bytes, paging));
        for arena in self.arenas() {
            if self.reserved.load(Ordering::Relaxed) <= bytes {
                break;
            }
            self.ask_about_free_pages(arena, paging.pages);
            let unmapped = self.unmap_free_pages(arena, bytes, paging);
            outcome = outcome.and(unmapped).and(self.destroy_spare(bytes, paging));
        }
        outcome
    }

    /// Asks the driver whether an arena's stream is done with its free pages, and then with all that is
    /// free or pending: a page that is merged with it can go back only then.
    fn ask_about_free_pages(&self, arena: &Arena, pages: &Pages) {
        let newest = {
            arena.settle_everything(self.uses());
            let mut state = arena.lock();
            state.heap.flush();
            [state.heap.newest_free_pages(pages.size), state.heap.newest_free()]
        };
        for since in newest.into_iter().flatten() {
            // On an error they stay.
            let _ = self.uses().poll(&Dependencies::on(arena.home, since));
        }
    }

    fn unmap_free_pages(
        &self,
        arena: &Arena,
        bytes: u64,
        paging: Paging<'_>,
    ) -> ResourceResult<()> {
        let Paging { pages, memory } = paging;
        let is_done = |since| self.uses().is_known_done(&Dependencies::on(arena.home, since));
        let mut spare = pages.spare_bytes();
        loop {
            let most = bytes.saturating_add(spare);
            let wanted = self.reserved.load(Ordering::Relaxed).saturating_sub(most);
            if wanted == 0 {
                return Ok(());
            }
            let hand = self.transit.open();
            let (chunk, since, taken) = {
                let mut state = arena.lock();
                let wanted = wanted.div_ceil(pages.size);
                let free = state.heap.find_free_pages(wanted, pages.size, is_done);
                let Some(free) = free else { return Ok(()) };
                hand.hold();
                let chunk = state.heap.take_pages(&free);
                (chunk, free.since, state.pages_of(chunk, pages.size))
            };
            let mut outcome = Ok(());
            let mut unmapped = Vec::new();
            for (address, page) in taken {
                match memory.unmap(&page, address) {
                    Ok(()) => unmapped.push((address, page)),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
            let mut state = arena.lock();
            for &(address, _) in &unmapped {
                state.set_slot(address, pages.size, Slot::Empty);
            }
            state.divide(chunk, pages.size, |state, rest| {
                state.heap.merge(rest, since);
            });
            drop(state);
            spare += unmapped.len() as u64 * pages.size;
            pages.spare().extend(unmapped.into_iter().map(|(_, page)| page));
            drop(hand);
            outcome?;
        }
    }

    /// Gives spare pages back that are mapped nowhere any more, as long as more than `bytes` bytes are
    /// reserved.
    fn destroy_spare(&self, bytes: u64, paging: Paging<'_>) -> ResourceResult<()> {
        let Paging { pages, memory } = paging;
        let mut outcome = Ok(());
        let hand = self.transit.open();
        let candidates = {
            let mut spare = pages.spare();
            if spare.is_empty() || self.reserved.load(Ordering::Relaxed) <= bytes {
                return Ok(());
            }
            hand.hold();
            std::mem::take(&mut *spare)
        };
        let mut kept: Vec<Page> = Vec::new();
        for page in candidates {
            if self.reserved.load(Ordering::Relaxed) <= bytes {
                kept.push(page);
                continue;
            }
            // Another reference is where the page is leaving.
            let owned = match Arc::try_unwrap(page) {
                Ok(owned) => owned,
                Err(shared) => {
                    kept.push(shared);
                    continue;
                }
            };
            match memory.destroy(owned) {
                Ok(()) => self.count_given_back(pages.size),
                Err(refused) => {
                    kept.push(Arc::new(refused.memory));
                    outcome = outcome.and(Err(refused.error));
                }
            }
        }
        pages.spare().append(&mut kept);
        outcome
    }

    /// Gives all pages and addresses back to upstream, and waits for the work that uses them. Pages
    /// with a block in them are leaked, with the addresses around them: work may be using them.
    pub(crate) fn give_all_pages_back(&self) {
        let Some(Paging { pages, memory }) = self.paging() else { return };
        for arena in self.arenas() {
            self.ask_about_free_pages(arena, pages);
            let newest = arena.lock().heap.newest_free_pages(pages.size);
            if let Some(since) = newest {
                // What fails here, fails again below, and is leaked.
                let _ = self.uses().synchronize(&Dependencies::on(arena.home, since));
            }
        }
        let left = pages.leaving().clone();
        for Leaving { after, .. } in left {
            let _ = self.uses().synchronize(&after);
        }
        let _ = self.trim_pages(0);
        for arena in self.arenas() {
            loop {
                let range = arena.lock().remove_range();
                let Some(range) = range else { break };
                self.tell_destroyed(range.base());
                // Addresses that cannot go back now never can.
                let _ = memory.release(range);
            }
        }
    }
}
