//! Pages for addresses that lack them: where they are taken from, and mapping them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, VirtualMemory};
use dmr_streams::uses::Carried;

use super::{Leaving, Page, Pages, Slot};
use crate::PoolResource;
use crate::arena::{Arena, Pending, Request};
use crate::heap::{ChunkId, UNIT};
use crate::segments::TAG;

/// Pages found for a window.
#[derive(Default)]
pub(super) struct Supply {
    /// Mapped at no address that is of use.
    spare: Vec<Page>,
    donations: Vec<Donation>,
    /// What whoever uses them comes after.
    pub(super) after: Carried,
    /// Why no more could be created.
    pub(super) refused: Option<ResourceError>,
}

/// Pages that were free or pending as a whole, at the addresses that they have had.
struct Donation {
    /// Whose they are, by slot of its stream.
    arena: usize,
    /// All of them.
    chunk: ChunkId,
    since: u64,
    /// What other streams do with them, if they were pending.
    pending: Carried,
    pages: Vec<(u64, Page)>,
}

impl Supply {
    pub(super) fn count(&self) -> usize {
        self.spare.len() + self.donations.iter().map(|given| given.pages.len()).sum::<usize>()
    }
}

/// A page is moved for so many blocks, and so many pages beside that. A move takes fifty
/// microseconds: a hundred nanoseconds of each block, at most, where time comes first.
const TIME_FIRST: (u64, u64) = (512, 256);
/// And two microseconds of each block where memory does.
const MEMORY_FIRST: (u64, u64) = (24, 4096);

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// So many pages: spare ones, new ones within the allowance, those that are free as a whole
    /// elsewhere, those that are pending as a whole, new ones beyond it. Fewer if there are no more.
    /// The own stream is made to wait for those whose pages it is given.
    pub(super) fn find_pages(
        &self,
        own: &Arena,
        wanted: usize,
        request: Request,
        (pages, memory): (&Pages, &dyn VirtualMemory),
    ) -> Supply {
        let mut found = Supply::default();
        {
            let mut spare = pages.spare();
            let from = spare.len() - wanted.min(spare.len());
            found.spare.extend(spare.drain(from..));
        }
        let most = self.config.maximum_size.unwrap_or(u64::MAX);
        let allowance = self.page_allowance(pages, request).min(most);
        let create = |found: &mut Supply, most: u64| {
            let fits = || self.reserved.load(Ordering::Relaxed).saturating_add(pages.size) <= most;
            while found.refused.is_none() && found.count() < wanted && fits() {
                match memory.create(pages.size, TAG) {
                    Ok(page) => {
                        self.count_reserved(pages.size);
                        found.spare.push(Arc::new(page));
                    }
                    Err(error) => found.refused = Some(error),
                }
            }
        };
        create(&mut found, allowance);
        if found.count() < wanted && self.moves_too_often(pages, wanted - found.count()) {
            create(&mut found, self.slack.twice_the_peak().min(most));
        }
        let asked = [Self::ask_for_pages, Self::ask_for_pending_pages];
        for ask in asked {
            for arena in std::iter::once(own).chain(self.others(own.home)) {
                while found.count() < wanted
                    && let Some(given) = ask(arena, wanted - found.count(), pages)
                {
                    let mut after = given.pending.clone();
                    after.add(arena.home, given.since);
                    if !self.has_come_after(own.home, &after) {
                        // Its stream can record no event now: it is passed over.
                        self.give_pages_back(given, |_| false, pages);
                        break;
                    }
                    found.after.add_all(&after);
                    found.donations.push(given);
                }
            }
        }
        create(&mut found, most);
        found
    }

    /// Whether to move so many pages more would take too much time.
    fn moves_too_often(&self, pages: &Pages, more: usize) -> bool {
        let (blocks_per_move, at_first) =
            if self.config.waits_first { MEMORY_FIRST } else { TIME_FIRST };
        let blocks = self.arenas().map(|arena| arena.lock().counts.blocks).sum::<u64>();
        let moves = pages.moved.load(Ordering::Relaxed) + more as u64;
        moves > at_first + blocks / blocks_per_move
    }

    /// Some of an arena's free pages.
    fn ask_for_pages(arena: &Arena, wanted: usize, pages: &Pages) -> Option<Donation> {
        let mut state = arena.lock();
        state.heap.flush();
        let free = state.heap.find_free_pages(wanted as u64, pages.size, |_| true)?;
        let (chunk, since) = (state.heap.take_pages(&free), free.since);
        let pages = state.pages_of(chunk, pages.size);
        Some(Donation {
            arena: arena.home.slot(),
            chunk,
            since,
            pending: Carried::default(),
            pages,
        })
    }

    /// Some of the pages that are pending in an arena.
    fn ask_for_pending_pages(arena: &Arena, wanted: usize, pages: &Pages) -> Option<Donation> {
        let mut state = arena.lock();
        let whole = |chunk| {
            let (start, units) = state.heap.range(chunk);
            let end = (start + u64::from(units) * UNIT) / pages.size * pages.size;
            let most = pages.size.saturating_mul(wanted as u64);
            let from = start.next_multiple_of(pages.size).max(end.saturating_sub(most));
            (from < end).then(|| (from - start, end - from))
        };
        let (entry, (skipped, bytes)) = state.find_pending((pages.size / UNIT) as u32, whole)?;
        let Pending { mut chunk, after } = state.remove_pending(entry)?;
        let since = state.heap.taken(chunk).since;
        if skipped > 0 {
            let rest = state.heap.cut(chunk, (skipped / UNIT) as u32);
            state.push(chunk, after.clone(), since);
            chunk = rest;
        }
        if let Some(rest) = state.heap.cut_off(chunk, (bytes / UNIT) as u32) {
            state.push(rest, after.clone(), since);
        }
        let pages = state.pages_of(chunk, pages.size);
        Some(Donation { arena: arena.home.slot(), chunk, since, pending: after, pages })
    }

    /// Maps one page to each of the addresses, as far as that succeeds; what is not used goes back
    /// to where it was.
    pub(super) fn map_pages(
        &self,
        host: &Arena,
        places: Vec<u64>,
        found: Supply,
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
        for given in found.donations {
            self.give_pages_back(given, &mut map, pages);
        }
        let mut state = host.lock();
        for (address, page) in mapped {
            state.set_slot(address, pages.size, Slot::Mapped(page));
        }
        outcome
    }

    /// What is used of a donation is to be unmapped; what is left is free again, or pending.
    fn give_pages_back(
        &self,
        given: Donation,
        mut is_used: impl FnMut(&Page) -> bool,
        pages: &Pages,
    ) {
        let Donation { arena, chunk, since, pending, pages: given } = given;
        let Some(arena) = self.arena_at(arena) else { return };
        // Calls the driver: the arena is not locked yet.
        let moved: Vec<_> = given.into_iter().filter(|(_, page)| is_used(page)).collect();
        pages.moved.fetch_add(moved.len() as u64, Ordering::Relaxed);
        let mut after = pending.clone();
        after.add(arena.home, since);
        let mut state = arena.lock();
        let mut leaving = pages.leaving();
        for (address, page) in moved {
            state.set_slot(address, pages.size, Slot::Leaving(page));
            leaving.push(Leaving { home: arena.home, address, after: after.clone() });
        }
        drop(leaving);
        state.divide(chunk, pages.size, |state, rest| {
            if pending.is_empty() {
                state.heap.merge(rest, since);
            } else {
                state.push(rest, pending.clone(), since);
            }
        });
    }
}
