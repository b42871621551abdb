//! Chunks cover their spans without gap or overlap, and what fits is found.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

mod pages;

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(u32),
    /// Frees the n-th acquired chunk.
    Merge(usize),
    Release(usize),
    ReleaseForReuse(usize),
    Flush,
    AddSegment(u32),
    RemoveFree,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![1_u32..40, 1_u32..5000, Just(1 << 16), 1_u32..(1 << 18)];
    prop_oneof![
        8 => size.prop_map(Step::Acquire),
        4 => any::<usize>().prop_map(Step::Merge),
        4 => any::<usize>().prop_map(Step::Release),
        4 => any::<usize>().prop_map(Step::ReleaseForReuse),
        1 => Just(Step::Flush),
        1 => (1_u32..(1 << 18)).prop_map(Step::AddSegment),
        1 => Just(Step::RemoveFree),
    ]
}

fn chunks_of(heap: &Heap) -> impl Iterator<Item = (u64, u32, bool)> {
    let all = heap.chunks.batch(0, usize::MAX, 1);
    all.map(|(_, chunk)| (chunk.address, chunk.units, chunk.state == State::Free))
}

fn largest_of(heap: &Heap) -> u32 {
    chunks_of(heap).filter(|&(.., is_free)| is_free).map(|(_, units, _)| units).max().unwrap_or(0)
}

/// The chunks are the spans, cut: no gap, no overlap, and no two free neighbours.
fn check(heap: &Heap, segments: &BTreeMap<u64, (u32, ChunkId)>, acquired: &[AcquiredChunk]) {
    let mut chunks: Vec<_> = chunks_of(heap).collect();
    chunks.sort_unstable();
    let mut at = 0;
    let mut free = 0;
    for (&start, &(units, _)) in segments {
        let mut address = start;
        let mut last_free = false;
        while address < start + u64::from(units) * UNIT {
            let (found, length, is_free) = chunks[at];
            assert_eq!(found, address, "a gap or an overlap");
            assert!(!(last_free && is_free), "two free neighbours at {address:#x}");
            free += if is_free { u64::from(length) } else { 0 };
            address += u64::from(length) * UNIT;
            last_free = is_free;
            at += 1;
        }
        assert_eq!(address, start + u64::from(units) * UNIT, "a chunk crosses its span's end");
    }
    assert_eq!(at, chunks.len(), "a chunk outside of all spans");
    assert_eq!(free, heap.free_units());
    chunks.retain(|&(.., is_free)| !is_free);
    for &AcquiredChunk { address, units, .. } in acquired {
        assert!(chunks.contains(&(address, units, false)), "an acquired chunk is not free");
    }
    let recent = usize::from(heap.recent.id().is_some());
    let unmerged = heap.quick.len() + recent;
    assert_eq!(chunks.len() - acquired.len(), unmerged, "the others are on shelves");
    let free = chunks_of(heap).filter(|&(.., is_free)| is_free).map(|(_, units, _)| units);
    let largest = free.chain(heap.recent.id().map(|id| heap.merged_units(id))).max();
    let is_best = |id| heap.is_best(id, heap.units(id));
    assert!(heap.recent.best().is_none_or(is_best), "another chunk fits better by now");
    let hint = heap.largest();
    assert_eq!(hint == 0, largest.is_none());
    assert!(hint <= largest.unwrap_or(0) && Bin::of(hint.max(1)) == Bin::of(largest.unwrap_or(1)));
}

proptest! {
    #[test]
    fn chunks_cover_the_segments_and_what_fits_is_found(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut heap = Heap::default();
        let mut segments = BTreeMap::new();
        let mut acquired = Vec::<AcquiredChunk>::new();
        let mut clock = 0;
        let mut next = 1 << 20;
        for step in steps {
            clock += 1;
            if !matches!(step, Step::Acquire(_) | Step::ReleaseForReuse(_)) {
                let reach = heap.recent.id().map(|id| heap.merged_units(id));
                heap.merge_recent();
                prop_assert!(reach <= Some(largest_of(&heap)), "the recent chunk is one free chunk");
            }
            match step {
                Step::Acquire(units) => {
                    let fits = |heap: &Heap| {
                        largest_of(heap) >= units
                    };
                    let fitted = fits(&heap);
                    let found = heap.acquire(units);
                    if found.is_none() {
                        prop_assert!(!fitted && !fits(&heap));
                        prop_assert!(heap.quick.len() == 0 && heap.recent.id().is_none());
                    }
                    if let Some(chunk) = found {
                        prop_assert!(chunk.units >= units);
                        prop_assert!(chunk.units - units <= units >> WORTH_SPLITTING);
                        prop_assert!(chunk.since < clock);
                        acquired.push(chunk);
                    }
                }
                Step::Flush => {
                    prop_assert_eq!(heap.quick.len() > 0, heap.flush());
                }
                Step::Release(nth) if !acquired.is_empty() => {
                    let chunk = acquired.swap_remove(nth % acquired.len());
                    heap.release(chunk.id, clock);
                }
                Step::ReleaseForReuse(nth) if !acquired.is_empty() => {
                    let chunk = acquired.swap_remove(nth % acquired.len());
                    release_for_reuse(&mut heap, chunk, clock);
                }
                Step::Merge(nth) if !acquired.is_empty() => {
                    let chunk = acquired.swap_remove(nth % acquired.len());
                    let whole = heap.merge(chunk.id, clock);
                    let address = heap.addresses(whole).start;
                    let units = heap.units(whole);
                    prop_assert!(address <= chunk.address && units >= chunk.units);
                }
                Step::Release(_) | Step::ReleaseForReuse(_) | Step::Merge(_) => {}
                Step::AddSegment(units) => {
                    let first = heap.add_segment(next, units, false, clock);
                    segments.insert(next, (units, first));
                    // Spans may touch. They are not merged.
                    next += u64::from(units) * UNIT;
                }
                Step::RemoveFree => {
                    segments.retain(|_, &mut (_, first)| !heap.remove_span(first));
                }
            }
            check(&heap, &segments, &acquired);
        }
    }
}

#[test]
fn a_merged_chunk_became_free_when_the_last_of_its_parts_did() {
    let mut heap = Heap::default();
    heap.add_segment(0, 30, false, 1);
    let chunks: Vec<_> = (0..3).map(|_| heap.acquire(10).unwrap()).collect();
    for (chunk, since) in [(&chunks[0], 7), (&chunks[2], 9), (&chunks[1], 8)] {
        heap.merge(chunk.id, since);
    }
    assert_eq!(heap.acquire(30).unwrap().since, 9);
}

#[test]
fn a_chunk_that_is_shelved_serves_the_next_request_of_its_size_and_no_other() {
    let mut heap = Heap::default();
    heap.add_segment(0, 1 << 12, false, 1);
    let mut shelved: Vec<_> = (1..64).map(|units| heap.acquire(units).unwrap()).collect();
    shelved.retain(|chunk| {
        heap.release(chunk.id, 2);
        heap.quick.contains(chunk.units, chunk.id)
    });
    assert!(shelved.len() >= 32, "{} sizes", shelved.len());
    for chunk in shelved {
        assert!(!heap.quick.has(chunk.units + 64));
        let served = heap.acquire(chunk.units);
        assert_eq!(served, Some(AcquiredChunk { since: 2, ..chunk }));
    }
}

fn release_for_reuse(heap: &mut Heap, chunk: AcquiredChunk, since: u64) {
    let AcquiredChunk { id, address, units, .. } = chunk;
    let tag = AllocTag::UNTAGGED;
    heap.release_for_reuse(units, WarmChunk { id, address, since, slot: None, tag });
}

/// A heap of three chunks of these sizes, and a fourth; all acquired.
fn four(sizes: [u32; 3]) -> (Heap, [AcquiredChunk; 4]) {
    let mut heap = Heap::default();
    heap.add_segment(0, sizes.iter().sum::<u32>() + 100, false, 1);
    let [a, b, c] = sizes.map(|units| heap.acquire(units).unwrap());
    let last = heap.acquire(100).unwrap();
    (heap, [a, b, c, last])
}

#[test]
fn the_recent_chunk_serves_the_next_request_of_its_size_without_being_merged() {
    let (mut heap, [_, b, c, _]) = four([2000, 5000, 3000]);
    heap.merge(c.id, 2);
    release_for_reuse(&mut heap, b, 3);
    assert!(heap.largest() > 7900, "others can have it with its neighbour");
    assert_eq!(heap.acquire(5000), Some(AcquiredChunk { since: 3, ..b }));
    assert_eq!(heap.acquire(3000).unwrap().since, 2, "its neighbour has stayed as it was");
}

#[test]
fn the_recent_chunk_is_merged_where_another_one_fits_better() {
    let (mut heap, [_, b, c, _]) = four([2000, 5000, 3000]);
    heap.merge(c.id, 2);
    heap.add_segment(1 << 30, 5001, false, 2);
    release_for_reuse(&mut heap, b, 3);
    assert_eq!(heap.acquire(5000).map(|chunk| chunk.address), Some(1 << 30));
    assert_eq!(heap.acquire(8000).map(|chunk| chunk.id), Some(b.id), "with its neighbour");
}

#[test]
fn the_recent_chunk_is_merged_where_a_request_would_be_cut_from_the_chunk_before_it() {
    let (mut heap, [a, b, ..]) = four([2000, 5000, 3000]);
    heap.merge(a.id, 2);
    release_for_reuse(&mut heap, b, 3);
    assert_eq!(heap.acquire(5000).map(|chunk| chunk.address), Some(a.address));
}

/// Releases a chunk and acquires it again.
fn acquire_again(heap: &mut Heap, chunk: AcquiredChunk) {
    release_for_reuse(heap, chunk, 3);
    assert_eq!(heap.acquire(chunk.units).map(|again| again.id), Some(chunk.id));
}

#[test]
fn a_chunk_that_was_recent_is_merged_once_another_one_fits_better() {
    let (mut heap, [_, b, c, last]) = four([2000, 50_000, 10_000]);
    heap.merge(c.id, 2);
    heap.add_segment(1 << 30, 60_050, false, 2);
    acquire_again(&mut heap, b);
    // Its neighbour grows and stays where it is in its bin.
    heap.merge(last.id, 4);
    release_for_reuse(&mut heap, b, 5);
    assert_eq!(heap.acquire(50_000).map(|chunk| chunk.address), Some(1 << 30));
}

#[test]
fn a_chunk_that_was_recent_is_seen_in_the_hint_when_it_is_free_again() {
    let (mut heap, [_, b, ..]) = four([2000, 5000, 3000]);
    acquire_again(&mut heap, b);
    heap.clear_changed();
    release_for_reuse(&mut heap, b, 4);
    assert!(heap.has_changed() && heap.largest() > 0);
}
