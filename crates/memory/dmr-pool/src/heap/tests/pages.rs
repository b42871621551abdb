//! Windows and free pages against a search of all chunks.

use std::ops::Range;

use proptest::prelude::*;

use super::super::chunk::{Chunk, State};
use super::super::{ChunkId, Heap, UNIT};

/// Units of a page, and its bytes.
const PAGE_UNITS: u32 = 8;
const PAGE: u64 = PAGE_UNITS as u64 * UNIT;
const PAGES: u64 = 40;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Fills a window for this many units, and cuts off the rest.
    Place(u32),
    Acquire(u32),
    /// Frees the n-th acquired chunk.
    Free(usize),
    /// Makes holes of up to this many free pages: of those that became free at an even time, or of
    /// all.
    Unmap(u64, bool),
    /// Extends the n-th acquired chunk by a window behind it.
    PlaceAfter(usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let units = || prop_oneof![1..PAGE_UNITS, 1..6 * PAGE_UNITS, Just(2 * PAGE_UNITS)];
    prop_oneof![
        4 => units().prop_map(Step::Place),
        2 => units().prop_map(Step::Acquire),
        5 => any::<usize>().prop_map(Step::Free),
        3 => (1_u64..6, any::<bool>()).prop_map(|(pages, even)| Step::Unmap(pages, even)),
        1 => (any::<usize>(), units()).prop_map(|(nth, units)| Step::PlaceAfter(nth, units)),
    ]
}

fn chunks_of(heap: &Heap) -> Vec<(ChunkId, Chunk)> {
    let mut all: Vec<_> =
        heap.chunks.batch(0, usize::MAX, 1).map(|(id, &chunk)| (id, chunk)).collect();
    all.sort_unstable_by_key(|(_, chunk)| chunk.address);
    all
}

/// The missing pages, the bytes of the run and the start of the window that begins at `start`.
fn window_at(run: &[Chunk], start: u64, bytes: u64, blocked: u64) -> Option<(u64, u64, u64)> {
    let holds =
        |address: u64| run.iter().find(|chunk| (chunk.address..chunk.end()).contains(&address));
    let is_hole = |address| holds(address).map(|chunk| chunk.state == State::Hole);
    let start = if is_hole(start)? { start / PAGE * PAGE } else { start };
    let end = start + bytes;
    let end = if is_hole(end - 1)? { end.next_multiple_of(PAGE) } else { end };
    let units = (start..end).step_by(UNIT as usize);
    let holes = units.filter(|&address| is_hole(address) == Some(true)).collect::<Vec<_>>();
    if holes.iter().any(|address| address / PAGE * PAGE == blocked) {
        return None;
    }
    let bytes = run.last()?.end() - run.first()?.address;
    Some((holes.len() as u64 / u64::from(PAGE_UNITS), bytes, start))
}

fn cheapest_window(heap: &Heap, units: u32, blocked: u64) -> Option<(u64, u64, u64)> {
    let bytes = u64::from(units) * UNIT;
    let all: Vec<_> = chunks_of(heap).into_iter().map(|(_, chunk)| chunk).collect();
    let is_vacant = |chunk: &Chunk| matches!(chunk.state, State::Free | State::Hole);
    let runs = all.chunk_by(|a, b| is_vacant(a) && is_vacant(b));
    let windows = runs.filter(|run| is_vacant(&run[0])).flat_map(|run| {
        let starts = run.iter().flat_map(|chunk| {
            let back = chunk.end().checked_sub(bytes).filter(|_| chunk.state == State::Free);
            [Some(chunk.address), back].into_iter().flatten()
        });
        starts.filter_map(|start| window_at(run, start, bytes, blocked)).collect::<Vec<_>>()
    });
    windows.min()
}

fn whole_pages(chunk: &Chunk) -> Range<u64> {
    chunk.address.next_multiple_of(PAGE)..chunk.end() / PAGE * PAGE
}

/// Chunks cover the span, free neighbours and holes side by side are joined, holes are whole pages,
/// and the list of holes has all of them.
fn check(heap: &Heap) {
    let all = chunks_of(heap);
    let mut at = PAGE;
    let mut last = State::Unused;
    let mut holes = 0;
    for (_, chunk) in &all {
        assert_eq!(chunk.address, at, "a gap or an overlap");
        assert!(chunk.state == State::Acquired || chunk.state != last, "{:?} twice", chunk.state);
        if chunk.state == State::Hole {
            assert_eq!((chunk.address % PAGE, chunk.end() % PAGE), (0, 0));
            holes += 1;
        }
        at = chunk.end();
        last = chunk.state;
    }
    assert_eq!(at, PAGE + PAGES * PAGE);
    assert_eq!(heap.holes().count(), holes);
    assert!(heap.holes().all(|id| heap.is_hole(id)));
}

proptest! {
    #[test]
    fn the_cheapest_window_and_the_closest_free_pages_are_found(
        steps in prop::collection::vec(step(), 1..150),
        blocked in 1..PAGES,
    ) {
        let mut heap = Heap::default();
        heap.add_hole(PAGE, PAGES as u32 * PAGE_UNITS);
        let mut acquired = Vec::<ChunkId>::new();
        for (clock, step) in (1..).zip(steps) {
            // A page that cannot be mapped is in a hole.
            let is_in_hole = |(_, chunk): &(ChunkId, Chunk)| {
                chunk.state == State::Hole && (chunk.address..chunk.end()).contains(&(blocked * PAGE))
            };
            let blocked = if chunks_of(&heap).iter().any(is_in_hole) { blocked * PAGE } else { 0 };
            let is_blocked = |addresses: Range<u64>| addresses.contains(&blocked);
            match step {
                Step::Place(units) => {
                    heap.flush();
                    let expected = cheapest_window(&heap, units, blocked);
                    let found = heap.find_window(units, PAGE, is_blocked);
                    let missing = found.as_ref().map(|window| window.missing());
                    prop_assert_eq!(missing, expected.map(|(missing, ..)| missing));
                    let Some(window) = found else { continue };
                    if missing != Some(0) {
                        prop_assert_eq!(Some(window.cost()), expected);
                    }
                    let chunk = heap.claim(&window);
                    prop_assert!(heap.units(chunk) >= units);
                    if let Some(rest) = heap.cut_off(chunk, units) {
                        heap.merge(rest, clock);
                    }
                    acquired.push(chunk);
                }
                Step::Acquire(units) => acquired.extend(heap.acquire(units).map(|chunk| chunk.id)),
                Step::Free(nth) if !acquired.is_empty() => {
                    heap.merge(acquired.swap_remove(nth % acquired.len()), clock);
                }
                Step::Unmap(wanted, is_even) => {
                    let matches = |since: u64| !is_even || since.is_multiple_of(2);
                    let all = chunks_of(&heap);
                    let free = all.iter().filter(|(_, chunk)| chunk.state == State::Free);
                    let counts = free.filter(|(_, chunk)| matches(chunk.since)).map(|(_, chunk)| {
                        let pages = whole_pages(chunk);
                        pages.end.saturating_sub(pages.start) / PAGE
                    });
                    let counts: Vec<_> = counts.filter(|&count| count > 0).collect();
                    let enough = counts.iter().filter(|&&count| count >= wanted).min();
                    let expected = enough.or(counts.iter().max());
                    let found = heap.find_free_pages(wanted, PAGE, matches);
                    prop_assert_eq!(found.is_some(), expected.is_some());
                    let (Some(pages), Some(&expected)) = (found, expected) else { continue };
                    let (_, chunk) = all.iter().find(|(id, _)| *id == pages.chunk()).unwrap();
                    let whole = whole_pages(chunk);
                    prop_assert_eq!((whole.end - whole.start) / PAGE, expected);
                    let chunk = heap.acquire_pages(&pages);
                    let units = expected.min(wanted) * u64::from(PAGE_UNITS);
                    prop_assert_eq!(u64::from(heap.units(chunk)), units);
                    heap.release_hole(chunk);
                }
                Step::PlaceAfter(nth, units) if !acquired.is_empty() => {
                    let chunk = acquired[nth % acquired.len()];
                    let address = heap.addresses(chunk).start;
                    let before = heap.units(chunk);
                    let start = address + u64::from(before) * UNIT;
                    let window = heap.window_after(chunk, units, PAGE, is_blocked);
                    let Some(window) = window else { continue };
                    prop_assert_eq!(window.cost().2, start);
                    let claimed = heap.claim(&window);
                    heap.absorb(chunk, claimed);
                    if let Some(rest) = heap.cut_off(chunk, before + units) {
                        heap.merge(rest, clock);
                    }
                }
                Step::Free(_) | Step::PlaceAfter(..) => {}
            }
            check(&heap);
        }
    }
}
