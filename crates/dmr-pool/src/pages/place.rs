//! Growing in pages: choosing addresses for a request and mapping the pages that they lack.
//!
//! *Plan*, under the lock of an arena: the cheapest window becomes one taken chunk, and with it the
//! holes in it are this thread's to fill. *Fetch*, with no lock: pages are taken from where they are
//! free, created, and mapped. *Install*, under the arena's lock: the pages are noted as mapped, and
//! what the request does not need is free. If that fails, what was free is free again, the holes are
//! empty, and the claims on upstream's memory are given up.

use dmr_core::{DeviceMemoryResource, ResourceResult, StreamId};
use dmr_streams::uses::Dependencies;

use super::supply::Source;
use super::{Pages, Paging, Range};
use crate::PoolResource;
use crate::acquire::{Found, Share};
use crate::arena::{Arena, Request, State};
use crate::heap::{ChunkId, UNIT, Window};
use crate::slack::Slack;
use crate::transit::Hand;

/// Addresses reserved at a time: this many times the device's memory, and no more than half of what a
/// chunk can have,
const ADDRESSES: u64 = 4;
const MOST_ADDRESSES: u64 = 1 << 39;
/// nor than an arena's share of this many, if every stream has one. A process has 2^47 for all of its
/// devices, and for everything else.
const ADDRESSES_OF_ALL: u64 = 1 << 44;

/// An arena that has a window for a request.
struct Host<'p> {
    arena: &'p Arena,
    /// How many pages the window lacks.
    missing: u64,
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Maps pages for a request and returns a chunk of them: at addresses of the own arena, or, if the
    /// share is the limit, of the arena whose window lacks the fewest pages. The own stream comes
    /// after the last users. `None` if there are not enough pages.
    ///
    /// # Errors
    ///
    /// Upstream's. Nothing is lost: pages that were created stay the pool's.
    pub(crate) fn grow_pages(
        &self,
        own: &Arena,
        request: Request,
        share: Share,
        paging: Paging<'_>,
    ) -> ResourceResult<Option<Found>> {
        if share == Share::Slack && !self.may_map_first(request, paging.pages) {
            return Ok(None);
        }
        // What cannot be unmapped now is tried again.
        let _ = self.unmap_left();
        let at_home = missing_in(own, request.units, paging.pages);
        let sources = self.sources(at_home, request, paging.pages);
        if at_home > 0 && !self.may_find(1, &sources, paging.pages) {
            return Ok(None);
        }
        if share == Share::Limit
            && let Some(host) = self.best_host(own, request.units, at_home, paging.pages)
            && let Some(found) = self.map_in(&host, own, request, paging)?
        {
            return Ok(Some(found));
        }
        self.map_in(&Host { arena: own, missing: at_home }, own, request, paging)
    }

    /// Maps one page at addresses of the own arena for a request that needs no more: a new one, or one
    /// that is free in another arena. `None` if there is none, or too many have been moved.
    pub(crate) fn map_at_home(&self, own: &Arena, request: Request) -> Option<Found> {
        let paging = self.paging()?;
        let pages = paging.pages;
        let missing = missing_in(own, request.units, pages);
        if missing > 1 || self.exceeds_move_budget(pages, missing) {
            return None;
        }
        let sources = vec![Source::New(self.page_allowance(pages, request)), Source::Free];
        let home = Host { arena: own, missing };
        // On an error the request is served in another way, or that one returns its own.
        self.map_from(sources, &home, own, request, paging).ok().flatten()
    }

    /// Returns whether the pool creates pages for a request before it has a stream wait: it has few,
    /// or it puts time first or threads are in each other's way, and its slack allows them.
    pub(crate) fn may_map_first(&self, request: Request, pages: &Pages) -> bool {
        let takes_more = !self.config.waits_first || self.slack.is_contended();
        let most = match takes_more {
            true => self.page_allowance(pages, request),
            false => Slack::SMALL,
        };
        self.may_claim(request.needed(), most)
    }

    fn map_in(
        &self,
        host: &Host<'_>,
        own: &Arena,
        request: Request,
        paging: Paging<'_>,
    ) -> ResourceResult<Option<Found>> {
        let sources = self.sources(host.missing, request, paging.pages);
        self.map_from(sources, host, own, request, paging)
    }

    fn map_from(
        &self,
        sources: Vec<Source>,
        host: &Host<'_>,
        own: &Arena,
        request: Request,
        paging: Paging<'_>,
    ) -> ResourceResult<Option<Found>> {
        let pages = paging.pages;
        if !self.may_find(host.missing, &sources, pages) {
            return Ok(None);
        }
        let host = host.arena;
        let hand = self.transit.open();
        let Some(chunk) = self.plan(host, own, request.units, paging, &hand)? else {
            return Ok(None);
        };
        let since = host.lock().heap.taken(chunk).since;
        if !self.has_come_after(own.home, &Dependencies::on(host.home, since)) {
            host.lock().divide(chunk, pages.size, |state, rest| {
                state.heap.merge(rest, since);
            });
            return Ok(None);
        }
        if !self.fill((host, own), chunk, request, sources, paging, &hand)? {
            return Ok(None);
        }
        let taken = host.lock().heap.taken(chunk);
        Ok(Some(host.found(taken)))
    }

    /// Takes the cheapest window of an arena. An own arena that has none is given addresses.
    fn plan(
        &self,
        host: &Arena,
        own: &Arena,
        units: u32,
        paging: Paging<'_>,
        hand: &Hand<'_>,
    ) -> ResourceResult<Option<ChunkId>> {
        let take = || {
            let mut state = host.lock();
            let window = state.find_window(units, paging.pages.size)?;
            hand.hold();
            Some(state.heap.claim(&window))
        };
        let mut chunk = take();
        if chunk.is_none() && host.home == own.home {
            self.add_addresses(own, units, paging)?;
            chunk = take();
        }
        Ok(chunk)
    }

    /// Maps pages into an arena, for later.
    pub(crate) fn reserve_pages(
        &self,
        arena: &Arena,
        bytes: u64,
        paging: Paging<'_>,
    ) -> ResourceResult<()> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let request = Request { units, bytes: 0, is_dedicated: false };
        let Some(found) = self.grow_pages(arena, request, Share::Limit, paging)? else {
            return Err(self.out_of_memory(bytes));
        };
        arena.lock().release(found.taken.id, 0);
        Ok(())
    }

    /// Maps pages behind a taken chunk of the own arena and adds the units of the request to it.
    /// `false`, and nothing has changed, if the addresses there are in use or there are not enough
    /// pages.
    ///
    /// # Errors
    ///
    /// Upstream's, as [`grow_pages`](Self::grow_pages).
    pub(crate) fn place_after(
        &self,
        own: &Arena,
        chunk: ChunkId,
        request: Request,
    ) -> ResourceResult<bool> {
        let Some(paging) = self.paging() else { return Ok(false) };
        let _ = self.unmap_left();
        let hand = self.transit.open();
        let window = {
            let mut state = own.lock();
            let window = state.window_after(chunk, request.units, paging.pages.size);
            window.map(|window| {
                hand.hold();
                state.heap.claim(&window)
            })
        };
        let Some(window) = window else { return Ok(false) };
        let pages = u64::from(request.units) * UNIT / paging.pages.size + 1;
        let sources = self.sources(pages, request, paging.pages);
        let is_filled = self.fill((own, own), window, request, sources, paging, &hand)?;
        if is_filled {
            own.lock().heap.absorb(chunk, window);
        }
        Ok(is_filled)
    }

    /// Returns how many bytes the pool may have before it moves pages for a request.
    pub(super) fn page_allowance(&self, pages: &Pages, request: Request) -> u64 {
        let live = self.arenas().map(Arena::live).sum::<u64>() + request.needed();
        self.slack.allowance_of_peak(live, pages.slack_divisor)
    }

    /// Returns another arena whose window lacks fewer pages than the own one's.
    fn best_host(&self, own: &Arena, units: u32, at_home: u64, pages: &Pages) -> Option<Host<'_>> {
        let host = |arena| Host { arena, missing: missing_in(arena, units, pages) };
        let best = self.others(own.home).map(host).min_by_key(|host| host.missing)?;
        (best.missing < at_home).then_some(best)
    }

    /// Reserves addresses for an arena, enough for a request of `units` units.
    fn add_addresses(&self, own: &Arena, units: u32, paging: Paging<'_>) -> ResourceResult<()> {
        let Paging { pages, memory } = paging;
        let least = u64::from(units) * UNIT;
        let share = ADDRESSES_OF_ALL / self.streams.max_slots().max(1) as u64;
        let most = MOST_ADDRESSES.min(share);
        let bytes = (ADDRESSES * self.device().total_memory()).min(most).max(least);
        // One page more, for the range need not begin at a multiple of a page.
        let addresses = memory.reserve(bytes.next_multiple_of(pages.size) + pages.size)?;
        if Range::room(&addresses, pages.size) > 0 {
            self.tell_created(addresses.base(), addresses.bytes());
            own.lock().add_range(addresses, pages.size);
        }
        Ok(())
    }

    /// Maps what a window of the host lacks for a request of the own stream, and frees what the
    /// request does not need. `false` if there are not enough pages: then, as on an error, what was
    /// free of the window is free again, and no page is lost.
    fn fill(
        &self,
        (host, own): (&Arena, &Arena),
        chunk: ChunkId,
        request: Request,
        sources: Vec<Source>,
        paging: Paging<'_>,
        hand: &Hand<'_>,
    ) -> ResourceResult<bool> {
        let page = paging.pages.size;
        let (missing, since) = {
            let state = host.lock();
            (state.unmapped(chunk, page), state.heap.taken(chunk).since)
        };
        let mut after = Dependencies::default();
        let outcome = match self.find_pages(own, missing.len(), sources, paging, hand) {
            Ok(Some(mut supply)) => {
                after = std::mem::take(&mut supply.after);
                self.map_pages(host, missing, supply, paging).map(|()| true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        // Pages of other streams: the own one comes after their users, the host's perhaps not.
        let free = |state: &mut State, rest| {
            if after.is_empty() {
                state.heap.merge(rest, since);
            } else if self.uses().is_after(host.home, &after) {
                state.heap.merge(rest, self.uses().submitted(host.home));
            } else {
                state.push(rest, after.clone(), since);
            }
        };
        let mut state = host.lock();
        if !matches!(outcome, Ok(true)) {
            state.divide(chunk, page, free);
        } else if let Some(rest) = state.heap.cut_off(chunk, request.units) {
            free(&mut state, rest);
        }
        outcome
    }

    /// Returns whether what comes to `stream` from now on comes after all of this; it is made to wait
    /// if need be.
    pub(crate) fn has_come_after(&self, stream: StreamId, after: &Dependencies) -> bool {
        self.uses().is_after(stream, after) || self.uses().wait_for(stream, after).is_ok()
    }
}

/// Returns how many pages an arena's window lacks. One without a window can be given addresses.
fn missing_in(arena: &Arena, units: u32, pages: &Pages) -> u64 {
    let window = arena.lock().find_window(units, pages.size);
    let all = (u64::from(units) * UNIT).div_ceil(pages.size);
    window.as_ref().map_or(all, Window::missing)
}
