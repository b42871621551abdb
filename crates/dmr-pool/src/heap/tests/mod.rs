//! Chunks cover their spans without gap or overlap, and what fits is found.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

mod pages;

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u32),
    /// Frees the n-th acquired chunk.
    Merge(usize),
    Release(usize),
    Flush,
    AddSegment(u32),
    RemoveFree,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![1_u32..40, 1_u32..5000, Just(1 << 16), 1_u32..(1 << 18)];
    prop_oneof![
        8 => size.prop_map(Step::Take),
        4 => any::<usize>().prop_map(Step::Merge),
        4 => any::<usize>().prop_map(Step::Release),
        1 => Just(Step::Flush),
        1 => (1_u32..(1 << 18)).prop_map(Step::AddSegment),
        1 => Just(Step::RemoveFree),
    ]
}

fn chunks_of(heap: &Heap) -> impl Iterator<Item = (u64, u32, bool)> {
    let all = heap.chunks.batch(0, usize::MAX, 1);
    all.map(|(_, chunk)| (chunk.address, chunk.units, chunk.state == State::Free))
}

/// The chunks are the spans, cut: no gap, no overlap, and no two free neighbours.
fn check(heap: &Heap, segments: &BTreeMap<u64, (u32, ChunkId)>, taken: &[Taken]) {
    let mut chunks: Vec<_> = chunks_of(heap).collect();
    chunks.sort_unstable();
    let mut at = 0;
    let mut free = 0;
    for (&start, &(units, _)) in segments {
        let (mut address, mut last_free) = (start, false);
        while address < start + u64::from(units) * UNIT {
            let (found, length, is_free) = chunks[at];
            assert_eq!(found, address, "a gap or an overlap");
            assert!(!(last_free && is_free), "two free neighbours at {address:#x}");
            free += if is_free { u64::from(length) } else { 0 };
            (address, last_free, at) = (address + u64::from(length) * UNIT, is_free, at + 1);
        }
        assert_eq!(address, start + u64::from(units) * UNIT, "a chunk crosses its span's end");
    }
    assert_eq!(at, chunks.len(), "a chunk outside of all spans");
    assert_eq!(free, heap.free_units());
    chunks.retain(|&(.., is_free)| !is_free);
    for &Taken { address, units, .. } in taken {
        assert!(chunks.contains(&(address, units, false)), "an acquired chunk is not free");
    }
    assert_eq!(chunks.len() - taken.len(), heap.quick.len(), "the others are on shelves");
    let largest = chunks_of(heap).filter(|&(.., is_free)| is_free).map(|(_, units, _)| units).max();
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
        let (mut segments, mut taken) = (BTreeMap::new(), Vec::<Taken>::new());
        let (mut clock, mut next) = (0, 1 << 20);
        for step in steps {
            clock += 1;
            match step {
                Step::Take(units) => {
                    let fits = |heap: &Heap| {
                        chunks_of(heap).any(|(_, have, free)| free && have >= units)
                    };
                    let fitted = fits(&heap);
                    let found = heap.take(units);
                    if found.is_none() {
                        prop_assert!(!fitted && !fits(&heap) && heap.quick.len() == 0);
                    }
                    if let Some(chunk) = found {
                        prop_assert!(chunk.units >= units);
                        prop_assert!(chunk.units - units <= units >> WORTH_SPLITTING);
                        prop_assert!(chunk.since < clock);
                        taken.push(chunk);
                    }
                }
                Step::Flush => {
                    prop_assert_eq!(heap.quick.len() > 0, heap.flush());
                }
                Step::Release(nth) if !taken.is_empty() => {
                    let chunk = taken.swap_remove(nth % taken.len());
                    if !heap.shelve(chunk.id, clock) {
                        heap.merge(chunk.id, clock);
                    }
                }
                Step::Merge(nth) if !taken.is_empty() => {
                    let chunk = taken.swap_remove(nth % taken.len());
                    let whole = heap.merge(chunk.id, clock);
                    let (address, units) = heap.range(whole);
                    prop_assert!(address <= chunk.address && units >= chunk.units);
                }
                Step::Release(_) | Step::Merge(_) => {}
                Step::AddSegment(units) => {
                    let first = heap.add_segment(next, units, clock);
                    segments.insert(next, (units, first));
                    // Spans may touch. They are not merged.
                    next += u64::from(units) * UNIT;
                }
                Step::RemoveFree => {
                    segments.retain(|_, &mut (_, first)| !heap.remove_segment(first));
                }
            }
            check(&heap, &segments, &taken);
        }
    }
}

#[test]
fn a_merged_chunk_became_free_when_the_last_of_its_parts_did() {
    let mut heap = Heap::default();
    heap.add_segment(0, 30, 1);
    let chunks: Vec<_> = (0..3).map(|_| heap.take(10).unwrap()).collect();
    for (chunk, since) in [(&chunks[0], 7), (&chunks[2], 9), (&chunks[1], 8)] {
        heap.merge(chunk.id, since);
    }
    assert_eq!(heap.take(30).unwrap().since, 9);
}

#[test]
fn a_chunk_that_is_shelved_serves_the_next_request_of_its_size_and_no_other() {
    let mut heap = Heap::default();
    heap.add_segment(0, 1 << 12, 1);
    let mut shelved: Vec<_> = (1..64).map(|units| heap.take(units).unwrap()).collect();
    shelved.retain(|chunk| heap.shelve(chunk.id, 2));
    assert!(shelved.len() >= 32, "{} sizes", shelved.len());
    for chunk in shelved {
        assert_eq!(heap.take_shelved(chunk.units + 64), None);
        assert_eq!(heap.take_shelved(chunk.units), Some(Taken { since: 2, ..chunk }));
    }
}
