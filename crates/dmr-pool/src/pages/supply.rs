//! Pages for addresses that lack them: where they come from, and mapping them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceResult};
use dmr_streams::uses::{Dependencies, Pending};

use super::{Leaving, Page, Pages, Paging, Slot};
use crate::PoolResource;
use crate::acquire::is_full;
use crate::arena::{Arena, Request, State};
use crate::claim::Claim;
use crate::grow::TAG;
use crate::heap::{ChunkId, UNIT};
use crate::transit::Hand;

/// Where pages are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Upstream, as long as the pool has no more than this many bytes.
    New(u64),
    /// Addresses where they are free as a whole.
    Free,
    /// Addresses where they are pending as a whole: other streams may still use them.
    Pending,
}

/// Pages in a thread's hand.
#[derive(Default)]
pub(super) struct Supply<'p> {
    /// Mapped at no address in use.
    unmapped: Vec<Page>,
    /// One for each page that is still to be created.
    claims: Vec<Claim<'p>>,
    donations: Vec<Donation>,
    /// The work that the next users of the pages come after.
    pub(super) after: Dependencies,
}

/// Pages that were free or pending as a whole, at the addresses that they are still mapped at.
struct Donation {
    /// The slot of the stream of the arena that they are taken from.
    arena: usize,
    /// All of them, taken out of that arena.
    chunk: ChunkId,
    since: u64,
    /// What other streams do with them, if they were pending.
    pending: Dependencies,
    pages: Vec<(u64, Page)>,
    /// The stream that gets them comes after their last users.
    is_ordered: bool,
}

impl Donation {
    /// Returns all work with the pages at their old addresses.
    fn last_uses(&self, arena: &Arena) -> Dependencies {
        let mut after = self.pending.clone();
        after.add(arena.home, self.since);
        after
    }
}

impl Supply<'_> {
    fn count(&self) -> usize {
        let donated = self.donations.iter().map(|given| given.pages.len()).sum::<usize>();
        self.unmapped.len() + self.claims.len() + donated
    }
}

/// How many pages may be moved.
struct MoveBudget {
    /// One page for each this many blocks,
    blocks_per_page: u64,
    /// and this many at first.
    at_first: u64,
}

/// A move takes 50 µs: at most 100 ns of each block where time comes first,
const TIME_FIRST: MoveBudget = MoveBudget { blocks_per_page: 512, at_first: 256 };
/// and 2 µs of each block where memory comes first.
const MEMORY_FIRST: MoveBudget = MoveBudget { blocks_per_page: 24, at_first: 4096 };

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Returns where `wanted` pages for a request may come from, the cheapest first.
    pub(super) fn sources(&self, wanted: u64, request: Request, pages: &Pages) -> Vec<Source> {
        let allowance = self.page_allowance(pages, request);
        let mut sources = vec![Source::New(allowance)];
        let at_hand = pages.spare().len() as u64 + self.claimable_pages(allowance, pages);
        let lacking = wanted.saturating_sub(at_hand);
        if lacking > 0 && self.exceeds_move_budget(pages, lacking) {
            sources.push(Source::New(self.slack.twice_the_peak()));
        }
        sources.extend([Source::Free, Source::Pending, Source::New(u64::MAX)]);
        sources
    }

    /// Returns whether `wanted` pages can be taken from these sources, as it looks now. Takes none.
    pub(super) fn may_find(&self, wanted: u64, sources: &[Source], pages: &Pages) -> bool {
        let claimable = sources.iter().map(|source| match *source {
            Source::New(most) => self.claimable_pages(most, pages),
            Source::Free | Source::Pending => 0,
        });
        let mut found = pages.spare().len() as u64 + claimable.max().unwrap_or(0);
        let moves = sources.contains(&Source::Free);
        for arena in self.arenas().filter(|_| moves) {
            if found >= wanted {
                break;
            }
            let mut state = arena.lock();
            state.heap.flush();
            found += state.heap.count_free_pages(pages.size);
            state.heap.visit_pending((pages.size / UNIT) as u32, |chunk, _| {
                let whole = whole_pages(&state, chunk, pages);
                found += (whole.end - whole.start) / pages.size;
            });
        }
        found >= wanted
    }

    /// Returns how many pages can be created as long as the pool has no more than `most` bytes.
    fn claimable_pages(&self, most: u64, pages: &Pages) -> u64 {
        let most = most.min(self.most_from_upstream());
        most.saturating_sub(self.claimed.load(Ordering::Relaxed)) / pages.size
    }

    /// Takes `wanted` pages into the thread's hand and has the own stream come after their last
    /// users. `None`, and nothing has changed, if the sources have fewer.
    ///
    /// # Errors
    ///
    /// Upstream's, if it creates too few and the other sources do not have the rest. The pages that
    /// were created stay the pool's.
    pub(super) fn find_pages<'p>(
        &'p self,
        own: &Arena,
        wanted: usize,
        mut sources: Vec<Source>,
        paging: Paging<'_>,
        hand: &Hand<'_>,
    ) -> ResourceResult<Option<Supply<'p>>> {
        let mut supply = Supply::default();
        let mut refused = None;
        // Arenas whose streams can record no event now.
        let mut skipped = Vec::new();
        // Each turn but the last gives up a source or an arena.
        while supply.count() < wanted {
            if !self.gather(own, wanted, (&sources, &skipped), &mut supply, paging.pages, hand) {
                self.put_back(supply, paging.pages);
                return refused.map_or(Ok(None), Err);
            }
            if let Err(error) = self.create_claimed(&mut supply, paging) {
                sources.retain(|source| !matches!(source, Source::New(_)));
                refused = Some(error);
            }
            self.order_donations(own, &mut supply, &mut skipped, paging.pages);
        }
        Ok(Some(supply))
    }

    /// Completes a supply to `wanted` pages, or adds nothing. One thread at a time, so that two
    /// threads do not end up with half of the pages each that both need; calls no driver.
    fn gather<'p>(
        &'p self,
        own: &Arena,
        wanted: usize,
        (sources, skipped): (&[Source], &[usize]),
        supply: &mut Supply<'p>,
        pages: &Pages,
        hand: &Hand<'_>,
    ) -> bool {
        let mut spare = pages.spare();
        let mut more = Supply::default();
        let wanted = wanted - supply.count();
        let from = spare.len() - wanted.min(spare.len());
        more.unmapped = spare.split_off(from);
        hand.hold();
        for &source in sources {
            if let Source::New(most) = source {
                let fits = |claimed: u64| claimed.saturating_add(pages.size) <= most;
                while more.count() < wanted
                    && let Some(claim) = self.claim(pages.size, fits)
                {
                    more.claims.push(claim);
                }
                continue;
            }
            let arenas = std::iter::once(own).chain(self.others(own.home));
            for arena in arenas.filter(|arena| !skipped.contains(&arena.home.slot())) {
                while more.count() < wanted
                    && let Some(given) = take_pages(arena, wanted - more.count(), source, pages)
                {
                    more.donations.push(given);
                }
            }
        }
        let is_enough = more.count() == wanted;
        if is_enough {
            supply.unmapped.append(&mut more.unmapped);
            supply.claims.append(&mut more.claims);
            supply.donations.append(&mut more.donations);
        } else {
            spare.append(&mut more.unmapped);
            for given in more.donations.drain(..) {
                self.give_pages_back(given, |_| false, pages);
            }
        }
        is_enough
    }

    /// Creates the pages that a supply has claims for.
    fn create_claimed(&self, supply: &mut Supply<'_>, paging: Paging<'_>) -> ResourceResult<()> {
        let size = paging.pages.size;
        for mut claim in std::mem::take(&mut supply.claims) {
            let page = paging.memory.create(size, TAG).inspect_err(|error| {
                if is_full(error) {
                    self.note_refusal(size);
                }
            })?;
            self.fulfil(&mut claim, size);
            supply.unmapped.push(Arc::new(page));
        }
        Ok(())
    }

    /// Has the own stream come after the last users of the pages that it is given. Where that cannot
    /// be, they go back, and the arena is skipped from then on.
    fn order_donations(
        &self,
        own: &Arena,
        supply: &mut Supply<'_>,
        skipped: &mut Vec<usize>,
        pages: &Pages,
    ) {
        for mut given in std::mem::take(&mut supply.donations) {
            if !given.is_ordered {
                let Some(arena) = self.arena_at(given.arena) else { continue };
                let after = given.last_uses(arena);
                if !self.has_come_after(own.home, &after) {
                    skipped.push(given.arena);
                    self.give_pages_back(given, |_| false, pages);
                    continue;
                }
                given.is_ordered = true;
                supply.after.add_all(&after);
            }
            supply.donations.push(given);
        }
    }

    /// Returns whether moving `more` pages would take too much time.
    pub(super) fn exceeds_move_budget(&self, pages: &Pages, more: u64) -> bool {
        let budget = if self.config.waits_first { &MEMORY_FIRST } else { &TIME_FIRST };
        let blocks = self.arenas().map(|arena| arena.lock().counts.blocks).sum::<u64>();
        let moves = pages.moved() + more;
        moves > budget.at_first + blocks / budget.blocks_per_page
    }

    /// Maps one page to each of the addresses, as far as that succeeds. The rest of the supply goes
    /// back to where it was.
    ///
    /// # Errors
    ///
    /// Upstream's. The pages that were mapped before stay mapped.
    pub(super) fn map_pages(
        &self,
        host: &Arena,
        addresses: Vec<u64>,
        supply: Supply<'_>,
        paging: Paging<'_>,
    ) -> ResourceResult<()> {
        let mut addresses = VecDeque::from(addresses);
        let mut outcome = Ok(());
        let mut mapped = Vec::with_capacity(addresses.len());
        let mut map = |page: &Page| {
            let Some(&address) = addresses.front() else { return false };
            match paging.memory.map(page, address) {
                Ok(()) => mapped.push((address, Arc::clone(page))),
                Err(error) => {
                    addresses.clear();
                    outcome = Err(error);
                    return false;
                }
            }
            addresses.pop_front();
            true
        };
        let mut unused = supply.unmapped;
        unused.retain(|page| !map(page));
        paging.pages.spare().append(&mut unused);
        for given in supply.donations {
            self.give_pages_back(given, &mut map, paging.pages);
        }
        let mut state = host.lock();
        for (address, page) in mapped {
            state.set_slot(address, paging.pages.size, Slot::Mapped(page));
        }
        outcome
    }

    /// Puts all pages of a supply back to where they were, and gives up its claims.
    fn put_back(&self, supply: Supply<'_>, pages: &Pages) {
        let Supply { mut unmapped, donations, .. } = supply;
        pages.spare().append(&mut unmapped);
        for given in donations {
            self.give_pages_back(given, |_| false, pages);
        }
    }

    /// Leaves the pages of a donation that `is_used` returns `true` for to be unmapped at their old
    /// addresses. The others are free or pending again.
    fn give_pages_back(
        &self,
        given: Donation,
        mut is_used: impl FnMut(&Page) -> bool,
        pages: &Pages,
    ) {
        let Some(arena) = self.arena_at(given.arena) else { return };
        let after = given.last_uses(arena);
        let Donation { chunk, since, pending, pages: given, .. } = given;
        // `is_used` calls the driver: no lock is held yet.
        let moved: Vec<_> = given.into_iter().filter(|(_, page)| is_used(page)).collect();
        pages.moved.fetch_add(moved.len() as u64, Ordering::Relaxed);
        let mut state = arena.lock();
        for (address, page) in moved {
            state.set_slot(address, pages.size, Slot::Leaving(page));
            pages.leaving().push(Leaving { home: arena.home, address, after: after.clone() });
        }
        state.divide(chunk, pages.size, |state, rest| {
            if pending.is_empty() {
                state.heap.merge(rest, since);
            } else {
                state.push(rest, pending.clone(), since);
            }
        });
    }
}

/// Takes up to `wanted` pages out of an arena that are free or pending in one piece.
fn take_pages(arena: &Arena, wanted: usize, source: Source, pages: &Pages) -> Option<Donation> {
    let mut state = arena.lock();
    let taken = match source {
        Source::Free => take_free_pages(&mut state, wanted, pages),
        Source::Pending => take_pending_pages(&mut state, wanted, pages),
        Source::New(_) => None,
    };
    let (chunk, pending) = taken?;
    let since = state.heap.taken(chunk).since;
    let pages = state.pages_of(chunk, pages.size);
    Some(Donation { arena: arena.home.slot(), chunk, since, pending, pages, is_ordered: false })
}

fn take_free_pages(
    state: &mut State,
    wanted: usize,
    pages: &Pages,
) -> Option<(ChunkId, Dependencies)> {
    state.heap.flush();
    let free = state.heap.find_free_pages(wanted as u64, pages.size, |_| true)?;
    Some((state.heap.take_pages(&free), Dependencies::default()))
}

fn take_pending_pages(
    state: &mut State,
    wanted: usize,
    pages: &Pages,
) -> Option<(ChunkId, Dependencies)> {
    let whole = |chunk| Some(whole_pages(state, chunk, pages)).filter(|range| !range.is_empty());
    let (entry, range) = state.find_pending((pages.size / UNIT) as u32, whole)?;
    let Pending { value: mut chunk, after } = state.remove_pending(entry)?;
    let since = state.heap.taken(chunk).since;
    let most = pages.size.saturating_mul(wanted as u64);
    let from = range.start.max(range.end.saturating_sub(most));
    let (start, _) = state.heap.range(chunk);
    if from > start {
        let rest = state.heap.cut(chunk, ((from - start) / UNIT) as u32);
        state.push(chunk, after.clone(), since);
        chunk = rest;
    }
    if let Some(rest) = state.heap.cut_off(chunk, ((range.end - from) / UNIT) as u32) {
        state.push(rest, after.clone(), since);
    }
    Some((chunk, after))
}

/// Returns the addresses of the pages that a chunk covers as a whole.
fn whole_pages(state: &State, chunk: ChunkId, pages: &Pages) -> std::ops::Range<u64> {
    let (start, units) = state.heap.range(chunk);
    let end = (start + u64::from(units) * UNIT) / pages.size * pages.size;
    let start = start.next_multiple_of(pages.size);
    start..end.max(start)
}
