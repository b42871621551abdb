//! `FailureCallbackResource` reaps, calls its callbacks in order and retries, whatever they do.

#![cfg(feature = "callbacks")]

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::scripted::Scripted;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::callbacks::{FailureCallbackLayer, FailureCallbackResource, Response};
use dmr_core::conformance::{Harness, check_forwarding};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, StreamId, Usage};
use dmr_fake::{DEVICE_BYTES, FakeHarness, FakeResource};

mod conformance {
    use dmr_adaptors::ResourceLayer;
    use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
    use dmr_fake::FakeHarness;

    dmr_core::conformance_tests!(FakeHarness::wrapped(true, |fake, _| {
        FailureCallbackLayer::new().with_callback(|_| Response::Decline).layer(fake)
    }));
}

const TAG: AllocTag = AllocTag::new("callbacks");
const ALL: usize = DEVICE_BYTES;

type Rescued = FailureCallbackResource<Arc<FakeResource>>;

fn harness(layer: FailureCallbackLayer) -> FakeHarness<Arc<Rescued>> {
    FakeHarness::wrapped(true, |fake, _| Arc::new(layer.layer(fake)))
}

fn no_memory() -> ResourceError {
    ResourceError::out_of_memory(1, 0, (0, 0), &Usage::default())
}

fn no_budget() -> ResourceError {
    ResourceError::out_of_budget(TAG, 1, 1, 0, 0, Vec::new())
}

fn is_out_of_memory(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. })
}

/// Blocks that a callback can free, and the stack that it is a part of, which is set after the
/// stack is made.
#[derive(Debug, Default)]
struct Spill {
    resource: OnceLock<Arc<Rescued>>,
    blocks: Mutex<Vec<DeviceBlock>>,
}

impl Spill {
    /// Sets the stack.
    fn on(&self, harness: &FakeHarness<Arc<Rescued>>) -> Arc<Rescued> {
        self.resource.set(Arc::clone(harness.outermost())).unwrap();
        Arc::clone(harness.outermost())
    }

    fn resource(&self) -> &Rescued {
        self.resource.get().unwrap()
    }

    fn keep(&self, block: DeviceBlock) {
        self.blocks.lock().unwrap().push(block);
    }

    /// Frees one block through the whole stack.
    fn one(&self) -> Response {
        let Some(block) = self.blocks.lock().unwrap().pop() else { return Response::Decline };
        self.resource().deallocate(block).unwrap();
        Response::Retry
    }
}

#[test]
fn every_method_is_forwarded() {
    for tracks in [true, false] {
        let layer = FailureCallbackLayer::new();
        check_forwarding(&FakeHarness::new(tracks), |spy| layer.layer(spy)).unwrap();
    }
}

#[test]
fn a_stack_describes_itself_in_one_line() {
    let layer = FailureCallbackLayer::new().with_callback(|_| Response::Decline);
    assert_eq!(format!("{layer:?}"), "FailureCallbackLayer(1 callbacks, waits: true)");
    let harness = harness(layer);
    let text = format!("FailureCallbacks(1, {:?})", harness.fake());
    assert_eq!(harness.outermost().to_string(), text);
    assert_eq!(Arc::strong_count(harness.outermost().upstream()), 2);
}

#[test]
fn freed_memory_is_reaped_before_a_callback_is_called() {
    let harness = FakeHarness::new(false);
    let [x, y] = harness.streams();
    let called = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&called);
    let layer = FailureCallbackLayer::new().with_callback(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Response::Decline
    });
    let resource = layer.layer(Scripted::new(Arc::clone(harness.fake())));
    let first = resource.allocate(1000, x, TAG).unwrap();
    harness.fill(x, &first, 1).unwrap();
    resource.deallocate(first).unwrap();
    (0..2).for_each(|_| resource.upstream().fail("allocate", no_memory()));
    let second = resource.allocate(10, y, TAG).unwrap();
    assert_eq!((called.load(Ordering::Relaxed), resource.usage().retired), (0, 0));
    resource.deallocate(second).unwrap();
}

#[test]
fn without_waiting_work_in_flight_is_left_alone() {
    let harness = FakeHarness::new(false);
    let [x, y] = harness.streams();
    let layer = FailureCallbackLayer::new().with_waiting(false);
    let resource = layer.layer(Scripted::new(Arc::clone(harness.fake())));
    let first = resource.allocate(1000, x, TAG).unwrap();
    harness.fill(x, &first, 1).unwrap();
    resource.deallocate(first).unwrap();
    resource.upstream().calls();
    (0..2).for_each(|_| resource.upstream().fail("allocate", no_memory()));
    assert_eq!(resource.allocate(10, y, TAG).unwrap_err(), no_memory());
    assert_eq!(resource.upstream().calls(), ["allocate", "try_reap", "allocate"]);
    assert_eq!(resource.usage().retired, 1000);
    let second = resource.allocate(10, y, TAG).unwrap();
    resource.deallocate(second).unwrap();
}

#[test]
fn reaping_comes_first_then_waiting_then_the_callbacks() {
    let harness = FakeHarness::new(false);
    let streams = harness.streams();
    let called = Arc::new(Mutex::new(Vec::new()));
    let writes = |name: &'static str, retries: u32| {
        let called = Arc::clone(&called);
        move |failure: &dmr_adaptors::callbacks::AllocationFailure<'_>| {
            assert_eq!((failure.bytes, failure.tag, failure.device_ordinal), (10, TAG, 0));
            let error = matches!(failure.error, ResourceError::OutOfBudget { .. });
            called.lock().unwrap().push((name, failure.calls, failure.total_calls, error));
            if failure.calls <= retries { Response::Retry } else { Response::Decline }
        }
    };
    let layer = FailureCallbackLayer::new()
        .with_callback(writes("first", 0))
        .with_callback(writes("second", 2))
        .with_callback(writes("third", 1));
    let resource = layer.layer(Scripted::new(Arc::clone(harness.fake())));
    let scripted = resource.upstream();

    // All callbacks decline in the end: the last error is returned.
    for n in 0..12 {
        scripted.fail("allocate", if n % 2 == 0 { no_memory() } else { no_budget() });
    }
    let error = resource.allocate(10, streams[0], TAG).unwrap_err();
    assert_eq!(error, no_budget());
    let hard = ["allocate", "try_reap", "allocate", "reap_pending", "allocate"];
    assert_eq!(scripted.calls(), [hard, hard, hard, hard].concat());
    let expected = [
        ("first", 1, 1, false),
        ("second", 1, 2, false),
        ("second", 2, 3, true),
        ("second", 3, 4, false),
        ("third", 1, 5, false),
        ("third", 2, 6, true),
    ];
    assert_eq!(*called.lock().unwrap(), expected);
    called.lock().unwrap().clear();

    // The fifth attempt succeeds, after the second callback has returned `Retry` once.
    for _ in 0..4 {
        scripted.fail("allocate", no_memory());
    }
    let block = resource.allocate(10, streams[0], TAG).unwrap();
    assert_eq!(scripted.calls(), [&hard[..], &hard[..3]].concat());
    assert_eq!(called.lock().unwrap().len(), 2);
    resource.deallocate(block).unwrap();
}

#[test]
fn other_errors_are_returned_at_once() {
    let harness = FakeHarness::new(false);
    let stream = harness.streams()[0];
    let called = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&called);
    let layer = FailureCallbackLayer::new().with_callback(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Response::Retry
    });
    let resource = layer.layer(Scripted::new(Arc::clone(harness.fake())));
    let lost = ResourceError::device_lost(0, "cuMemAllocAsync", 719);
    resource.upstream().fail("allocate", lost.clone());
    assert_eq!(resource.allocate(10, stream, TAG).unwrap_err(), lost);
    assert_eq!(resource.upstream().calls(), ["allocate"]);
    // Also when the device is lost while a rescue is under way.
    (0..3).for_each(|_| resource.upstream().fail("allocate", no_memory()));
    resource.upstream().fail("allocate", lost.clone());
    assert_eq!(resource.allocate(10, stream, TAG).unwrap_err(), lost);
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

#[test]
fn reaping_that_fails_does_not_stop_the_rescue() {
    let harness = FakeHarness::new(false);
    let resource = FailureCallbackLayer::new().layer(Scripted::new(Arc::clone(harness.fake())));
    let wrong = ResourceError::driver("cuEventQuery", 999, "CUDA_ERROR_UNKNOWN", 0);
    resource.upstream().fail("try_reap", wrong.clone());
    resource.upstream().fail("reap_pending", wrong);
    (0..2).for_each(|_| resource.upstream().fail("allocate", no_memory()));
    let block = resource.allocate(10, harness.streams()[0], TAG).unwrap();
    resource.deallocate(block).unwrap();
}

#[test]
fn a_callback_may_free_allocate_and_reap_through_the_stack_it_is_in() {
    let spill = Arc::new(Spill::default());
    let uses = Arc::clone(&spill);
    let depth = Arc::new(AtomicUsize::new(0));
    let deepest = Arc::clone(&depth);
    let harness = harness(FailureCallbackLayer::new().with_callback(move |failure| {
        let now = deepest.fetch_add(1, Ordering::Relaxed);
        assert_eq!(now, 0, "a callback is not called inside itself");
        let resource = uses.resource();
        let stream = failure.stream;
        // An allocation inside the callback fails without a call of the callback.
        let error = resource.allocate(failure.bytes, stream, failure.tag).unwrap_err();
        assert!(is_out_of_memory(&error));
        resource.reap_pending().unwrap();
        let response = uses.one();
        resource.try_reap().unwrap();
        deepest.fetch_sub(1, Ordering::Relaxed);
        response
    }));
    let [x, y] = harness.streams();
    let stack = spill.on(&harness);
    for _ in 0..4 {
        spill.keep(stack.allocate(ALL / 4, x, TAG).unwrap());
    }
    let block = stack.allocate(ALL / 2, y, TAG).unwrap();
    assert_eq!(depth.load(Ordering::Relaxed), 0);
    assert_eq!(stack.callback_panics(), 0);
    assert_eq!(spill.blocks.lock().unwrap().len(), 2, "no more was spilled than was needed");
    assert_eq!(stack.usage().live, ALL as u64);
    stack.deallocate(block).unwrap();
}

#[test]
fn a_callback_that_panics_declines_and_is_called_again_for_the_next_allocation() {
    let spill = Arc::new(Spill::default());
    let uses = Arc::clone(&spill);
    let panics = FailureCallbackLayer::new().with_callback(|_| panic!("a callback that panics"));
    let harness = harness(panics.with_callback(move |_| uses.one()));
    let [x, _] = harness.streams();
    let stack = spill.on(&harness);
    for round in 1..=3 {
        spill.keep(stack.allocate(ALL, x, TAG).unwrap());
        let block = stack.allocate(ALL, x, TAG).unwrap();
        assert_eq!(stack.callback_panics(), round);
        assert_eq!(stack.usage().live, ALL as u64);
        stack.deallocate(block).unwrap();
    }
    let block = stack.allocate(ALL, x, TAG).unwrap();
    assert!(is_out_of_memory(&stack.allocate(1, x, TAG).unwrap_err()));
    stack.deallocate(block).unwrap();
    stack.reap_pending().unwrap();
    assert_eq!(stack.usage().outstanding(), 0);
}

/// The payload of a callback's panic is the program's value: its drop may panic, too.
#[test]
fn a_callback_declines_if_dropping_its_panic_payload_panics() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("a payload that panics");
        }
    }
    let panics = FailureCallbackLayer::new();
    let harness = harness(panics.with_callback(|_| std::panic::panic_any(PanicsOnDrop)));
    let [x, _] = harness.streams();
    let stack = harness.outermost();
    let block = stack.allocate(ALL, x, TAG).unwrap();
    assert!(is_out_of_memory(&stack.allocate(1, x, TAG).unwrap_err()));
    assert_eq!(stack.callback_panics(), 1);
    stack.deallocate(block).unwrap();
}

#[test]
fn two_resources_on_one_thread_each_call_their_own_callbacks() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let writes = |name: &'static str| {
        let called = Arc::clone(&called);
        FailureCallbackLayer::new().with_waiting(false).with_callback(move |_| {
            called.lock().unwrap().push(name);
            Response::Decline
        })
    };
    let harness =
        FakeHarness::wrapped(true, |fake, _| writes("outer").layer(writes("inner").layer(fake)));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let block = resource.allocate(ALL, x, TAG).unwrap();
    resource.allocate(1, x, TAG).unwrap_err();
    // The outer resource retries after reaping, so the inner one calls its callback again.
    assert_eq!(*called.lock().unwrap(), ["inner", "inner", "outer"]);
    resource.deallocate(block).unwrap();
    drop(harness);
    // A clone of a layer has the same callbacks, and makes another resource.
    called.lock().unwrap().clear();
    let layer = writes("cloned");
    let harness = FakeHarness::wrapped(true, |fake, _| layer.clone().layer(layer.layer(fake)));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let block = resource.allocate(ALL, x, TAG).unwrap();
    resource.allocate(1, x, TAG).unwrap_err();
    assert_eq!(*called.lock().unwrap(), ["cloned"; 3]);
    resource.deallocate(block).unwrap();
}

#[test]
fn many_threads_spill_at_once_and_nothing_is_lost() {
    const THREADS: usize = 8;
    const PART: usize = ALL / 8;
    let spill = Arc::new(Spill::default());
    let uses = Arc::clone(&spill);
    let harness = harness(FailureCallbackLayer::new().with_callback(move |failure| {
        // Another thread may have allocated the memory that the callback freed.
        if failure.calls > 10_000 { Response::Decline } else { uses.one() }
    }));
    let streams = harness.streams();
    let stack = spill.on(&harness);
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for i in 0..THREADS {
            let stack = &stack;
            let spill = &spill;
            let done = &done;
            scope.spawn(move || {
                for round in 0..200 {
                    match stack.allocate(PART, streams[(i + round) % 2], TAG) {
                        // Any thread may spill the block.
                        Ok(block) => {
                            spill.keep(block);
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert!(is_out_of_memory(&error), "{error}"),
                    }
                }
            });
        }
    });
    let held = std::mem::take(&mut *spill.blocks.lock().unwrap());
    let usage = stack.usage();
    assert_eq!(usage.live, (held.len() * PART) as u64);
    assert_eq!(usage.total_allocated, u64::from(done.load(Ordering::Relaxed)) * PART as u64);
    for block in held {
        stack.deallocate(block).unwrap();
    }
    stack.reap_pending().unwrap();
    assert_eq!((stack.usage().outstanding(), stack.callback_panics()), (0, 0));
}

#[test]
fn an_allocation_from_a_threads_last_destructor_fails_plainly() {
    use std::cell::RefCell;

    struct AllocatesLate(Arc<Rescued>, StreamId);
    impl Drop for AllocatesLate {
        fn drop(&mut self) {
            assert!(is_out_of_memory(&self.0.allocate(ALL, self.1, TAG).unwrap_err()));
        }
    }
    thread_local! {
        static BEFORE: RefCell<Option<AllocatesLate>> = const { RefCell::new(None) };
        static AFTER: RefCell<Option<AllocatesLate>> = const { RefCell::new(None) };
    }
    let harness = harness(FailureCallbackLayer::new());
    let [x, _] = harness.streams();
    let block = harness.outermost().allocate(ALL, x, TAG).unwrap();
    let stack = Arc::clone(harness.outermost());
    std::thread::spawn(move || {
        BEFORE.with(|_| ());
        stack.allocate(ALL, x, TAG).unwrap_err();
        AFTER.with(|after| *after.borrow_mut() = Some(AllocatesLate(Arc::clone(&stack), x)));
        BEFORE.with(|before| *before.borrow_mut() = Some(AllocatesLate(stack, x)));
    })
    .join()
    .unwrap();
    harness.outermost().deallocate(block).unwrap();
}
