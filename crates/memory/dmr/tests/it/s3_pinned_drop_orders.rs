//! S3: a pinned buffer, its runtime and leases are dropped in any order, and nothing stays behind.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use dmr::dmr_buffer::pinned::reap_orphaned_pinned;
use dmr::prelude::*;
use dmr_sim::{Universe, Verdict};
use dmr_testkit::Rig;

const LEN: usize = 64;

/// Everything that keeps a runtime alive, to be dropped part by part.
struct Parts {
    parts: [Option<Box<dyn Any + Send>>; 4],
    resource: Weak<dyn DeviceMemoryResource>,
    streams: Weak<StreamPool>,
    rig: Rig,
}

/// The backend of the runtime, and the stream that copies from the pinned buffer.
#[derive(Clone, Copy, Debug)]
struct Case {
    backend: Backend,
    /// A stream that is not the buffer's home.
    away: bool,
    /// The copy may still be to be done when everything is dropped.
    in_flight: bool,
}

fn cases(in_flight: bool) -> impl Iterator<Item = Case> {
    [Backend::Pool, Backend::Async, Backend::DirectTracked]
        .into_iter()
        .flat_map(move |backend| [false, true].map(|away| Case { backend, away, in_flight }))
}

impl Parts {
    fn new(case: Case) -> Self {
        let rig = Rig::new();
        let builder = DeviceRuntime::builder(rig.ordinal()).backend(case.backend);
        let runtime = builder.build().unwrap();
        let ops = PatternOps::new(Arc::clone(runtime.streams())).unwrap();
        let leases = [(); 2].map(|()| runtime.streams().acquire().unwrap());
        let stream = &leases[usize::from(case.away)];
        let mut buffer = DeviceBuffer::<u8>::uninit(&runtime, stream, LEN).unwrap();
        let pinned = PinnedBuffer::from_slice(&runtime, &leases[0], &[7u8; LEN]).unwrap();
        if case.in_flight {
            ops.delay(stream.id(), 20_000_000).unwrap();
        }
        pinned.copy_to_device(&mut buffer, stream).unwrap();
        if !case.in_flight {
            runtime.device().synchronize().unwrap();
        }
        let resource = Arc::downgrade(runtime.resource());
        let streams = Arc::downgrade(runtime.streams());
        let parts: [Box<dyn Any + Send>; 4] =
            [Box::new(pinned), Box::new(buffer), Box::new(leases), Box::new((runtime, ops))];
        Self { parts: parts.map(Some), resource, streams, rig }
    }

    /// Drops them one after the other; with `on_threads`, each on a thread of its own.
    fn drop_in(&mut self, order: [usize; 4], on_threads: bool) {
        for part in order.map(|index| self.parts[index].take()) {
            if on_threads {
                std::thread::spawn(move || drop(part)).join().unwrap();
            }
        }
    }

    /// Neither the runtime nor its memory is left.
    fn assert_gone(self, how: impl Debug) {
        assert_eq!(self.resource.strong_count(), 0, "{how:?}: the resource is alive");
        assert_eq!(self.streams.strong_count(), 0, "{how:?}: the streams are alive");
        let verdict = self.rig.simulator().map(Universe::finish);
        let clean = verdict.as_ref().is_none_or(Verdict::is_clean);
        assert!(clean, "{how:?}: {}", verdict.unwrap_or_default());
    }
}

/// All orders; every other one with each part dropped on a thread of its own.
fn orders() -> impl Iterator<Item = ([usize; 4], bool)> {
    let all = (0..256).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6]);
    let orders = all.filter(|order| (0..4).all(|part| order.contains(&part)));
    orders.enumerate().map(|(nth, order)| (order, nth % 2 == 1))
}

#[test]
fn pinned_memory_that_the_device_is_done_with_goes_with_the_last_owner_of_its_streams() {
    for case in cases(false) {
        for (order, on_threads) in orders() {
            let mut parts = Parts::new(case);
            parts.drop_in(order, on_threads);
            parts.assert_gone((case, order, on_threads));
        }
    }
}

#[test]
fn pinned_memory_in_flight_keeps_no_runtime_alive_and_is_freed_by_a_reap() {
    for case in cases(true) {
        for (order, on_threads) in orders() {
            let mut parts = Parts::new(case);
            parts.drop_in(order, on_threads);
            reap_orphaned_pinned().unwrap();
            parts.assert_gone((case, order, on_threads));
        }
    }
}

#[test]
fn threads_that_drop_the_last_owners_at_once_lose_nothing() {
    for case in (0..10).flat_map(|_| cases(true).chain(cases(false))) {
        let mut parts = Parts::new(case);
        std::thread::scope(|scope| {
            for part in parts.parts.each_mut().map(Option::take) {
                scope.spawn(move || drop(part));
            }
        });
        reap_orphaned_pinned().unwrap();
        parts.assert_gone(case);
    }
}
