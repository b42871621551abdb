//! The segments of the pool of pinned memory: from the driver, and back to it.

use std::collections::HashMap;

use dmr_core::{ResourceError, ResourceResult};
use dmr_streams::PinnedKind;
use dmr_streams::uses::{Dependencies, PendingQueue};

use crate::heap::{AllocatedChunk, Segment};
use crate::pool::{ChunkOfKind, PinnedPool};
use crate::{driver, orphans};

/// The number of polls before another segment is added. On an idle stream an event is done a few
/// microseconds after its record, and the driver needs many times as long to lock memory.
const POLLS: usize = 16;

impl PinnedPool<'_> {
    /// Allocates a chunk: of free memory, else of memory whose uses a poll finds done, else of a
    /// new segment.
    pub(crate) fn allocate_chunk(
        &self,
        kind: PinnedKind,
        units: u32,
    ) -> ResourceResult<AllocatedChunk> {
        let free = || self.pool().state().of(kind).heap.allocate(units);
        if let Some(chunk) = free() {
            return Ok(chunk);
        }
        for _ in 0..POLLS {
            // Memory that cannot be freed stays retired; this allocation does not fail for it.
            let Ok(freed) = self.poll() else { break };
            if freed[kind as usize] > 0
                && let Some(chunk) = free()
            {
                return Ok(chunk);
            }
            if self.pool().state().pending.values().all(PendingQueue::is_empty) {
                break;
            }
        }
        let _ = orphans::try_reap();
        match self.grow(kind, units, false) {
            Err(ResourceError::Driver { .. }) => {}
            grown => return grown,
        }
        // The host has too little memory that can be locked.
        let _ = self.wait();
        if let Some(chunk) = free() {
            return Ok(chunk);
        }
        for kind in PinnedKind::ALL {
            let _ = self.trim_kind(kind, 0);
        }
        self.grow(kind, units, true)
    }

    /// Adds a segment and allocates a chunk of it.
    fn grow(&self, kind: PinnedKind, units: u32, is_least: bool) -> ResourceResult<AllocatedChunk> {
        let size = self.pool().state().of(kind).heap.segment_for(units, is_least);
        let address = driver::lock_host(self.device(), kind, size.bytes())?;
        let segment = Segment { address, size };
        let observer = || self.device().memory_observer();
        self.pool().observer.get_or_init(observer);
        self.add_segment(kind, segment);
        // Another thread may have taken the new memory.
        let chunk = self.pool().state().of(kind).heap.allocate(units);
        chunk.map_or_else(|| self.grow(kind, units, is_least), Ok)
    }

    fn add_segment(&self, kind: PinnedKind, segment: Segment) {
        if let Some(observer) = self.pool().observer() {
            observer.heap_created(segment.address, segment.size.bytes());
        }
        self.pool().state().of(kind).heap.add(segment);
    }

    /// Returns segments that are free as a whole to the driver while more than `keep` bytes of the
    /// kind are reserved. Returns the bytes.
    ///
    /// # Errors
    ///
    /// The driver's first error; such a segment is kept, and the others were returned all the same.
    pub(crate) fn trim_kind(&self, kind: PinnedKind, keep: u64) -> ResourceResult<u64> {
        self.device().refuse_fork()?;
        if self.device().is_lost() {
            return Ok(0);
        }
        let pool = self.pool();
        let segments = pool.state().of(kind).heap.remove_free(keep);
        let mut trimmed = 0;
        let mut outcome = Ok(());
        for segment in segments {
            let bytes = segment.size.bytes();
            if let Some(observer) = pool.observer() {
                observer.heap_destroyed(segment.address);
            }
            match driver::free_host(self.device(), segment.address) {
                Ok(()) => trimmed += bytes as u64,
                Err(error) => {
                    self.add_segment(kind, segment);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome.map(|()| trimmed)
    }

    /// Ends the pinned memory of the pool when its last owner is dropped. Does not wait: segments
    /// with blocks that are in use are freed by
    /// [`reap_orphaned_pinned`](crate::reap_orphaned_pinned).
    pub(crate) fn end(&self) {
        // In a forked child another thread may have held a lock. A lost device frees nothing.
        if self.device().check().is_err() {
            return;
        }
        // Memory that cannot be freed becomes orphaned. On an idle stream, an event takes a moment
        // after its record.
        for _ in 0..2 {
            let _ = self.poll();
        }
        for kind in PinnedKind::ALL {
            let _ = self.trim_kind(kind, 0);
        }
        let state = self.pool().state();
        let pending = state.pending.values().flat_map(PendingQueue::iter);
        let after: HashMap<_, _> =
            pending.map(|pending| (pending.value.chunk, &pending.after)).collect();
        for kind in PinnedKind::ALL {
            for (segment, chunks) in state.kinds[kind as usize].heap.segments() {
                let after = chunks.iter().map(|&id| after.get(&ChunkOfKind { kind, id }).copied());
                // Without events there is no way to find out when the memory may be freed, so it
                // leaks. So does memory with an open window, whose work is in no ledger, and a
                // block that was never deallocated.
                let Some(after) = after.collect::<Option<Vec<_>>>() else { continue };
                let after = after.into_iter().collect::<Dependencies>().newest_of_each_stream();
                if let Ok(events) = self.streams.uses().events_of(&after) {
                    orphans::add(segment.address, segment.size.bytes(), events, self.device());
                }
            }
        }
    }
}
