//! `StatisticsResource` counts allocations and frees, overall, by tag and by stream.

#![cfg(feature = "statistics")]

use std::collections::HashMap;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::statistics::{Counter, StatisticsLayer, StatisticsResource};
use dmr_core::conformance::{Harness, check_forwarding};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, StreamId};
use dmr_fake::FakeHarness;
use proptest::prelude::*;

mod conformance {
    use dmr_adaptors::ResourceLayer;
    use dmr_adaptors::statistics::StatisticsLayer;
    use dmr_fake::FakeHarness;

    dmr_core::conformance_tests!(FakeHarness::wrapped(true, |fake, _| {
        StatisticsLayer::new().layer(fake)
    }));
}

const A: AllocTag = AllocTag::new("a");
const B: AllocTag = AllocTag::new("b");

fn counted<R: DeviceMemoryResource>(upstream: R) -> StatisticsResource<R> {
    StatisticsLayer::new().layer(upstream)
}

fn counter(current: u64, peak: u64, total: u64) -> Counter {
    Counter { current, peak, total }
}

#[test]
fn every_method_is_forwarded() {
    for tracks in [true, false] {
        check_forwarding(&FakeHarness::new(tracks), counted).unwrap();
    }
}

#[test]
fn a_stack_describes_itself_in_one_line() {
    let harness = FakeHarness::wrapped(true, |fake, _| counted(counted(fake)));
    let upstream = format!("{:?}", harness.outermost().upstream().upstream());
    let text = harness.outermost().to_string();
    assert_eq!(text, format!("Statistics(Statistics({upstream}))"));
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn a_block_counts_with_its_requested_bytes_until_it_is_freed() {
    let harness = FakeHarness::wrapped(true, |fake, _| counted(fake));
    let resource = harness.outermost();
    let [x, y] = harness.streams();
    let first = resource.allocate(1000, x, A).unwrap();
    let second = resource.allocate(300, y, B).unwrap();
    resource.deallocate(first).unwrap();
    let third = resource.allocate(1, x, B).unwrap();
    resource.allocate(usize::MAX, x, A).unwrap_err();
    resource.allocate(0, x, AllocTag::UNTAGGED).unwrap_err();

    let all = resource.snapshot();
    assert_eq!((all.bytes, all.allocations), (counter(301, 1300, 1301), counter(2, 2, 3)));
    assert_eq!((all.frees, all.failures), (1, 2));
    let tags: Vec<_> =
        all.by_tag.iter().map(|t| (t.tag, t.bytes, t.allocations, t.frees, t.failures)).collect();
    let expected = [
        (B, counter(301, 301, 301), counter(2, 2, 2), 0, 0),
        (AllocTag::UNTAGGED, counter(0, 0, 0), counter(0, 0, 0), 0, 1),
        (A, counter(0, 1000, 1000), counter(0, 1, 1), 1, 1),
    ];
    assert_eq!(tags, expected);
    let streams: Vec<_> =
        all.by_stream.iter().map(|s| (s.slot, s.bytes, s.allocations, s.frees)).collect();
    let expected = [
        (y.slot(), counter(300, 300, 300), counter(1, 1, 1), 0),
        (x.slot(), counter(1, 1000, 1001), counter(1, 1, 2), 1),
    ];
    assert_eq!(streams, expected);
    // The freed block is retired, which the upstream resource reports.
    assert_eq!(resource.usage().retired, 1000);
    let text = all.to_string();
    assert!(
        text.starts_with("all: 301 B in 2 blocks, peak 1300 B in 2, total 1301 B in 3"),
        "{text}"
    );
    for block in [second, third] {
        resource.deallocate(block).unwrap();
    }
}

#[test]
fn a_block_whose_free_is_refused_is_still_counted() {
    let harness = FakeHarness::wrapped(true, |fake, _| counted(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let stranger = FakeHarness::new(true);
    let foreign = stranger.resource().allocate(77, stranger.streams()[0], A).unwrap();
    let refused = resource.deallocate(foreign).unwrap_err();
    let before = resource.snapshot();
    assert_eq!((before.frees, before.bytes.current), (0, 0));
    stranger.resource().deallocate(refused.block).unwrap();
    drop(resource.allocate(5, x, A).unwrap());
    assert_eq!(resource.snapshot().bytes.current, 5, "a dropped block leaks visibly");
}

#[test]
fn tags_with_one_name_are_one_tag_and_names_that_share_an_address_are_not() {
    let harness = FakeHarness::wrapped(true, |fake, _| counted(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let long: &'static str = "statistics::hash-table";
    let short = &long[..16];
    assert_eq!(short.as_ptr(), long.as_ptr());
    let made = AllocTag::intern(&["statistics::", "hash-table"].concat());
    let mut blocks = Vec::new();
    for round in 0..3 {
        blocks.push(resource.allocate(1, x, AllocTag::new(long)).unwrap());
        blocks.push(resource.allocate(10, x, AllocTag::new(short)).unwrap());
        blocks.push(resource.allocate(100, x, made).unwrap());
        for n in 0..500 {
            let tag = AllocTag::intern(&format!("statistics::{n}"));
            blocks.push(resource.allocate(1000 + round, x, tag).unwrap());
        }
    }
    let all = resource.snapshot();
    let of = |name: &str| all.by_tag.iter().find(|t| t.tag.name() == name).unwrap();
    assert_eq!(of(long).bytes.current, 303);
    assert_eq!(of(short).bytes.current, 30);
    assert_eq!(all.by_tag.len(), 502);
    for n in 0..500 {
        assert_eq!(of(&format!("statistics::{n}")).bytes, counter(3003, 3003, 3003));
    }
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    let all = resource.snapshot();
    assert!(all.by_tag.iter().all(|t| t.bytes.current == 0 && t.frees == t.allocations.total));
}

#[test]
fn a_block_that_is_freed_by_a_thread_local_destructor_is_counted() {
    use std::cell::RefCell;
    use std::sync::Arc;

    struct Keeps(Arc<dyn DeviceMemoryResource>, Option<DeviceBlock>);
    impl Drop for Keeps {
        fn drop(&mut self) {
            if let Some(block) = self.1.take() {
                self.0.deallocate(block).unwrap();
            }
        }
    }
    thread_local! {
        static FIRST: RefCell<Option<Keeps>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<Keeps>> = const { RefCell::new(None) };
    }

    let harness = FakeHarness::new(true);
    let resource = Arc::new(counted(Arc::clone(harness.fake())));
    let [x, _] = harness.streams();
    for _ in 0..3 {
        let resource = Arc::clone(&resource);
        // One of the two is freed after every other thread-local, whatever the order of
        // destructors.
        std::thread::spawn(move || {
            FIRST.with(|_| ());
            let keeps = |bytes| {
                let block = resource.allocate(bytes, x, A).unwrap();
                Keeps(resource.clone(), Some(block))
            };
            let one = keeps(10);
            let other = keeps(20);
            LAST.with(|last| *last.borrow_mut() = Some(other));
            FIRST.with(|first| *first.borrow_mut() = Some(one));
        })
        .join()
        .unwrap();
    }
    let all = resource.snapshot();
    assert_eq!((all.bytes.current, all.bytes.total, all.frees), (0, 90, 6));
}

/// The counters of one thread, computed the plain way.
#[derive(Default)]
struct Model {
    all: Counter,
    by_tag: HashMap<AllocTag, Counter>,
    by_stream: HashMap<usize, Counter>,
}

impl Model {
    fn add(&mut self, block: &DeviceBlock) {
        let bytes = block.bytes() as u64;
        for counter in self.counters(block) {
            counter.current += bytes;
            counter.total += bytes;
            counter.peak = counter.peak.max(counter.current);
        }
    }

    fn remove(&mut self, block: &DeviceBlock) {
        let bytes = block.bytes() as u64;
        self.counters(block).into_iter().for_each(|counter| counter.current -= bytes);
    }

    fn counters(&mut self, block: &DeviceBlock) -> [&mut Counter; 3] {
        let by_stream = self.by_stream.entry(block.alloc_stream().slot()).or_default();
        [&mut self.all, self.by_tag.entry(block.tag()).or_default(), by_stream]
    }

    fn reset(&mut self) {
        let counters = self.by_tag.values_mut().chain(self.by_stream.values_mut());
        counters.chain([&mut self.all]).for_each(|counter| counter.peak = counter.current);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { bytes: usize, tag: usize, stream: usize },
    Free(prop::sample::Index),
    ResetPeaks,
}

fn step() -> impl Strategy<Value = Step> {
    let allocate = (1..40_000_usize, 0..3_usize, 0..2_usize)
        .prop_map(|(bytes, tag, stream)| Step::Allocate { bytes, tag, stream });
    prop_oneof![
        8 => allocate,
        8 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => Just(Step::ResetPeaks),
    ]
}

proptest! {
    #[test]
    fn with_one_thread_every_number_is_exact_at_every_reading(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let harness = FakeHarness::wrapped(true, |fake, _| counted(fake));
        let resource = harness.outermost();
        let streams = harness.streams();
        let tags = [A, B, AllocTag::UNTAGGED];
        let mut model = Model::default();
        let mut blocks = Vec::<DeviceBlock>::new();
        for step in steps {
            match step {
                Step::Allocate { bytes, tag, stream } => {
                    let block = resource.allocate(bytes, streams[stream], tags[tag]).unwrap();
                    model.add(&block);
                    blocks.push(block);
                }
                Step::Free(index) if !blocks.is_empty() => {
                    let block = blocks.swap_remove(index.index(blocks.len()));
                    model.remove(&block);
                    resource.deallocate(block).unwrap();
                    resource.reap_pending().unwrap();
                }
                Step::Free(_) => {}
                Step::ResetPeaks => {
                    resource.reset_peaks();
                    model.reset();
                }
            }
            let all = resource.snapshot();
            prop_assert_eq!(all.bytes, model.all);
            prop_assert_eq!(all.allocations.current, blocks.len() as u64);
            prop_assert_eq!(all.allocations.total - all.frees, blocks.len() as u64);
            let by_tag: HashMap<_, _> = all.by_tag.iter().map(|t| (t.tag, t.bytes)).collect();
            prop_assert_eq!(&by_tag, &model.by_tag);
            let by_stream: HashMap<_, _> = all.by_stream.iter().map(|s| (s.slot, s.bytes)).collect();
            prop_assert_eq!(&by_stream, &model.by_stream);
        }
    }
}

#[test]
fn the_default_stream_is_counted_under_its_slot() {
    let harness = FakeHarness::wrapped(true, |fake, _| counted(fake));
    let resource = harness.outermost();
    let block = resource.allocate(9, StreamId::DEFAULT, A).unwrap();
    let slot = block.alloc_stream().slot();
    assert_eq!(resource.snapshot().by_stream[0].slot, slot);
    resource.deallocate(block).unwrap();
}
