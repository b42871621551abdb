//! Growing in pages: choosing addresses for a request and mapping the pages that they lack.
//!
//! *Plan*, under the lock of an arena: the cheapest window becomes one acquired chunk, and with it
//! the holes in it are this thread's to fill. *Fetch*, with no lock: pages are taken from where
//! they are free, created, and mapped. *Install*, under the arena's lock: the pages are noted as
//! mapped, and what the request does not need is free. If that fails, what was free is free again,
//! the holes are empty, and the claims on upstream's memory end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceResult, StreamId};
use dmr_recorder::hooks;
use dmr_streams::uses::Dependencies;

use super::detached::Detached;
use super::supply::{Source, Supply};
use super::{Leaving, Pages, Paging};
use crate::PoolResource;
use crate::acquire::Found;
use crate::arena::{Arena, Request, State};
use crate::heap::{ChunkId, UNIT, Window};
use crate::ladder::Share;
use crate::recorded;
use crate::span::{MappedPage, PageMap, PageState};
use crate::transit::Hand;

/// Addresses reserved at a time: this many times the device's memory, and no more than half of what
/// a chunk can have,
const ADDRESSES: u64 = 4;
const MOST_ADDRESSES: u64 = 1 << 39;
/// nor than an arena's share of this many, if every stream has one. A process has 2^47 for all of
/// its devices, and for everything else.
const ADDRESSES_OF_ALL: u64 = 1 << 44;

/// An arena that has a window for a request.
struct Host<'p> {
    arena: &'p Arena,
    /// The number of pages that the window lacks.
    missing: u64,
}

impl<'p> Host<'p> {
    /// An arena without a window can be given addresses.
    fn of(arena: &'p Arena, units: u32, pages: &Pages) -> Self {
        let window = arena.lock().find_window(units);
        let all = (u64::from(units) * UNIT).div_ceil(pages.size);
        Self { arena, missing: window.as_ref().map_or(all, Window::missing) }
    }
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Maps pages for a request and returns a chunk of them: at addresses of the own arena, or, if
    /// the share is the limit, of the arena whose window lacks the fewest pages. The own stream
    /// comes after the last users. `None` if there are not enough pages.
    ///
    /// # Errors
    ///
    /// Upstream's. Nothing is lost: pages that were created stay the pool's.
    pub(crate) fn grow_pages<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
        share: Share,
        paging: Paging<'p>,
    ) -> ResourceResult<Option<Found<'p>>> {
        // What cannot be unmapped now is tried again.
        let _ = self.unmap_leaving();
        let host = |arena| Host::of(arena, request.units, paging.pages);
        let own_window = host(own);
        let sources = self.sources(own_window.missing, request, paging.pages);
        if own_window.missing > 0 && !self.may_find(1, &sources, paging.pages) {
            return Ok(None);
        }
        // A window of another arena may lack fewer pages, and each page that need not move saves 50
        // µs; but the chunk is borrowed then, so only where the pool is at its limit.
        if share == Share::Limit
            && let Some(best) = self.others(own.home).map(host).min_by_key(|host| host.missing)
            && best.missing < own_window.missing
            && let sources = self.sources(best.missing, request, paging.pages)
            && let Some(found) = self.map_in(&best, own, request, sources, paging)?
        {
            return Ok(Some(found));
        }
        self.map_in(&own_window, own, request, sources, paging)
    }

    /// Maps one page at addresses of the own arena for a request that needs no more: a new one, or
    /// one that is free in another arena. `None` if there is none, or too many have been moved.
    pub(crate) fn map_own_page<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
    ) -> Option<Found<'p>> {
        let paging = self.paging()?;
        let own_window = Host::of(own, request.units, paging.pages);
        if own_window.missing > 1 || self.exceeds_move_budget(paging.pages, own_window.missing) {
            return None;
        }
        let allowance = self.page_allowance(paging.pages, request);
        let sources = vec![Source::New(allowance), Source::Free];
        // On an error the request is served in another way, or that one returns its own.
        self.map_in(&own_window, own, request, sources, paging).ok().flatten()
    }

    fn map_in<'p>(
        &'p self,
        host: &Host<'p>,
        own: &'p Arena,
        request: Request,
        sources: Vec<Source>,
        paging: Paging<'p>,
    ) -> ResourceResult<Option<Found<'p>>> {
        if !self.may_find(host.missing, &sources, paging.pages) {
            return Ok(None);
        }
        let host = host.arena;
        let hand = self.transit.open();
        let find = |state: &State| state.find_window(request.units);
        let mut window = self.plan(host, &hand, find);
        if window.is_none() && host.home == own.home {
            self.reserve_addresses(own, request.units, paging)?;
            window = self.plan(host, &hand, find);
        }
        let Some(window) = window else { return Ok(None) };
        // Before pages are fetched: a stream that can be given no wait would have moved them in
        // vain.
        if !self.order_after(own.home, &window.last_uses()) {
            return Ok(None);
        }
        let chunk = self.fill(window, own, request, sources, paging, &hand)?;
        let found = chunk.map(|chunk| host.found(host.lock().heap.acquired(chunk)));
        // What the request does not need was in the first hand, and is free.
        Ok(found.map(|found| found.in_hand(self.transit.open())))
    }

    /// Acquires the window that `find` returns of an arena.
    fn plan<'p>(
        &'p self,
        host: &'p Arena,
        hand: &Hand<'_>,
        find: impl Fn(&State) -> Option<Window>,
    ) -> Option<Detached<'p>> {
        let mut state = host.lock();
        let window = find(&state)?;
        hand.hold();
        let chunk = state.heap.claim(&window);
        Some(Detached::new(host, &state, chunk, Dependencies::default(), self.uses()))
    }

    /// Maps pages behind an acquired chunk of the own arena and adds the units of the request to
    /// it. `false`, and nothing has changed, if the addresses there are in use or there are not
    /// enough pages.
    ///
    /// # Errors
    ///
    /// Upstream's, as [`grow_pages`](Self::grow_pages).
    pub(crate) fn map_behind(
        &self,
        own: &Arena,
        chunk: ChunkId,
        request: Request,
    ) -> ResourceResult<bool> {
        let Some(paging) = self.paging() else { return Ok(false) };
        let _ = self.unmap_leaving();
        let hand = self.transit.open();
        let pages = request.needed() / paging.pages.size + 1;
        loop {
            let find = |state: &State| state.window_after(chunk, request.units);
            let Some(window) = self.plan(own, &hand, find) else { return Ok(false) };
            let sources = self.sources(pages, request, paging.pages);
            if let Some(more) = self.fill(window, own, request, sources, paging, &hand)? {
                own.lock().heap.absorb(chunk, more);
                return Ok(true);
            }
            if !self.ask_upstream_again() {
                return Ok(false);
            }
        }
    }

    /// Reserves addresses for an arena, enough for a request of `units` units.
    fn reserve_addresses(&self, own: &Arena, units: u32, paging: Paging<'_>) -> ResourceResult<()> {
        let Paging { pages, memory } = paging;
        let least = u64::from(units) * UNIT;
        let share = ADDRESSES_OF_ALL / self.streams.max_slots().max(1) as u64;
        let most = MOST_ADDRESSES.min(share);
        let bytes = (ADDRESSES * self.device().total_memory()).min(most).max(least);
        // One page more, for the range need not begin at a multiple of a page.
        let addresses = memory.reserve(bytes.next_multiple_of(pages.size) + pages.size)?;
        if PageMap::capacity(&addresses, pages.size) > 0 {
            self.report_created(addresses.base(), addresses.bytes());
            own.lock().add_addresses(addresses);
        }
        Ok(())
    }

    /// Maps what a window lacks for a request of the own stream. Returns the chunk of the request,
    /// and frees the rest. `None` if there are not enough pages: then, as on an error, what was
    /// free of the window is free again, and no page is lost.
    fn fill(
        &self,
        mut window: Detached<'_>,
        own: &Arena,
        request: Request,
        sources: Vec<Source>,
        paging: Paging<'_>,
        hand: &Hand<'_>,
    ) -> ResourceResult<Option<ChunkId>> {
        let missing = window.unmapped();
        let Some(supply) =
            self.find_pages(own, missing.len(), sources, request.tag, paging, hand)?
        else {
            return Ok(None);
        };
        // The own stream comes after the users of other streams' pages, the window's perhaps not.
        window.after = supply.last_uses();
        self.map_pages(&window, missing, supply, paging)?;
        Ok(window.keep(request.units))
    }

    /// Maps one page to each of the addresses, as far as that succeeds. The rest of the supply goes
    /// back to where it was.
    ///
    /// # Errors
    ///
    /// Upstream's. The pages that were mapped before stay mapped.
    fn map_pages(
        &self,
        window: &Detached<'_>,
        addresses: Vec<u64>,
        mut supply: Supply<'_>,
        paging: Paging<'_>,
    ) -> ResourceResult<()> {
        let Paging { pages, memory } = paging;
        for address in addresses {
            if let Some(page) = supply.unmapped.last() {
                memory.map(page, address)?;
                let mapped = supply.unmapped.pop().map_or(PageState::Empty, PageState::Mapped);
                window.arena.lock().set_page_state(address, mapped);
                hooks::mapped(recorded::page(address, pages.size, window.arena.home));
            } else if let Some(donation) = supply.donations.iter_mut().find(|it| it.has_pages())
                && let Some(MappedPage { address: old, page }) = donation.pages.pop()
            {
                // Mapped twice for a while: the new user comes after the old ones on its stream,
                // and unmapping has to wait for them on the host.
                memory.map(&page, address)?;
                window.arena.lock().set_page_state(address, PageState::Mapped(Arc::clone(&page)));
                let Detached { arena, .. } = &donation.chunk;
                arena.lock().set_page_state(old, PageState::Leaving(page));
                let after = donation.chunk.last_uses();
                pages.leaving().push_back(Leaving { home: arena.home, address: old, after });
                pages.moved.fetch_add(1, Ordering::Relaxed);
                hooks::moved(recorded::page(address, pages.size, window.arena.home), old);
            }
        }
        Ok(())
    }

    /// Returns whether what comes to `stream` from now on comes after all of this; it is made to
    /// wait if need be.
    pub(super) fn order_after(&self, stream: StreamId, uses: &Dependencies) -> bool {
        self.uses().is_after(stream, uses) || self.uses().wait_for(stream, uses).is_ok()
    }
}
