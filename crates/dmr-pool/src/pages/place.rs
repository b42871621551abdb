//! Choosing addresses for a request.

use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceResult, StreamId, VirtualMemory};
use dmr_streams::uses::Carried;

use super::{Pages, Range};
use crate::PoolResource;
use crate::acquire::Found;
use crate::arena::{Arena, Request, State};
use crate::heap::{ChunkId, UNIT, Window};
use crate::slack::Slack;

/// Addresses set aside at a time: so many times the device's memory, and no more than half of what
/// a chunk can have.
const ADDRESSES: u64 = 4;
const MOST_ADDRESSES: u64 = 1 << 39;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Whether the pool takes new pages for a request rather than make a stream wait: it has few, or
    /// threads are in each other's way and it is allowed more.
    pub(crate) fn may_place_first(&self, request: Request) -> bool {
        let Some(pages) = &self.pages else { return false };
        let takes_more = !self.config.waits_first || self.slack.is_contended();
        let most = match takes_more {
            true => self.page_allowance(pages, request),
            false => Slack::SMALL,
        };
        let most = most.min(self.config.maximum_size.unwrap_or(u64::MAX));
        self.reserved.load(Ordering::Relaxed).saturating_add(request.needed()) <= most
    }

    /// A chunk at addresses of the own arena that pages are mapped to for it. `None` if there are
    /// not enough pages, and the pool may not have more.
    ///
    /// # Errors
    ///
    /// Upstream's. Nothing is lost: pages that were created stay the pool's.
    pub(crate) fn place(&self, own: &Arena, request: Request) -> ResourceResult<Option<Found>> {
        self.place_in_one(own, request, |_| None)
    }

    /// The same at addresses of another arena, if that takes fewer pages. The own stream is made to
    /// wait for it.
    ///
    /// # Errors
    ///
    /// As [`place`](Self::place).
    pub(crate) fn place_anywhere(
        &self,
        own: &Arena,
        request: Request,
    ) -> ResourceResult<Option<Found>> {
        self.place_in_one(own, request, |pages| self.best_host(own, request.units, pages))
    }

    fn place_in_one<'p>(
        &'p self,
        own: &Arena,
        request: Request,
        host: impl FnOnce(&Pages) -> Option<&'p Arena>,
    ) -> ResourceResult<Option<Found>> {
        let Some((pages, memory)) = self.paging() else { return Ok(None) };
        let _alone = self.growing.lock();
        // What cannot be unmapped now is tried again.
        let _ = self.unmap_left();
        if let Some(taken) = own.lock().take(request) {
            // Another thread has made room meanwhile.
            return Ok(Some((own.home.slot(), taken)));
        }
        if let Some(host) = host(pages)
            && let Some(found) = self.place_in(host, own, request, (pages, memory))?
        {
            return Ok(Some(found));
        }
        self.place_in(own, own, request, (pages, memory))
    }

    /// The same in this arena.
    fn place_in(
        &self,
        host: &Arena,
        own: &Arena,
        request: Request,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> ResourceResult<Option<Found>> {
        let mut chunk = claim(&mut host.lock(), request.units, pages);
        if chunk.is_none() && host.home == own.home {
            self.add_addresses(own, request.units, (pages, memory))?;
            chunk = claim(&mut own.lock(), request.units, pages);
        }
        let Some(chunk) = chunk else { return Ok(None) };
        let since = host.lock().heap.taken(chunk).since;
        if !self.has_come_after(own.home, &Carried::of(host.home, since)) {
            host.lock().divide(chunk, pages.size, |state, rest| {
                state.heap.merge(rest, since);
            });
            return Ok(None);
        }
        if !self.fill((host, own), chunk, request, (pages, memory))? {
            return Ok(None);
        }
        let taken = host.lock().heap.taken(chunk);
        Ok(Some((host.home.slot(), taken)))
    }

    /// Maps pages into an arena, for later.
    pub(crate) fn reserve_pages(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let request = Request { units, bytes: 0, is_apart: false };
        let Some((_, taken)) = self.place(arena, request)? else {
            return Err(self.out_of_memory(bytes));
        };
        arena.lock().release(taken.id, 0);
        Ok(())
    }

    /// Maps pages behind a taken chunk of the own arena and puts so many units of them to it.
    pub(crate) fn place_after(
        &self,
        own: &Arena,
        chunk: ChunkId,
        request: Request,
    ) -> ResourceResult<bool> {
        let Some((pages, memory)) = self.paging() else { return Ok(false) };
        let _alone = self.growing.lock();
        let _ = self.unmap_left();
        let claimed = {
            let mut state = own.lock();
            let window = state.window_after(chunk, request.units, pages.size);
            window.map(|window| state.heap.claim(&window))
        };
        let Some(claimed) = claimed else { return Ok(false) };
        let is_filled = self.fill((own, own), claimed, request, (pages, memory))?;
        if is_filled {
            own.lock().heap.absorb(chunk, claimed);
        }
        Ok(is_filled)
    }

    pub(super) fn page_allowance(&self, pages: &Pages, request: Request) -> u64 {
        let live = self.arenas().map(Arena::live).sum::<u64>() + request.needed();
        self.slack.allowance_of_peak(live, pages.slack_divisor)
    }

    /// Another arena with a window that takes fewer pages than any of the own.
    fn best_host(&self, own: &Arena, units: u32, pages: &Pages) -> Option<&Arena> {
        // An arena without a window can be given addresses.
        let all = (u64::from(units) * UNIT).div_ceil(pages.size);
        let missing = |arena: &Arena| {
            let window = arena.lock().find_window(units, pages.size);
            window.as_ref().map_or(all, Window::missing)
        };
        let at_home = missing(own);
        let others = self.others(own.home).map(|arena| (missing(arena), arena));
        let (fewest, host) = others.min_by_key(|(missing, _)| *missing)?;
        (fewest < at_home).then_some(host)
    }

    /// Sets addresses aside for an arena, enough for a request of so many units.
    fn add_addresses(
        &self,
        own: &Arena,
        units: u32,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> ResourceResult<()> {
        let least = u64::from(units) * UNIT;
        let bytes = (ADDRESSES * self.device().total_memory()).min(MOST_ADDRESSES).max(least);
        // One page more, for the range need not begin at a multiple of a page.
        let addresses = memory.reserve(bytes.next_multiple_of(pages.size) + pages.size)?;
        if Range::room(&addresses, pages.size) > 0 {
            self.tell_created(addresses.base(), addresses.bytes());
            own.lock().add_range(addresses, pages.size);
        }
        Ok(())
    }

    /// Maps what a claimed chunk of the host lacks for a request of the own stream, and makes free
    /// what the request does not need. If that is not to be had, what was free of it is free again,
    /// and no page is lost.
    fn fill(
        &self,
        (host, own): (&Arena, &Arena),
        chunk: ChunkId,
        request: Request,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> ResourceResult<bool> {
        let (missing, since) = {
            let state = host.lock();
            (state.unmapped(chunk, pages.size), state.heap.taken(chunk).since)
        };
        let mut supply = self.find_pages(own, missing.len(), request, (pages, memory));
        let is_enough = supply.count() == missing.len();
        let (after, refused) = (std::mem::take(&mut supply.after), supply.refused.take());
        let places = if is_enough { missing } else { Vec::new() };
        let mapped = self.map_pages(host, places, supply, (pages, memory));
        // Pages of other streams: the own one has been made to wait, the host's perhaps not.
        let give = |state: &mut State, rest| {
            if after.is_empty() {
                state.heap.merge(rest, since);
            } else if self.uses().is_after(host.home, &after) {
                state.heap.merge(rest, self.uses().submitted(host.home));
            } else {
                state.push(rest, after.clone(), since);
            }
        };
        let mut state = host.lock();
        if is_enough && mapped.is_ok() {
            if let Some(rest) = state.heap.cut_off(chunk, request.units) {
                give(&mut state, rest);
            }
            return Ok(true);
        }
        state.divide(chunk, pages.size, give);
        drop(state);
        mapped?;
        refused.map_or(Ok(false), Err)
    }

    /// Whether what comes to `stream` from now on comes after all of this; it is made to wait if need
    /// be.
    pub(super) fn has_come_after(&self, stream: StreamId, after: &Carried) -> bool {
        self.uses().is_after(stream, after) || self.uses().wait_for(stream, after).is_ok()
    }

    /// More is reserved.
    pub(crate) fn count_reserved(&self, bytes: u64) {
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.reserved_high.fetch_max(reserved, Ordering::Relaxed);
    }
}

/// Takes the cheapest window of an arena.
fn claim(state: &mut State, units: u32, pages: &Pages) -> Option<ChunkId> {
    let window = state.find_window(units, pages.size)?;
    Some(state.heap.claim(&window))
}
