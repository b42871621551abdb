//! Statistics of many threads: sums are exact when all is quiet, peaks within their bound.

#![cfg(feature = "statistics")]

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::statistics::{Statistics, StatisticsLayer, StatisticsResource};
use dmr_core::conformance::Harness;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, StreamId};
use dmr_testkit::fake::{FakeHarness, FakeResource};

const THREADS: usize = 8;
const TAGS: [AllocTag; 3] = [AllocTag::new("a"), AllocTag::new("b"), AllocTag::UNTAGGED];

type Counted = StatisticsResource<Arc<FakeResource>>;

fn harness(layer: StatisticsLayer) -> FakeHarness<Counted> {
    FakeHarness::wrapped(true, |fake, _| layer.layer(fake))
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

/// What the threads did and hold, added up the plain way.
#[derive(Default)]
struct Sums {
    allocated: u64,
    allocations: u64,
    frees: u64,
    held: Vec<DeviceBlock>,
}

/// Each thread allocates and frees; half of what it frees was allocated by its neighbour.
fn mixed(resource: &Counted, streams: [StreamId; 2]) -> Sums {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
    let sums = Mutex::new(Sums::default());
    std::thread::scope(|scope| {
        for (i, from) in receivers.into_iter().enumerate() {
            let to = senders[(i + 1) % THREADS].clone();
            let sums = &sums;
            scope.spawn(move || {
                let mut random = Random(i as u64 + 1);
                let mut done = Sums::default();
                for _ in 0..600 {
                    match random.below(8) {
                        0..3 => {
                            let (stream, tag) = (streams[random.below(2)], TAGS[random.below(3)]);
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
                // What the neighbour has not taken is held too.
                sums.held.extend(from.try_iter());
                drop(sums);
                // The neighbour may still send; keep the channel until all are done.
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
fn sums_are_exact_when_all_is_quiet_also_of_blocks_freed_on_other_threads() {
    let harness = harness(StatisticsLayer::new());
    let resource = harness.outermost();
    let sums = mixed(resource, harness.streams());
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
fn a_reading_while_threads_are_at_work_is_never_absurd() {
    let harness = harness(StatisticsLayer::new().with_peak_precision(10_000));
    let (resource, [x, _]) = (harness.outermost(), harness.streams());
    let (threads, each) = (4, 4000_u64);
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        for i in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..2000 {
                    let block = resource.allocate(each as usize, x, TAGS[i % 3]).unwrap();
                    resource.deallocate(block).unwrap();
                    resource.try_reap().unwrap();
                }
            });
        }
        barrier.wait();
        let (mut peak, mut total) = (0, 0);
        while total < threads as u64 * 2000 * each {
            let now = resource.snapshot();
            assert!(now.bytes.total >= total && now.bytes.peak >= peak, "{now}");
            (peak, total) = (now.bytes.peak, now.bytes.total);
            // In one reading a thread can be seen with a block it allocated and one it has freed.
            assert!(now.bytes.current <= 2 * threads as u64 * each, "{now}");
            let bound = threads as u64 * (each + 10_000);
            assert!(peak <= bound, "{peak} {bound}");
        }
    });
    assert_eq!(resource.snapshot().bytes.current, 0);
}

/// The true peak, counted with one lock around the call: the order of calls is then one order.
fn peaks(layer: StatisticsLayer, threads: usize, seed: u64) -> (u64, u64) {
    let harness = harness(layer);
    let (resource, [x, y]) = (harness.outermost(), harness.streams());
    let truth = Mutex::new((0_u64, 0_u64));
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for i in 0..threads {
            let (truth, barrier) = (&truth, &barrier);
            scope.spawn(move || {
                let mut random = Random(seed * 64 + i as u64 + 1);
                let mut held: Vec<DeviceBlock> = Vec::new();
                barrier.wait();
                for _ in 0..400 {
                    // Swarming: all grow for a while, then all shrink.
                    let mut truth = truth.lock().unwrap();
                    let grows = truth.0 < 1 << 20 && random.below(3) != 0;
                    if grows || held.is_empty() {
                        let bytes = 1 + random.below(9000);
                        held.push(resource.allocate(bytes, [x, y][i % 2], TAGS[0]).unwrap());
                        truth.0 += bytes as u64;
                        truth.1 = truth.1.max(truth.0);
                    } else {
                        let block = held.swap_remove(random.below(held.len()));
                        truth.0 -= block.bytes() as u64;
                        resource.deallocate(block).unwrap();
                        resource.try_reap().unwrap();
                    }
                    drop(truth);
                    if random.below(4) == 0 {
                        std::thread::yield_now();
                    }
                }
                for block in held {
                    let mut truth = truth.lock().unwrap();
                    truth.0 -= block.bytes() as u64;
                    resource.deallocate(block).unwrap();
                }
            });
        }
    });
    let (_, peak) = truth.into_inner().unwrap();
    (resource.snapshot().bytes.peak, peak)
}

#[test]
fn a_peak_of_several_threads_is_within_its_bound() {
    for (seed, precision) in (0..).zip([0, 1000, 20_000, 200_000, 0, 50_000]) {
        for threads in [2, 5] {
            let layer = StatisticsLayer::new().with_peak_precision(precision);
            let (counted, truth) = peaks(layer, threads, seed);
            let n = threads as u64;
            assert!(counted + (n - 1) * precision >= truth, "{counted} {truth} {precision}");
            assert!(counted <= truth + n * precision, "{counted} {truth} {precision}");
        }
    }
}

#[test]
fn peaks_that_were_reset_are_within_their_bound_again() {
    let precision = 4000;
    let harness = harness(StatisticsLayer::new().with_peak_precision(precision));
    let (resource, [x, _]) = (harness.outermost(), harness.streams());
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
    grow_and_shrink(100_000);
    let peak = resource.snapshot().bytes.peak;
    assert!(peak.abs_diff(130_000) <= 2 * precision, "{peak}");
    assert_eq!(resource.snapshot().by_tag[0].bytes.peak, peak);
    resource.deallocate(held).unwrap();
}

#[test]
fn threads_that_come_and_go_lose_nothing() {
    let harness = harness(StatisticsLayer::new());
    let (resource, [x, _]) = (harness.outermost(), harness.streams());
    let live = AtomicI64::new(0);
    for round in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let block = resource.allocate(1 + round, x, TAGS[1]).unwrap();
                if round % 2 == 0 {
                    resource.deallocate(block).unwrap();
                } else {
                    live.fetch_add(block.bytes() as i64, Ordering::Relaxed);
                }
            });
        });
    }
    let all = resource.snapshot();
    assert_eq!(all.bytes.current, live.into_inner().unsigned_abs());
    assert_eq!((all.allocations.total, all.frees), (200, 100));
}
