//! Choosing addresses for a request, and mapping the pages that they lack.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceResult, VirtualMemory};
use dmr_streams::uses::Carried;

use super::{Leaving, Page, Pages, Range, Slot};
use crate::PoolResource;
use crate::arena::{Arena, Request, State};
use crate::heap::{ChunkId, Taken, UNIT};
use crate::segments::TAG;
use crate::slack::Slack;

/// Pages found for a window.
#[derive(Default)]
struct Found {
    /// Mapped at no address that is of use.
    spare: Vec<Page>,
    donations: Vec<Donation>,
}

/// Pages that were free as a whole, at the addresses that they have had.
struct Donation {
    /// Whose they are, by slot of its stream.
    arena: usize,
    /// All of them.
    chunk: ChunkId,
    since: u64,
    pages: Vec<(u64, Page)>,
}

impl Found {
    fn count(&self) -> usize {
        self.spare.len() + self.donations.iter().map(|given| given.pages.len()).sum::<usize>()
    }
}

/// Where time comes first, one page is moved for so many blocks, and so many pages beside that.
/// A move takes fifty microseconds: a hundred nanoseconds of each block, at most.
const BLOCKS_PER_MOVE: u64 = 512;
const AT_FIRST: u64 = 256;
/// Addresses set aside at a time: so many times the device's memory.
const ADDRESSES: u64 = 4;
/// A chunk's units are a `u32`.
const MOST_ADDRESSES: u64 = u32::MAX as u64 * UNIT;

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

    /// A chunk of the own arena at addresses that pages are mapped to for it. `None` if there are
    /// not enough pages, and the pool may not have more.
    ///
    /// # Errors
    ///
    /// Upstream's. Nothing is lost: pages that were created stay the pool's.
    pub(crate) fn place(&self, own: &Arena, request: Request) -> ResourceResult<Option<Taken>> {
        let Some((pages, memory)) = self.paging() else { return Ok(None) };
        let _alone = self.growing.lock();
        // What cannot be unmapped now is tried again.
        let _ = self.unmap_left();
        if let Some(taken) = own.lock().take(request) {
            // Another thread has made room meanwhile.
            return Ok(Some(taken));
        }
        let Some(chunk) = self.claim(own, request.units, (pages, memory))? else { return Ok(None) };
        if !self.fill(own, chunk, request, (pages, memory))? {
            return Ok(None);
        }
        let mut state = own.lock();
        let since = self.uses().submitted(own.home);
        state.heap.shorten(chunk, request.units, since);
        state.counts.allocated += request.bytes;
        Ok(Some(state.heap.taken(chunk)))
    }

    /// Maps pages into an arena, for later.
    pub(crate) fn reserve_pages(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let request = Request { units, bytes: 0, is_apart: false };
        let Some(taken) = self.place(arena, request)? else {
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
        if !self.fill(own, claimed, request, (pages, memory))? {
            return Ok(false);
        }
        let mut state = own.lock();
        let since = self.uses().submitted(own.home);
        state.heap.shorten(claimed, request.units, since);
        state.heap.absorb(chunk, claimed);
        Ok(true)
    }

    fn page_allowance(&self, pages: &Pages, request: Request) -> u64 {
        let live = self.arenas().map(Arena::live).sum::<u64>() + request.needed();
        self.slack.allowance_of_peak(live, pages.slack_divisor)
    }

    /// Takes the cheapest window of an arena, which is given more addresses if it has none.
    fn claim(
        &self,
        own: &Arena,
        units: u32,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> ResourceResult<Option<ChunkId>> {
        let claim = |state: &mut State| {
            let window = state.find_window(units, pages.size)?;
            Some(state.heap.claim(&window))
        };
        if let Some(chunk) = claim(&mut own.lock()) {
            return Ok(Some(chunk));
        }
        let least = (u64::from(units) * UNIT).next_multiple_of(pages.size);
        let bytes = (ADDRESSES * self.device().total_memory()).clamp(least, MOST_ADDRESSES);
        let bytes = (bytes / pages.size).max(1) * pages.size;
        // One page more, for the range need not begin at a multiple of a page.
        let addresses = memory.reserve(bytes.saturating_add(pages.size).min(MOST_ADDRESSES))?;
        let mut state = own.lock();
        if Range::room(&addresses, pages.size) > 0 {
            state.add_range(addresses, pages.size);
        }
        Ok(claim(&mut state))
    }

    /// Maps what a claimed chunk lacks. If that is not to be had, what was free of it is free
    /// again, and no page is lost.
    fn fill(
        &self,
        own: &Arena,
        chunk: ChunkId,
        request: Request,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> ResourceResult<bool> {
        let missing = own.lock().unmapped(chunk, pages.size);
        let (found, refused) = self.find_pages(own, missing.len(), request, (pages, memory));
        let outcome = match found.count() == missing.len() {
            true => self.put_in_order(own, &found),
            false => refused.map_or(Ok(()), Err),
        };
        let is_enough = found.count() == missing.len() && outcome.is_ok();
        let places = if is_enough { missing } else { Vec::new() };
        let mapped = self.map_pages(own, places, found, (pages, memory));
        if is_enough && mapped.is_ok() {
            return Ok(true);
        }
        own.lock().divide(chunk, self.uses().submitted(own.home), pages.size);
        outcome.and(mapped).map(|()| false)
    }

    /// So many pages: spare ones, new ones within the allowance, those that are free as a whole
    /// elsewhere, new ones beyond it. Fewer if there are no more, and why none could be created.
    fn find_pages(
        &self,
        own: &Arena,
        wanted: usize,
        request: Request,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> (Found, Option<dmr_core::ResourceError>) {
        let mut found = Found::default();
        {
            let mut spare = pages.spare();
            let from = spare.len() - wanted.min(spare.len());
            found.spare.extend(spare.drain(from..));
        }
        let most = self.config.maximum_size.unwrap_or(u64::MAX);
        let allowance = self.page_allowance(pages, request).min(most);
        let mut refused = None;
        let mut create = |found: &mut Found, most: u64| {
            let fits = || self.reserved.load(Ordering::Relaxed).saturating_add(pages.size) <= most;
            while refused.is_none() && found.count() < wanted && fits() {
                match memory.create(pages.size, TAG) {
                    Ok(page) => {
                        self.count_reserved(pages.size);
                        found.spare.push(Arc::new(page));
                    }
                    Err(error) => refused = Some(error),
                }
            }
        };
        create(&mut found, allowance);
        if found.count() < wanted && self.moves_too_often(pages, wanted - found.count()) {
            create(&mut found, self.slack.twice_the_peak().min(most));
        }
        for arena in std::iter::once(own).chain(self.others(own.home)) {
            while found.count() < wanted
                && let Some(donation) = self.ask_for_pages(arena, wanted - found.count(), pages)
            {
                found.donations.push(donation);
            }
        }
        create(&mut found, most);
        (found, refused)
    }

    /// Whether time comes first, and to move so many pages more would take too much of it.
    fn moves_too_often(&self, pages: &Pages, more: usize) -> bool {
        if self.config.waits_first {
            return false;
        }
        let blocks = self.arenas().map(|arena| arena.lock().counts.blocks).sum::<u64>();
        let moves = pages.moved.load(Ordering::Relaxed) + more as u64;
        moves > AT_FIRST + blocks / BLOCKS_PER_MOVE
    }

    /// Some of an arena's free pages.
    fn ask_for_pages(&self, arena: &Arena, wanted: usize, pages: &Pages) -> Option<Donation> {
        let mut state = arena.lock();
        state.heap.flush();
        let free = state.heap.find_free_pages(wanted as u64, pages.size, |_| true)?;
        let chunk = state.heap.take_pages(&free);
        let pages = state.pages_of(chunk, pages.size);
        Some(Donation { arena: arena.home.slot(), chunk, since: free.since, pages })
    }

    /// Has the arena's stream wait for those whose pages it is given.
    fn put_in_order(&self, own: &Arena, found: &Found) -> ResourceResult<()> {
        let mut after = Carried::default();
        for given in &found.donations {
            if let Some(arena) = self.arena_at(given.arena).filter(|arena| arena.home != own.home) {
                after.add(arena.home, given.since);
            }
        }
        self.uses().wait_for(own.home, &after)
    }

    /// Maps one page to each of the addresses, as far as that succeeds; what is not used goes back
    /// to where it was.
    fn map_pages(
        &self,
        own: &Arena,
        places: Vec<u64>,
        found: Found,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> ResourceResult<()> {
        let mut places = VecDeque::from(places);
        let mut outcome = Ok(());
        let mut mapped = Vec::with_capacity(places.len());
        let mut map = |page: &Page| {
            let Some(&address) = places.front() else { return false };
            match memory.map(page, address) {
                Ok(()) => mapped.push((address, Arc::clone(page))),
                Err(error) => {
                    places.clear();
                    outcome = Err(error);
                    return false;
                }
            }
            places.pop_front();
            true
        };
        let mut unused = found.spare;
        unused.retain(|page| !map(page));
        pages.spare().append(&mut unused);
        for Donation { arena, chunk, since, pages: given } in found.donations {
            let (moved, _): (Vec<_>, Vec<_>) = given.into_iter().partition(|(_, page)| map(page));
            pages.moved.fetch_add(moved.len() as u64, Ordering::Relaxed);
            self.give_pages_back(arena, chunk, since, moved, pages);
        }
        let mut state = own.lock();
        for (address, page) in mapped {
            state.set_slot(address, pages.size, Slot::Mapped(page));
        }
        outcome
    }

    /// What is left of a donation is free again; what was used of it is to be unmapped.
    fn give_pages_back(
        &self,
        arena: usize,
        chunk: ChunkId,
        since: u64,
        moved: Vec<(u64, Page)>,
        pages: &Pages,
    ) {
        let Some(arena) = self.arena_at(arena) else { return };
        let mut state = arena.lock();
        let mut leaving = pages.leaving();
        for (address, page) in moved {
            state.set_slot(address, pages.size, Slot::Leaving(page));
            leaving.push(Leaving { home: arena.home, since, address });
        }
        drop(leaving);
        state.divide(chunk, since, pages.size);
    }

    /// More is reserved.
    pub(crate) fn count_reserved(&self, bytes: u64) {
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.reserved_high.fetch_max(reserved, Ordering::Relaxed);
    }
}
