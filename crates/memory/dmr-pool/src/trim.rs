//! Memory back to upstream: reaps, trims and the end of the pool. No lock is held while upstream is
//! called.

use std::sync::atomic::Ordering;

use dmr_core::upstream::PassedBlock;
use dmr_core::{DeviceMemoryResource, ResourceResult};
use dmr_recorder::{Unrecorded, hooks};
use dmr_streams::uses::Pending;

use crate::PoolResource;
use crate::arena::Arena;
use crate::recorded;
use crate::span::SpanMemory;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Frees what other streams are done with, returns free memory above the release threshold to
    /// upstream, and calls `reap_upstream`. Returns the bytes of the retired blocks that were
    /// freed.
    pub(crate) fn reap(
        &self,
        reap_upstream: impl FnOnce(&U) -> ResourceResult<u64>,
    ) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        let freed = self.free_closed();
        // On a lost device no memory is allocated again, so there is no need to find out what it is
        // done with.
        let trimmed = match self.device().is_lost() {
            true => Ok(()),
            false => self.trim_own_to(self.config.release_threshold),
        };
        trimmed.and(reap_upstream(&self.upstream)).map(|_| freed)
    }

    /// Returns free memory to upstream, as long as more than `bytes` bytes are reserved. Does
    /// not wait: what other streams are still using stays, and so does every segment or page with a
    /// block in it. A page goes back only when its home stream is known to be done with it, too.
    ///
    /// # Errors
    ///
    /// The first error of upstream. That memory stays in the pool; the rest was returned all the
    /// same.
    pub(crate) fn trim_own_to(&self, bytes: u64) -> ResourceResult<()> {
        self.free_done_regions();
        for arena in self.arenas().filter(|_| self.reserved.load(Ordering::Relaxed) > bytes) {
            self.uses().poll_each(&arena.pending_uses());
        }
        self.trim_known_to(bytes)
    }

    /// Trims memory whose work on other streams is known to be done.
    pub(crate) fn trim_known_to(&self, bytes: u64) -> ResourceResult<()> {
        let mut outcome = self.unmap_leaving().and(self.destroy_spare(bytes));
        for arena in self.arenas() {
            if self.reserved.load(Ordering::Relaxed) <= bytes {
                break;
            }
            arena.free_all_ordered(self.uses());
            arena.lock().heap.flush();
            outcome = outcome.and(match self.paging() {
                Some(paging) => self.trim_pages(arena, bytes, paging),
                None => self.trim_segments(arena, bytes),
            });
        }
        outcome
    }

    /// Deallocates the free segments of an arena upstream, as long as more than `bytes` bytes are
    /// reserved.
    fn trim_segments(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let mut refused = Vec::new();
        let mut outcome = Ok(());
        while self.reserved.load(Ordering::Relaxed) > bytes {
            let hand = self.transit.open();
            let is_new = |memory: &SpanMemory| matches!(memory, SpanMemory::Block(block) if !refused.contains(&block.ptr()));
            let span = arena.lock().remove_span(is_new);
            let Some(SpanMemory::Block(block)) = span else { break };
            hand.hold();
            let ptr = block.ptr();
            let bytes = block.bytes() as u64;
            let passed = PassedBlock::of(&block);
            self.report_destroyed(ptr);
            let deallocated = {
                let _unrecorded = Unrecorded::enter();
                self.upstream.deallocate(block)
            };
            match deallocated.map_err(|error| passed.check("deallocate", error)) {
                Ok(_) => {
                    hooks::unmapped(recorded::page(ptr, bytes, arena.home));
                    self.count_released(bytes);
                }
                Err(Ok(error)) => {
                    self.report_created(ptr, bytes);
                    let since = self.uses().submitted(arena.home);
                    let alignment = self.config.alignment as u64;
                    arena.lock().add_block(error.block, alignment, false, since);
                    refused.push(ptr);
                    outcome = outcome.and(Err(error.error));
                }
                // The segment is upstream's. The other block may be any memory, and is leaked.
                Err(Err(other)) => {
                    self.count_released(bytes);
                    outcome = outcome.and(Err(other.error));
                }
            }
        }
        outcome
    }

    /// Waits until other streams are done with everything that is pending; in an observed pool,
    /// until the home streams are, too.
    pub(crate) fn wait_for_pending(&self) -> ResourceResult<()> {
        let mut outcome = self.wait_for_freed_regions();
        for arena in self.arenas() {
            outcome = outcome.and(self.uses().synchronize(&arena.pending_uses()));
            arena.free_all_ordered(self.uses());
        }
        outcome
    }

    /// Returns everything to upstream, ordered by waits on the home streams. Pages are waited for
    /// by the host. Segments and pages with a block in them are leaked: work may be using them.
    pub(crate) fn release_all(&self) {
        if self.device().bind().is_err() {
            return;
        }
        self.free_closed();
        // What is not known to be done is leaked.
        let _ = self.wait_for_freed_regions();
        for arena in self.arenas() {
            while let Some(Pending { value: chunk, after }) = {
                let mut state = arena.lock();
                let oldest = state.pending.oldest();
                oldest.and_then(|entry| state.remove_pending(entry))
            } {
                // Upstream need not track uses: it orders a free after the home stream's work only.
                // So that stream comes after everything else first.
                let home = self.streams.successor(arena.home);
                let is_ordered = match self.uses().has_ended(home) {
                    // It can be given no wait any more. The host waits for pages, which it frees.
                    true if self.pages.is_some() => self.uses().synchronize(&after).is_ok(),
                    true => self.uses().poll(&after).unwrap_or(false),
                    false => self.uses().wait_for(home, &after).is_ok(),
                };
                if is_ordered {
                    let mut state = arena.lock();
                    state.heap.release(chunk, self.uses().submitted(arena.home));
                }
            }
        }
        self.wait_for_free_pages();
        let _ = self.trim_own_to(0);
        self.release_addresses();
        for arena in self.arenas() {
            for slot in arena.lock().heap.remove_slots() {
                self.uses().vacate(slot);
            }
        }
    }
}
