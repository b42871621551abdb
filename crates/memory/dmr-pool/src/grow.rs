//! Memory from upstream: how much the pool may take, and segments. No lock is held while upstream
//! is called.

use std::sync::atomic::Ordering;

use dmr_core::error::Limit;
use dmr_core::upstream::check_allocated;
use dmr_core::{
    AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
};

use dmr_recorder::Unrecorded;

use crate::PoolResource;
use crate::acquire::{Found, is_full};
use crate::arena::{Arena, Request};
use crate::config::SEGMENT_STEP;
use crate::heap::{MAX_CHUNK, UNIT};
use crate::ladder::Share;
use crate::pages::Pages;
use crate::recorded;
use crate::slack::Slack;
use crate::transit::Hand;

/// The tag of memory that a pool reserves for later blocks.
const TAG: AllocTag = AllocTag::new("pool");
/// Memory that is taken for later is taken in chunks of at most this many bytes.
const MAX_RESERVED_CHUNK: u64 = 1 << 38;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Takes memory from upstream and returns a chunk of it. `None` if that would be more than the
    /// share. Two threads of one stream may both grow; what neither needs is free then, and the
    /// share bounds it.
    ///
    /// # Errors
    ///
    /// Upstream's. Nothing has changed then.
    pub(crate) fn grow<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
        share: Share,
    ) -> ResourceResult<Option<Found<'p>>> {
        if share == Share::Slack && !self.may_grow(request) {
            return Ok(None);
        }
        match self.paging() {
            Some(paging) => self.grow_pages(own, request, share, paging),
            None => self.grow_segments(own, request),
        }
    }

    /// Returns whether the slack lets the pool reserve more before it makes a stream wait for
    /// another. Over blocks, it first returns free segments to upstream if the pool has no room
    /// otherwise, unless threads contend.
    pub(crate) fn may_grow(&self, request: Request) -> bool {
        let needed = request.needed();
        let is_contended = self.slack.is_contended();
        let most = match &self.pages {
            // Waits cost time, and so do threads in each other's way.
            Some(_) if self.config.waits_first && !is_contended => Slack::SMALL,
            Some(pages) => self.page_allowance(pages, request),
            None => self.slack.allowance(self.live_with(request)),
        };
        // Threads in each other's way would take from each other and from upstream in turn.
        if self.pages.is_none() && !is_contended && !self.may_claim(needed, most) {
            // Segments that upstream does not free stay.
            let _ = self.trim_known_to(most.saturating_sub(needed));
        }
        self.may_claim(needed, most)
    }

    /// Returns how many bytes the pool may have before it moves pages for a request.
    pub(crate) fn page_allowance(&self, pages: &Pages, request: Request) -> u64 {
        self.slack.allowance_of_peak(self.live_with(request), pages.slack_divisor)
    }

    fn live_with(&self, request: Request) -> u64 {
        self.arenas().map(Arena::live).sum::<u64>() + request.needed()
    }

    /// Takes memory from upstream into an arena, for later.
    pub(crate) fn reserve(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let total = self.device().total_memory();
        if bytes > total {
            let requested = usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(ResourceError::beyond_device(requested, total));
        }
        // Less than an alignment may have no aligned address in it.
        let mut rest = bytes.max(self.config.alignment as u64);
        let mut outcome = Ok(());
        let mut reserved = Vec::new();
        while rest > 0 && outcome.is_ok() {
            let piece = rest.min(MAX_RESERVED_CHUNK);
            let units = piece.div_ceil(UNIT) as u32;
            let request = Request { units, bytes: 0, tag: TAG };
            match self.grow(arena, request, Share::Limit) {
                Ok(Some(found)) => reserved.push(found.chunk),
                Ok(None) => outcome = Err(self.out_of_memory(bytes)),
                Err(error) => outcome = Err(error),
            }
            rest -= piece;
        }
        let mut state = arena.lock();
        for chunk in reserved {
            state.heap.merge(chunk.id, chunk.since);
        }
        outcome
    }

    fn grow_segments<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
    ) -> ResourceResult<Option<Found<'p>>> {
        let hand = self.transit.open();
        let Some(block) = self.allocate_segment(own, request, &hand)? else { return Ok(None) };
        let since = self.uses().submitted(own.home);
        let mut state = own.lock();
        let alignment = self.config.alignment as u64;
        let first = state.add_block(block, alignment, self.is_dedicated(request), since);
        let chunk = state.heap.acquire_from(first, request.units);
        drop(state);
        // What the request does not need was in the first hand, and is free.
        Ok(Some(own.found(chunk).in_hand(self.transit.open())))
    }

    /// Returns whether the block has a span of its own.
    fn is_dedicated(&self, request: Request) -> bool {
        request.bytes > 0 && request.bytes >= self.config.dedicated_from
    }

    /// Allocates a large step from upstream, or less if it does not have that much. `None` if the
    /// pool may not have that much, or no device has.
    fn allocate_segment(
        &self,
        arena: &Arena,
        request: Request,
        hand: &Hand<'_>,
    ) -> ResourceResult<Option<DeviceBlock>> {
        // Upstream need not align better than every resource does.
        let for_alignment = self.config.alignment as u64 - UNIT;
        let least = (request.needed() + for_alignment).next_multiple_of(SEGMENT_STEP);
        // Many streams that took as much as one would have too much together.
        let reserved = self.reserved.load(Ordering::Relaxed);
        let share = reserved / (2 * self.arenas().count() as u64).max(1);
        let growth = share.min(self.config.growth).min(MAX_CHUNK).next_multiple_of(SEGMENT_STEP);
        let is_exact = self.is_dedicated(request) || request.bytes == 0;
        let step = if is_exact { least } else { least.max(growth) };
        // The stream for which the arena was made may be retired, and another one have its slot.
        let home = self.streams.successor(arena.home);
        let mut outcome = Ok(None);
        // A large step saves calls of upstream, but near its limit only the least may fit.
        for bytes in std::iter::once(step).chain((least < step).then_some(least)) {
            let Some(mut claim) = self.claim(bytes, |_| true) else { continue };
            hand.hold();
            let allocated = {
                // What is cut from it is recorded.
                let _unrecorded = Unrecorded::enter();
                self.upstream.allocate(bytes as usize, home, request.tag)
            };
            match allocated {
                Ok(block) => {
                    let block = self.check_segment(block, bytes as usize, home)?;
                    dmr_recorder::hooks::mapped(recorded::page(block.ptr(), bytes, home));
                    self.report_created(block.ptr(), bytes);
                    self.fulfil(&mut claim, bytes);
                    return Ok(Some(block));
                }
                // The step is the pool's, not the caller's.
                Err(ResourceError::InvalidSize { .. }) => {}
                Err(other) => {
                    if is_full(&other) {
                        self.record_refusal(bytes, &other);
                    }
                    outcome = Err(other);
                }
            }
        }
        outcome
    }

    /// Refuses a block of upstream that is not what was asked for, or is host memory: what the pool
    /// cuts from it would have use slots of its own, and only the use table orders host memory, by
    /// the slot of the whole.
    fn check_segment(
        &self,
        block: DeviceBlock,
        bytes: usize,
        home: StreamId,
    ) -> ResourceResult<DeviceBlock> {
        let checked = match block.id().slot().is_of_host_memory() {
            true => Err(ResourceError::host_memory(&block)),
            false => check_allocated(&block, bytes, home),
        };
        match checked {
            Ok(()) => Ok(block),
            Err(error) => {
                // If upstream refuses it as well, it is leaked, and stays in the usage.
                let _ = self.upstream.deallocate(block);
                Err(error)
            }
        }
    }

    /// Returns the error of a pool that takes no more from upstream: because of its maximum, or
    /// because upstream has no piece of memory as large as that.
    pub(crate) fn out_of_memory(&self, requested: u64) -> ResourceError {
        let memory = self.device().memory_info().unwrap_or_default();
        let ordinal = self.device_ordinal();
        let usage = self.own_usage();
        let error = ResourceError::out_of_memory(requested as usize, ordinal, memory, &usage);
        let reserved = self.reserved.load(Ordering::Relaxed);
        let piece = self.pages.as_ref().map_or(SEGMENT_STEP, |pages| pages.size);
        let needed = requested.saturating_add(piece - 1) / piece * piece;
        match self.config.maximum_size {
            Some(bytes) if reserved.saturating_add(needed) > bytes => {
                error.by_limit(Limit { name: "PoolConfig::maximum_size", bytes, reserved })
            }
            _ => error,
        }
    }
}
