//! Pages for addresses that lack them: where they are taken from, and mapping them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, VirtualMemory};
use dmr_streams::uses::Carried;

use super::{Leaving, Page, Pages, Slot};
use crate::PoolResource;
use crate::arena::{Arena, Request};
use crate::heap::ChunkId;
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

/// Pages that were free as a whole, at the addresses that they have had.
struct Donation {
    /// Whose they are, by slot of its stream.
    arena: usize,
    /// All of them.
    chunk: ChunkId,
    since: u64,
    pages: Vec<(u64, Page)>,
}

impl Supply {
    pub(super) fn count(&self) -> usize {
        self.spare.len() + self.donations.iter().map(|given| given.pages.len()).sum::<usize>()
    }
}

/// Where time comes first, one page is moved for so many blocks, and so many pages beside that.
/// A move takes fifty microseconds: a hundred nanoseconds of each block, at most.
const BLOCKS_PER_MOVE: u64 = 512;
const AT_FIRST: u64 = 256;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// So many pages: spare ones, new ones within the allowance, those that are free as a whole
    /// elsewhere, new ones beyond it. Fewer if there are no more. The own stream is made to wait for those whose pages it is given.
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
        for arena in std::iter::once(own).chain(self.others(own.home)) {
            while found.count() < wanted
                && let Some(given) = self.ask_for_pages(arena, wanted - found.count(), pages)
            {
                if !self.has_come_after(own.home, arena.home, given.since) {
                    // Its stream can record no event now: it is passed over.
                    self.give_pages_back(given.arena, given.chunk, given.since, Vec::new(), pages);
                    break;
                }
                found.after.add(arena.home, given.since);
                found.donations.push(given);
            }
        }
        create(&mut found, most);
        found
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
        for Donation { arena, chunk, since, pages: given } in found.donations {
            let (moved, _): (Vec<_>, Vec<_>) = given.into_iter().partition(|(_, page)| map(page));
            pages.moved.fetch_add(moved.len() as u64, Ordering::Relaxed);
            self.give_pages_back(arena, chunk, since, moved, pages);
        }
        let mut state = host.lock();
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
        state.divide(chunk, pages.size, |state, rest| {
            state.heap.merge(rest, since);
        });
    }
}
