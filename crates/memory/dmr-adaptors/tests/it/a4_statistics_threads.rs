//! Statistics of many threads: sums and peaks are exact, and a snapshot is of one instant.

#![cfg(feature = "statistics")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::statistics::{Counter, Statistics, StatisticsLayer, StatisticsResource};
use dmr_core::conformance::Harness;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, StreamId};
use dmr_fake::{FakeHarness, FakeResource};
use dmr_testkit::SplitMix64;

const THREADS: usize = 8;
const TAGS: [AllocTag; 3] = [AllocTag::new("a"), AllocTag::new("b"), AllocTag::UNTAGGED];

type Counted = StatisticsResource<Arc<FakeResource>>;

fn harness() -> FakeHarness<Counted> {
    FakeHarness::wrapped(true, |fake, _| StatisticsLayer::new().layer(fake))
}

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0.next_u64() as usize % end
    }
}

/// The sums over all calls of the threads, and the blocks that they hold.
#[derive(Default)]
struct Sums {
    allocated: u64,
    allocations: u64,
    frees: u64,
    held: Vec<DeviceBlock>,
}

/// Runs threads that allocate and free, half of it blocks that their neighbour has allocated.
fn run_mixed(resource: &Counted, streams: [StreamId; 2]) -> Sums {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    let sums = Mutex::new(Sums::default());
    std::thread::scope(|scope| {
        for (i, from) in receivers.into_iter().enumerate() {
            let to = senders[(i + 1) % THREADS].clone();
            let sums = &sums;
            scope.spawn(move || {
                let mut random = Random(SplitMix64::new(i as u64));
                let mut done = Sums::default();
                for _ in 0..600 {
                    match random.below(8) {
                        0..3 => {
                            let stream = streams[random.below(2)];
                            let tag = TAGS[random.below(3)];
                            let bytes = 1 + random.below(3000);
                            let block = resource.allocate(bytes, stream, tag).unwrap();
                            done.allocated += bytes as u64;
                            done.allocations += 1;
                            if random.below(2) == 0 {
                                done.held.push(block);
                            } else {
                                to.send(block).unwrap();
                            }
                        }
                        3..5 if !done.held.is_empty() => {
                            let at = random.below(done.held.len());
                            resource.deallocate(done.held.swap_remove(at)).unwrap();
                            done.frees += 1;
                        }
                        5..7 => {
                            for block in from.try_iter().take(2) {
                                resource.deallocate(block).unwrap();
                                done.frees += 1;
                            }
                        }
                        _ => drop(resource.try_reap().unwrap()),
                    }
                }
                drop(to);
                let mut sums = sums.lock().unwrap();
                sums.allocated += done.allocated;
                sums.allocations += done.allocations;
                sums.frees += done.frees;
                sums.held.append(&mut done.held);
                // Blocks that the neighbour has not received are held, too.
                sums.held.extend(from.try_iter());
                drop(sums);
                // The neighbour may still send: the channel stays open until all threads have
                // ended.
                LEFT.lock().unwrap().push(from);
            });
        }
        drop(senders);
    });
    let mut sums = sums.into_inner().unwrap();
    for from in LEFT.lock().unwrap().drain(..) {
        sums.held.extend(from.try_iter());
    }
    sums
}

/// Receivers that outlive their thread. Used by one test at a time.
static LEFT: Mutex<Vec<mpsc::Receiver<DeviceBlock>>> = Mutex::new(Vec::new());

fn assert_agrees(statistics: &Statistics, sums: &Sums) {
    let live: u64 = sums.held.iter().map(|block| block.bytes() as u64).sum();
    assert_eq!((statistics.bytes.current, statistics.bytes.total), (live, sums.allocated));
    let blocks = (statistics.allocations.current, statistics.allocations.total, statistics.frees);
    assert_eq!(blocks, (sums.held.len() as u64, sums.allocations, sums.frees));
    for of_tag in &statistics.by_tag {
        let held = sums.held.iter().filter(|block| block.tag() == of_tag.tag);
        assert_eq!(of_tag.bytes.current, held.clone().map(|b| b.bytes() as u64).sum::<u64>());
        assert_eq!(of_tag.allocations.current, held.count() as u64);
    }
    for of_stream in &statistics.by_stream {
        let held = sums.held.iter().filter(|b| b.alloc_stream().slot() == of_stream.slot);
        assert_eq!(of_stream.bytes.current, held.clone().map(|b| b.bytes() as u64).sum::<u64>());
        assert_eq!(of_stream.allocations.current, held.count() as u64);
    }
    let total = |f: fn(&Statistics) -> u64| assert_eq!(f(statistics), sums.allocated);
    total(|s| s.by_tag.iter().map(|t| t.bytes.total).sum());
    total(|s| s.by_stream.iter().map(|t| t.bytes.total).sum());
}

#[test]
fn sums_are_exact_when_no_call_is_in_progress_also_of_blocks_freed_on_other_threads() {
    let harness = harness();
    let resource = harness.outermost();
    let sums = run_mixed(resource, harness.streams());
    assert_agrees(&resource.snapshot(), &sums);
    assert_eq!(resource.snapshot().bytes.current, resource.usage().live);
    let held = sums.held;
    for block in held {
        resource.deallocate(block).unwrap();
    }
    let end = resource.snapshot();
    assert_eq!((end.bytes.current, end.allocations.current), (0, 0));
    assert_eq!(end.frees, end.allocations.total);
    assert!(end.by_tag.iter().all(|t| t.bytes.current == 0 && t.frees == t.allocations.total));
}

#[test]
fn a_snapshot_is_of_one_instant_while_threads_allocate() {
    let harness = harness();
    let resource = harness.outermost();
    let streams = harness.streams();
    // Tags make snapshots long, so that most calls are made during one.
    for n in 0..500 {
        resource.allocate(0, streams[0], AllocTag::intern(&format!("tag {n}"))).unwrap_err();
    }
    let threads = 4;
    let calls = 1000;
    let each = 4000_u64;
    let at_work = AtomicU64::new(threads);
    std::thread::scope(|scope| {
        for i in 0..threads as usize {
            let at_work = &at_work;
            scope.spawn(move || {
                for _ in 0..calls {
                    let stream = streams[i % 2];
                    let tag = TAGS[i % 3];
                    let block = resource.allocate(each as usize, stream, tag).unwrap();
                    resource.deallocate(block).unwrap();
                    resource.try_reap().unwrap();
                }
                at_work.fetch_sub(1, Ordering::Release);
            });
        }
        let mut peak = 0;
        let mut total = 0;
        while at_work.load(Ordering::Acquire) > 0 {
            let now = resource.snapshot();
            assert!(now.bytes.total >= total && now.bytes.peak >= peak, "{:?}", now.bytes);
            peak = now.bytes.peak;
            total = now.bytes.total;
            assert!(now.bytes.current <= peak && peak <= threads * each, "{:?}", now.bytes);
            assert_eq!(now.allocations.total - now.frees, now.allocations.current);
            let tags = now.by_tag.iter().map(|t| [t.bytes.current, t.bytes.total, t.frees]);
            let streams = now.by_stream.iter().map(|s| [s.bytes.current, s.bytes.total, s.frees]);
            let sum = |sum: [u64; 3], one: [u64; 3]| std::array::from_fn(|i| sum[i] + one[i]);
            let overall = [now.bytes.current, now.bytes.total, now.frees];
            assert_eq!([tags.fold([0; 3], sum), streams.fold([0; 3], sum)], [overall; 2]);
        }
    });
    let end = resource.snapshot();
    let all = threads * calls;
    assert_eq!((end.bytes.current, end.bytes.total, end.frees), (0, all * each, all));
}

/// The peaks of bytes and of blocks: overall, of each tag of [`TAGS`], of each stream.
type Peaks = [[u64; 2]; 6];

fn counted_peaks(statistics: &Statistics, streams: [StreamId; 2]) -> Peaks {
    let peaks = |bytes: Counter, blocks: Counter| [bytes.peak, blocks.peak];
    let tag = |tag: AllocTag| {
        let found = statistics.by_tag.iter().find(|t| t.tag == tag);
        found.map_or([0; 2], |t| peaks(t.bytes, t.allocations))
    };
    let stream = |stream: StreamId| {
        let found = statistics.by_stream.iter().find(|s| s.slot == stream.slot());
        found.map_or([0; 2], |s| peaks(s.bytes, s.allocations))
    };
    let [a, b, c] = TAGS.map(tag);
    let [x, y] = streams.map(stream);
    [peaks(statistics.bytes, statistics.allocations), a, b, c, x, y]
}

/// Counters that the test keeps of its blocks.
#[derive(Debug, Default)]
struct Shadow {
    current: [[AtomicU64; 2]; 6],
    peak: [[AtomicU64; 2]; 6],
}

impl Shadow {
    fn indices(tag: usize, stream: usize) -> [usize; 3] {
        [0, 1 + tag, 4 + stream]
    }

    fn add(&self, bytes: u64, tag: usize, stream: usize) {
        for i in Self::indices(tag, stream) {
            for (unit, amount) in [bytes, 1].into_iter().enumerate() {
                let before = self.current[i][unit].fetch_add(amount, Ordering::SeqCst);
                self.peak[i][unit].fetch_max(before + amount, Ordering::SeqCst);
            }
        }
    }

    fn subtract(&self, bytes: u64, tag: usize, stream: usize) {
        for i in Self::indices(tag, stream) {
            for (unit, amount) in [bytes, 1].into_iter().enumerate() {
                self.current[i][unit].fetch_sub(amount, Ordering::SeqCst);
            }
        }
    }

    fn peaks(&self) -> Peaks {
        std::array::from_fn(|i| {
            std::array::from_fn(|unit| self.peak[i][unit].load(Ordering::SeqCst))
        })
    }
}

/// One shadow counts a block from before `allocate` until after `deallocate`, the other from after
/// `allocate` until before `deallocate`: every true peak is between theirs. With a lock around each
/// call they are equal.
fn peaks_of_a_random_program(seed: u64, one_call_at_a_time: bool) -> [Peaks; 3] {
    let harness = harness();
    let resource = harness.outermost();
    let streams = harness.streams();
    let least = Shadow::default();
    let most = Shadow::default();
    let turn = Mutex::new(());
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for i in 0..THREADS {
            let least = &least;
            let most = &most;
            let turn = &turn;
            let barrier = &barrier;
            scope.spawn(move || {
                let mut random = Random(SplitMix64::new(seed * 64 + i as u64));
                let mut held: Vec<(DeviceBlock, usize, usize)> = Vec::new();
                let free = |(block, tag, stream): (DeviceBlock, usize, usize)| {
                    let bytes = block.bytes() as u64;
                    least.subtract(bytes, tag, stream);
                    resource.deallocate(block).unwrap();
                    most.subtract(bytes, tag, stream);
                    resource.try_reap().unwrap();
                };
                barrier.wait();
                for step in 0..600 {
                    let turn = one_call_at_a_time.then(|| turn.lock().unwrap());
                    // All threads grow for a while, then all shrink.
                    let grows = (random.below(3) == 0) != ((step / 50) % 2 == 0);
                    if grows && held.len() < 24 || held.is_empty() {
                        let tag = random.below(3);
                        let stream = random.below(2);
                        let bytes = 1 + random.below(5000);
                        most.add(bytes as u64, tag, stream);
                        let block = resource.allocate(bytes, streams[stream], TAGS[tag]).unwrap();
                        least.add(bytes as u64, tag, stream);
                        held.push((block, tag, stream));
                    } else {
                        free(held.swap_remove(random.below(held.len())));
                    }
                    drop(turn);
                    if random.below(4) == 0 {
                        std::thread::yield_now();
                    }
                }
                for block in held {
                    let _turn = one_call_at_a_time.then(|| turn.lock().unwrap());
                    free(block);
                }
            });
        }
    });
    [least.peaks(), counted_peaks(&resource.snapshot(), streams), most.peaks()]
}

#[test]
fn every_peak_of_eight_threads_is_between_the_bounds_of_the_calls_in_progress() {
    for seed in 0..6 {
        let [least, counted, most] = peaks_of_a_random_program(seed, false);
        for i in 0..6 {
            for unit in 0..2 {
                let low = least[i][unit];
                let peak = counted[i][unit];
                let high = most[i][unit];
                assert!(low <= peak && peak <= high, "{seed} {i} {unit}: {low} {peak} {high}");
            }
        }
    }
}

#[test]
fn every_peak_of_eight_threads_is_exact_where_the_order_of_calls_is_known() {
    for seed in 0..4 {
        let [least, counted, most] = peaks_of_a_random_program(seed, true);
        assert_eq!((counted, counted), (least, most));
    }
}

#[test]
fn blocks_that_eight_threads_hold_at_once_are_the_peak() {
    let harness = harness();
    let resource = harness.outermost();
    let streams = harness.streams();
    let barrier = Barrier::new(THREADS);
    // Each phase: the bytes of the smallest block. Thread i holds i blocks of i times as many
    // bytes.
    let phases = [7_u64, 100, 1000, 999, 1, 1001, 500];
    let sum = |of: fn(u64) -> u64| (1..=THREADS as u64).map(of).sum::<u64>();
    let squares = sum(|i| i * i);
    let blocks = sum(|i| i);
    std::thread::scope(|scope| {
        for i in 1..=THREADS {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut highest = 0;
                for unit in phases {
                    let allocate = |_| {
                        let bytes = unit as usize * i;
                        resource.allocate(bytes, streams[i % 2], TAGS[i % 3]).unwrap()
                    };
                    let held: Vec<DeviceBlock> = (0..i).map(allocate).collect();
                    barrier.wait();
                    highest = highest.max(unit);
                    let now = resource.snapshot();
                    assert_eq!(
                        (now.bytes.current, now.bytes.peak),
                        (unit * squares, highest * squares)
                    );
                    assert_eq!((now.allocations.current, now.allocations.peak), (blocks, blocks));
                    let [_, of_tags @ .., x, y] = counted_peaks(&now, streams);
                    let of_tags =
                        of_tags.into_iter().fold([0; 2], |sum, p| [sum[0] + p[0], sum[1] + p[1]]);
                    assert_eq!(of_tags, [highest * squares, blocks]);
                    assert_eq!([x[0] + y[0], x[1] + y[1]], [highest * squares, blocks]);
                    barrier.wait();
                    for block in held {
                        resource.deallocate(block).unwrap();
                    }
                    resource.reap_pending().unwrap();
                    barrier.wait();
                }
            });
        }
    });
    assert_eq!(resource.snapshot().bytes.current, 0);
}

#[test]
fn peaks_that_were_reset_start_from_what_is_current() {
    let harness = harness();
    let resource = harness.outermost();
    let streams @ [x, _] = harness.streams();
    let grow_and_shrink = |bytes: usize| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let block = resource.allocate(bytes, x, TAGS[0]).unwrap();
                resource.deallocate(block).unwrap();
            });
        });
    };
    grow_and_shrink(1_000_000);
    let held = resource.allocate(30_000, x, TAGS[0]).unwrap();
    resource.reset_peaks();
    assert_eq!(counted_peaks(&resource.snapshot(), streams)[..2], [[30_000, 1]; 2]);
    grow_and_shrink(100_000);
    let [overall, of_tag, _, _, of_stream, _] = counted_peaks(&resource.snapshot(), streams);
    assert_eq!([overall, of_tag, of_stream], [[130_000, 2]; 3]);
    resource.deallocate(held).unwrap();
}

#[test]
fn threads_that_come_and_go_lose_nothing() {
    let harness = harness();
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let live = AtomicU64::new(0);
    for round in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let block = resource.allocate(1 + round, x, TAGS[1]).unwrap();
                if round % 2 == 0 {
                    resource.deallocate(block).unwrap();
                } else {
                    live.fetch_add(block.bytes() as u64, Ordering::Relaxed);
                }
            });
        });
    }
    let all = resource.snapshot();
    assert_eq!(all.bytes.current, live.into_inner());
    assert_eq!((all.allocations.total, all.frees), (200, 100));
}
