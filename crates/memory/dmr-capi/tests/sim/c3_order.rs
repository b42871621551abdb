//! C3: memory is used again after the work on the stream of its allocation and after all recorded
//! uses, and a stream can be made to wait for them. Without a call that makes an order, there is a
//! race.

use dmr_capi::*;

use crate::support::{Gpu, LEGACY, MIB, raw};

/// The backends that record uses.
const BACKENDS: [fn(&mut Config); 5] = [
    |config| config.backend = DMR_BACKEND_POOL,
    |config| config.compact = 1,
    |config| config.page_bytes = DMR_PAGES_NONE,
    |config| config.backend = DMR_BACKEND_ASYNC,
    |config| config.backend = DMR_BACKEND_DIRECT_TRACKED,
];

/// The calls of the program that make an order.
#[derive(Clone, Copy)]
struct Ordered {
    records_the_write: bool,
    waits: bool,
    records_the_read: bool,
}

const ALL: Ordered = Ordered { records_the_write: true, waits: true, records_the_read: true };

/// Writes a block on one stream and reads it on another one, then frees it and writes its memory
/// again.
fn write_read_and_reuse(gpu: &Gpu, calls: Ordered) {
    let writer = gpu.stream();
    let writer = raw(&writer);
    let reader = gpu.stream();
    let reader = raw(&reader);
    let early = gpu.stream();
    let address = gpu.allocate(MIB, writer).unwrap();
    // The event of the allocation is recorded here, so it does not cover the write.
    gpu.wait(address, raw(&early), DMR_ACCESS_READ).unwrap();
    gpu.fill(address, MIB, writer);
    if calls.records_the_write {
        gpu.record(address, writer, DMR_ACCESS_WRITE).unwrap();
    }
    if calls.waits {
        gpu.wait(address, reader, DMR_ACCESS_READ).unwrap();
    }
    gpu.read(address, MIB, reader);
    if calls.records_the_read {
        gpu.record(address, reader, DMR_ACCESS_READ).unwrap();
    }
    gpu.free(address).unwrap();
    let again = gpu.allocate(MIB, writer).unwrap();
    gpu.fill(again, MIB, writer);
    gpu.free(again).unwrap();
    for stream in [writer, reader, raw(&early)] {
        gpu.retire(stream).unwrap();
    }
}

#[test]
fn c3_recorded_uses_are_waited_for() {
    for change in BACKENDS {
        let gpu = Gpu::with(change);
        write_read_and_reuse(&gpu, ALL);
        gpu.end();
    }
}

#[test]
fn c3_each_call_that_makes_an_order_is_needed() {
    let incomplete = [
        Ordered { records_the_write: false, ..ALL },
        Ordered { waits: false, ..ALL },
        Ordered { records_the_read: false, ..ALL },
    ];
    for (index, calls) in incomplete.into_iter().enumerate() {
        let gpu = Gpu::with(|config| config.backend = DMR_BACKEND_POOL);
        write_read_and_reuse(&gpu, calls);
        assert!(gpu.rig.verdict().is_err(), "{index}: no finding");
        gpu.destroy().unwrap();
        let found = gpu.rig.universe().finish();
        assert!(!found.is_clean());
    }
}

#[test]
fn c3_a_free_on_a_stream_comes_after_its_work() {
    for change in BACKENDS {
        let gpu = Gpu::with(change);
        let home = gpu.stream();
        let last = gpu.stream();
        let address = gpu.allocate(MIB, raw(&home)).unwrap();
        gpu.wait(address, raw(&last), DMR_ACCESS_WRITE).unwrap();
        gpu.fill(address, MIB, raw(&last));
        gpu.free_on(address, raw(&last)).unwrap();
        let again = gpu.allocate(MIB, raw(&home)).unwrap();
        gpu.fill(again, MIB, raw(&home));
        gpu.free(again).unwrap();
        gpu.end();
    }
}

#[test]
fn c3_a_write_waits_for_recorded_reads_and_a_read_does_not() {
    for (access, is_ordered) in [(DMR_ACCESS_WRITE, true), (DMR_ACCESS_READ, false)] {
        let gpu = Gpu::new();
        let streams = [gpu.stream(), gpu.stream(), gpu.stream()];
        let [home, reader, writer] = streams.each_ref().map(|stream| raw(stream));
        let address = gpu.allocate(MIB, home).unwrap();
        gpu.fill(address, MIB, home);
        gpu.record(address, home, DMR_ACCESS_WRITE).unwrap();
        gpu.wait(address, reader, DMR_ACCESS_READ).unwrap();
        gpu.read(address, MIB, reader);
        gpu.record(address, reader, DMR_ACCESS_READ).unwrap();
        gpu.wait(address, writer, access).unwrap();
        gpu.fill(address, MIB, writer);
        assert_eq!(gpu.rig.verdict().is_ok(), is_ordered, "{access}");
        gpu.free_on(address, writer).unwrap();
        gpu.destroy().unwrap();
        assert_eq!(gpu.rig.universe().finish().is_clean(), is_ordered);
    }
}

#[test]
fn c3_the_legacy_default_stream_has_two_handles_and_one_order() {
    let gpu = Gpu::new();
    let legacy = std::ptr::without_provenance_mut(1);
    let other = gpu.stream();
    let address = gpu.allocate(MIB, LEGACY).unwrap();
    gpu.fill(address, MIB, legacy);
    gpu.record(address, legacy, DMR_ACCESS_WRITE).unwrap();
    gpu.wait(address, raw(&other), DMR_ACCESS_READ).unwrap();
    gpu.read(address, MIB, raw(&other));
    gpu.free_on(address, raw(&other)).unwrap();
    let again = gpu.allocate(MIB, legacy).unwrap();
    gpu.fill(again, MIB, LEGACY);
    gpu.free(again).unwrap();
    gpu.end();
}
