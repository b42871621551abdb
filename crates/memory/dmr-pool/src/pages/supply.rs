//! Pages for addresses that lack them: where they come from.
//!
//! Spare pages are free of charge, new ones cost memory, and a page that is free elsewhere costs a
//! move of 50 µs. So the sources are in an order, and the order depends on how much the pool has
//! and has moved. The pages of a request are acquired together or not at all, without a driver
//! call, one thread at a time; then they are created and mapped with no lock held. What a thread
//! has in its hand goes back where it was when the hand is dropped, also when upstream fails or
//! panics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmr_core::size::human_bytes;
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult};
use dmr_streams::uses::{Dependencies, Pending, UseTable};

use super::detached::Detached;
use super::{Pages, Paging};
use crate::PoolResource;
use crate::acquire::is_full;
use crate::arena::{Arena, Request, State};
use crate::claim::Claim;
use crate::heap::{ChunkId, UNIT};
use crate::idle::IdleMemory;
use crate::span::{MappedPage, Page};
use crate::transit::Hand;

/// The source of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Upstream, as long as the pool has no more than this many bytes.
    New(u64),
    /// Addresses where they are free as a whole.
    Free,
    /// Addresses where they are pending as a whole: other streams may still use them.
    Pending,
}

/// Pages in a thread's hand. Those that are left when this is dropped go back to where they were.
pub(super) struct Supply<'p> {
    pages: &'p Pages,
    /// Mapped at no address in use.
    pub(super) unmapped: Vec<Page>,
    /// One for each page that is still to be created.
    claims: Vec<Claim<'p>>,
    pub(super) donations: Vec<Donation<'p>>,
}

/// Pages that were free or pending as a whole, still mapped at their old addresses.
pub(super) struct Donation<'p> {
    /// All of them.
    pub(super) chunk: Detached<'p>,
    /// The pages that were not mapped elsewhere yet, at their old addresses.
    pub(super) pages: Vec<MappedPage>,
}

impl Donation<'_> {
    pub(super) fn has_pages(&self) -> bool {
        !self.pages.is_empty()
    }
}

impl<'p> Supply<'p> {
    fn new(pages: &'p Pages) -> Self {
        Self { pages, unmapped: Vec::new(), claims: Vec::new(), donations: Vec::new() }
    }

    fn count(&self) -> usize {
        let donated = self.donations.iter().map(|donation| donation.pages.len()).sum::<usize>();
        self.unmapped.len() + self.claims.len() + donated
    }

    fn append(&mut self, mut other: Self) {
        self.unmapped.append(&mut other.unmapped);
        self.claims.append(&mut other.claims);
        self.donations.append(&mut other.donations);
    }

    /// Returns the work that the next users of the pages come after.
    pub(super) fn last_uses(&self) -> Dependencies {
        let mut uses = Dependencies::default();
        self.donations.iter().for_each(|donation| uses.add_all(&donation.chunk.last_uses()));
        uses
    }
}

impl Drop for Supply<'_> {
    fn drop(&mut self) {
        self.pages.spare().extend(self.unmapped.drain(..));
    }
}

/// The number of pages that may be moved.
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
        let available = self.available_pages(allowance, pages);
        // A program with blocks of hundreds of pages would move pages all the time. Beyond the
        // budget it gets memory instead.
        let lacking = wanted.saturating_sub(available);
        if lacking > 0 && self.exceeds_move_budget(pages, lacking) {
            sources.push(Source::New(self.slack.twice_the_peak()));
        }
        sources.extend([Source::Free, Source::Pending, Source::New(u64::MAX)]);
        sources
    }

    /// Returns whether `wanted` pages can be taken from these sources, as it looks now. Takes none.
    pub(super) fn may_find(&self, wanted: u64, sources: &[Source], pages: &Pages) -> bool {
        let claimable = sources.iter().map(|source| match *source {
            Source::New(most) => most,
            Source::Free | Source::Pending => 0,
        });
        let mut found = self.available_pages(claimable.max().unwrap_or(0), pages);
        let moves = sources.contains(&Source::Free);
        for arena in self.arenas().filter(|_| moves) {
            if found >= wanted {
                break;
            }
            let mut state = arena.lock();
            state.heap.flush();
            found += state.heap.count_free_pages(pages.size);
            state.heap.visit_pending((pages.size / UNIT) as u32, |chunk, _| {
                let whole = state.whole_pages(chunk);
                found += (whole.end - whole.start) / pages.size;
            });
        }
        found >= wanted
    }

    /// Returns the number of spare pages, and of pages that can be created as long as the pool has
    /// no more than `most` bytes.
    pub(crate) fn available_pages(&self, most: u64, pages: &Pages) -> u64 {
        let most = most.min(self.most_from_upstream());
        let room = most.saturating_sub(self.claimed.load(Ordering::Relaxed));
        pages.spare().len() as u64 + room / pages.size
    }

    /// Returns whether there is a page for a request at the limit: an idle or a spare one, or a new
    /// one, which is spare then. So upstream's refusal costs no search for the addresses of a page.
    /// What upstream has refused before is asked for only if `again`.
    ///
    /// # Errors
    ///
    /// Upstream's.
    pub(crate) fn secure_page(
        &self,
        idle: &IdleMemory,
        tag: AllocTag,
        again: bool,
        paging: Paging<'_>,
    ) -> ResourceResult<bool> {
        if idle.has_whole() || paging.pages.spare_bytes() > 0 {
            // The request may need more pages than that.
            if again {
                self.ask_upstream_again();
            }
            return Ok(true);
        }
        let hand = self.transit.open();
        let size = paging.pages.size;
        let claim = match again {
            true => self.claim_again(size),
            false => self.claim(size, |_| true),
        };
        let Some(claim) = claim else { return Ok(false) };
        let mut supply = Supply::new(paging.pages);
        supply.claims.push(claim);
        hand.hold();
        let created = self.create_claimed(&mut supply, tag, paging);
        // The page is spare, or the claim has ended, before the hand is closed.
        drop(supply);
        if created.as_ref().is_err_and(is_full) {
            // Upstream has no page for other threads, either, which may have missed this claim.
            hand.spend();
        }
        created?;
        if again {
            self.ask_upstream_again();
        }
        Ok(true)
    }

    /// Takes `wanted` pages into the thread's hand and orders the own stream after their last
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
        tag: AllocTag,
        paging: Paging<'p>,
        hand: &Hand<'_>,
    ) -> ResourceResult<Option<Supply<'p>>> {
        let mut supply = Supply::new(paging.pages);
        let mut refused = None;
        // Slots of the streams that can record no event now.
        let mut skipped = Vec::new();
        // Each turn but the last drops a source or an arena.
        while supply.count() < wanted {
            let lacking = wanted - supply.count();
            match self.gather(own, lacking, &sources, &skipped, paging.pages, hand) {
                Some(more) => supply.append(more),
                None => return refused.map_or(Ok(None), Err),
            }
            if let Err(error) = self.create_claimed(&mut supply, tag, paging) {
                supply.claims.clear();
                sources.retain(|source| !matches!(source, Source::New(_)));
                refused = Some(error);
            }
            // A stream that cannot record an event now, because it captures, has pages whose last
            // use no stream can wait for: they go back, and its arena is left out of the next turn.
            supply.donations.retain(|donation| {
                let is_ordered = self.order_after(own.home, &donation.chunk.last_uses());
                if !is_ordered {
                    skipped.push(donation.chunk.arena.home.slot());
                }
                is_ordered
            });
        }
        Ok(Some(supply))
    }

    /// Takes `wanted` pages, or none. One thread at a time, so that two threads do not end up with
    /// half of the pages each that both need; calls no driver.
    fn gather<'p>(
        &'p self,
        own: &Arena,
        wanted: usize,
        sources: &[Source],
        skipped: &[usize],
        pages: &'p Pages,
        hand: &Hand<'_>,
    ) -> Option<Supply<'p>> {
        let mut supply = Supply::new(pages);
        let mut spare = pages.spare();
        let from = spare.len().saturating_sub(wanted);
        supply.unmapped.extend(spare.drain(from..));
        hand.hold();
        for &source in sources {
            if let Source::New(most) = source {
                let fits = |claimed: u64| claimed.saturating_add(pages.size) <= most;
                while supply.count() < wanted
                    && let Some(claim) = self.claim(pages.size, fits)
                {
                    supply.claims.push(claim);
                }
                continue;
            }
            let arenas = self.arena_at(own.home.slot()).into_iter().chain(self.others(own.home));
            for arena in arenas.filter(|arena| !skipped.contains(&arena.home.slot())) {
                while supply.count() < wanted
                    && let Some(donation) =
                        detach_pages(arena, wanted - supply.count(), source, self.uses())
                {
                    supply.donations.push(donation);
                }
            }
        }
        drop(spare);
        (supply.count() == wanted).then_some(supply)
    }

    /// Creates the pages that a supply has claims for.
    fn create_claimed(
        &self,
        supply: &mut Supply<'_>,
        tag: AllocTag,
        paging: Paging<'_>,
    ) -> ResourceResult<()> {
        let size = paging.pages.size;
        while let Some(mut claim) = supply.claims.pop() {
            let page = paging.memory.create(size, tag).inspect_err(|error| {
                if is_full(error) {
                    self.record_refusal(size, error);
                }
            })?;
            if page.bytes() != size {
                let expected = format_args!("{} of memory", human_bytes(size));
                let wrong =
                    ResourceError::wrong_memory("create", format_args!("{page:?}"), expected);
                // If upstream refuses it as well, it is leaked, and stays in the usage.
                let _ = paging.memory.destroy(page);
                return Err(wrong);
            }
            self.fulfil(&mut claim, size);
            supply.unmapped.push(Arc::new(page));
        }
        Ok(())
    }

    /// Returns whether moving `more` pages would take too much time.
    pub(super) fn exceeds_move_budget(&self, pages: &Pages, more: u64) -> bool {
        let budget = if self.config.waits_first { &MEMORY_FIRST } else { &TIME_FIRST };
        let blocks = self.arenas().map(|arena| arena.lock().blocks).sum::<u64>();
        let moves = pages.moved() + more;
        moves > budget.at_first + blocks / budget.blocks_per_page
    }
}

/// Detaches up to `wanted` pages of an arena that are free or pending in one piece.
fn detach_pages<'p>(
    arena: &'p Arena,
    wanted: usize,
    source: Source,
    uses: UseTable<'p>,
) -> Option<Donation<'p>> {
    let mut state = arena.lock();
    let pending = match source {
        Source::Free => {
            state.heap.flush();
            let free = state.heap.find_free_pages(wanted as u64, state.page, |_| true)?;
            Pending { value: state.heap.acquire_pages(&free), after: Dependencies::default() }
        }
        Source::Pending => acquire_pending_pages(&mut state, wanted)?,
        Source::New(_) => return None,
    };
    let pages = state.pages_of(pending.value);
    let chunk = Detached::new(arena, &state, pending.value, pending.after, uses);
    Some(Donation { chunk, pages })
}

/// Acquires up to `wanted` whole pages of the oldest pending chunk that has any. The rest of it
/// stays pending.
fn acquire_pending_pages(state: &mut State, wanted: usize) -> Option<Pending<ChunkId>> {
    let page = state.page;
    let whole = |chunk| Some(state.whole_pages(chunk)).filter(|range| !range.is_empty());
    let (entry, range) = state.find_pending((page / UNIT) as u32, whole)?;
    let Pending { value: chunk, after } = state.remove_pending(entry)?;
    let since = state.heap.acquired(chunk).since;
    let from = range.start.max(range.end.saturating_sub(page.saturating_mul(wanted as u64)));
    let start = state.heap.addresses(chunk).start;
    let push = |state: &mut State, rest: Option<ChunkId>| {
        rest.into_iter().for_each(|rest| state.push(rest, after.clone(), since));
    };
    let mut pages = chunk;
    if from > start {
        pages = state.heap.cut(chunk, ((from - start) / UNIT) as u32);
        push(state, Some(chunk));
    }
    let rest = state.heap.cut_off(pages, ((range.end - from) / UNIT) as u32);
    push(state, rest);
    Some(Pending { value: pages, after })
}
