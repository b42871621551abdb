//! The state of a runtime's memory as data: what the page of `dmr report` shows, for the tests of a
//! program.

use std::collections::BTreeMap;

use dmr_core::{DeviceMemoryResource, StreamId, Usage};
use dmr_recorder::{Heap, HeapPart, HeapSource, HeapState, Peak, TagBytes, peak};

use crate::DeviceRuntime;

/// The memory of a runtime's pool. All sizes are bytes; those of blocks are rounded up as the pool
/// cuts memory. Exact while no call is in progress.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The accounting of the runtime's resource.
    pub usage: Usage,
    /// The share of the free bytes that are not in the largest free run, from 0 to 1.
    pub fragmentation: f64,
    /// Free bytes.
    pub free: u64,
    /// Bytes of the largest run of free memory: the largest request that can be served without
    /// more memory, a wait or a move of pages.
    pub largest_free: u64,
    /// The live bytes of each tag, most bytes first.
    pub by_tag: Vec<TagBytes>,
    /// The memory of each stream, most free bytes first.
    pub by_stream: Vec<StreamMemory>,
    /// Bytes that are reserved, hold no block, and can be neither moved nor returned now; and why.
    pub stranded: Vec<Stranded>,
    /// The highest live bytes of the time that the flight recorder covers, and who held them;
    /// `None` if it is off.
    pub peak: Option<Peak>,
}

/// The memory of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamMemory {
    /// The stream that was the first to have it.
    pub stream: StreamId,
    /// Bytes of blocks.
    pub in_use: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that were freed, and that device work may still use.
    pub pending: u64,
    /// Bytes of its largest run of free memory.
    pub largest_free: u64,
}

/// Bytes of one stream that are stranded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stranded {
    /// The stream whose memory they are.
    pub stream: StreamId,
    /// The bytes.
    pub bytes: u64,
    /// The reason.
    pub why: WhyStranded,
}

/// The reason why bytes are stranded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WhyStranded {
    /// They were freed, and work of other streams may still use them: `reap_pending` waits for it.
    Pending,
    /// They are free, in pages or segments that also hold blocks: only requests that fit between
    /// these are served from them.
    BesideBlocks,
}

impl DeviceRuntime {
    /// Reports the memory of the runtime's pool: what holds it, what is free and where, what is
    /// stranded. Looks at every chunk: for reports and tests, not for hot paths. `None` if the
    /// backend is not the pool.
    ///
    /// Needs feature `pool`.
    #[must_use]
    pub fn report(&self) -> Option<MemoryReport> {
        let pool = self.pool()?;
        let heap = pool.heap();
        let page = pool.stats().page_size;
        let usage = self.resource().usage();
        Some(MemoryReport { peak: peak(&heap), ..of_heap(&heap, page, usage) })
    }
}

/// Neighbours that are free, of one stream.
struct Run {
    stream: StreamId,
    start: u64,
    end: u64,
    touches_block: bool,
}

fn of_heap(heap: &Heap, page: u64, usage: Usage) -> MemoryReport {
    let runs = free_runs(&heap.parts);
    let mut by_stream = BTreeMap::<StreamId, StreamMemory>::new();
    let mut stranded = BTreeMap::<(StreamId, WhyStranded), u64>::new();
    for part in &heap.parts {
        let stream = part.stream;
        let memory = by_stream.entry(stream).or_insert(StreamMemory {
            stream,
            in_use: 0,
            free: 0,
            pending: 0,
            largest_free: 0,
        });
        match part.state {
            HeapState::InUse => memory.in_use += part.bytes,
            HeapState::Free => memory.free += part.bytes,
            _ => {
                memory.pending += part.bytes;
                *stranded.entry((stream, WhyStranded::Pending)).or_default() += part.bytes;
            }
        }
    }
    for run in &runs {
        let bytes = run.end - run.start;
        if let Some(memory) = by_stream.get_mut(&run.stream) {
            memory.largest_free = memory.largest_free.max(bytes);
        }
        let bytes = run.stranded(page);
        if bytes > 0 {
            *stranded.entry((run.stream, WhyStranded::BesideBlocks)).or_default() += bytes;
        }
    }
    let mut by_stream: Vec<_> = by_stream.into_values().collect();
    by_stream.sort_by_key(|memory| std::cmp::Reverse(memory.free));
    let free = by_stream.iter().map(|memory| memory.free).sum();
    let largest_free = by_stream.iter().map(|memory| memory.largest_free).max().unwrap_or(0);
    let fragmentation = if free == 0 { 0.0 } else { 1.0 - largest_free as f64 / free as f64 };
    let stranded = stranded.into_iter();
    let stranded = stranded.map(|((stream, why), bytes)| Stranded { stream, bytes, why }).collect();
    let by_tag = dmr_recorder::peak::by_tag(heap);
    MemoryReport {
        usage,
        fragmentation,
        free,
        largest_free,
        by_tag,
        by_stream,
        stranded,
        peak: None,
    }
}

/// Returns the runs of free parts without a gap, of parts that are sorted by address. A run is of
/// one stream's memory, which goes back to upstream as a whole.
fn free_runs(parts: &[HeapPart]) -> Vec<Run> {
    let mut runs = Vec::<Run>::new();
    let mut before: Option<&HeapPart> = None;
    for part in parts {
        let end = part.address + part.bytes;
        let is_behind = !part.is_first
            && before.is_some_and(|before| before.address + before.bytes == part.address);
        let is_free = part.state == HeapState::Free;
        let after_block = is_behind && before.is_some_and(|before| before.state != HeapState::Free);
        match runs.last_mut() {
            Some(run) if is_free && is_behind && run.end == part.address => {
                run.end = end;
            }
            last => {
                if let Some(run) = last
                    && is_behind
                    && run.end == part.address
                {
                    run.touches_block |= !is_free;
                }
                if is_free {
                    let stream = part.stream;
                    runs.push(Run { stream, start: part.address, end, touches_block: after_block });
                }
            }
        }
        before = Some(part);
    }
    runs
}

impl Run {
    /// Returns the bytes that can be neither moved nor returned: those outside of whole pages, or
    /// over segments all of it, if there is a block beside it.
    fn stranded(&self, page: u64) -> u64 {
        let bytes = self.end - self.start;
        match page {
            0 if self.touches_block => bytes,
            0 => 0,
            page => {
                let whole =
                    (self.end / page * page).saturating_sub(self.start.next_multiple_of(page));
                bytes - whole
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dmr_core::{AllocTag, StreamPoolId};

    use super::*;

    /// The driver may put one segment at the end of another.
    #[test]
    fn a_free_segment_beside_one_that_has_a_block_is_not_stranded() {
        const KIB: u64 = 1024;
        let stream = StreamId::from_parts(StreamPoolId::next().unwrap(), 0, 0).unwrap();
        let part = |address, bytes, state, is_first| {
            let tag = AllocTag::new("held");
            HeapPart { address, bytes, state, stream, tag, is_first }
        };
        let mut parts = vec![
            part(0, 4 * KIB, HeapState::InUse, true),
            part(4 * KIB, 4 * KIB, HeapState::Free, false),
            part(8 * KIB, 8 * KIB, HeapState::Free, true),
            part(16 * KIB, 8 * KIB, HeapState::InUse, true),
        ];
        let stranded = |parts: &[HeapPart]| -> Vec<u64> {
            free_runs(parts).iter().map(|run| run.stranded(0)).collect()
        };
        assert_eq!(stranded(&parts), [4 * KIB, 0]);
        // As one segment.
        parts.iter_mut().for_each(|part| part.is_first = part.address == 0);
        assert_eq!(stranded(&parts), [12 * KIB]);
    }
}
