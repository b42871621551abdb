//! A runtime's pool reports its blocks to the simulated driver, which then reports errors in their
//! use with the block's tag, as it does for the driver's own allocations.

#![cfg(feature = "pool")]
#![allow(unsafe_code, reason = "submits work by address")]

use std::sync::{Arc, Mutex};

use dmr::DeviceRuntimeBuilder;
use dmr::cudarc::driver::result::memset_d8_async;
use dmr::dmr_core::{Generation, MemoryObserver};
use dmr::prelude::*;
use dmr_sim::{Report, ReportKind, Universe};
use dmr_testkit::Rig;

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`: pages, and blocks of the async
/// backend.
const VIRTUAL_MEMORY: i32 = 102;

fn on_both(test: impl Fn(&Rig)) {
    for has_virtual_memory in [1, 0] {
        let universe = Universe::builder().attribute(VIRTUAL_MEMORY, has_virtual_memory);
        test(&Rig::in_universe(&universe.build().unwrap()));
    }
}

fn builder(rig: &Rig) -> DeviceRuntimeBuilder {
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    builder.backend(Backend::Pool)
}

/// The first program of the guide: a block with the tag "weights", and work with it.
fn weights(gpu: &DeviceRuntime, stream: &StreamLease) -> DeviceBlock {
    let block = gpu.resource().allocate(1000, stream.id(), AllocTag::new("weights")).unwrap();
    set(stream, block.ptr(), 1000);
    block
}

fn set(stream: &StreamLease, ptr: u64, bytes: usize) {
    // SAFETY: on the simulated driver, which refuses or reports what is wrong.
    unsafe { memset_d8_async(ptr, 0, bytes, stream.stream().cu_stream()) }.unwrap();
}

fn only_report(rig: &Rig) -> Report {
    let mut reports = rig.universe().reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0)
}

#[test]
fn a_use_after_free_is_reported_with_the_tag_of_the_block() {
    on_both(|rig| {
        let gpu = builder(rig).build().unwrap();
        let stream = rig.stream();
        let block = weights(&gpu, &stream);
        let ptr = block.ptr();
        gpu.resource().deallocate(block).unwrap();
        gpu.resource().reap_pending().unwrap();
        set(&stream, ptr, 1);
        let report = only_report(rig);
        assert_eq!(
            (report.kind, report.tag.as_deref()),
            (ReportKind::UseAfterFree, Some("weights"))
        );
        assert!(report.to_string().contains("(\"weights\")"), "{report}");
    });
}

#[test]
fn an_access_one_byte_past_the_end_is_out_of_bounds_of_the_tagged_block() {
    on_both(|rig| {
        let gpu = builder(rig).build().unwrap();
        let stream = rig.stream();
        let block = weights(&gpu, &stream);
        set(&stream, block.ptr(), block.bytes() + 1);
        let report = only_report(rig);
        assert_eq!(
            (report.kind, report.tag.as_deref()),
            (ReportKind::OutOfBounds, Some("weights"))
        );
        assert_eq!((report.address, report.bytes), (block.ptr() + 1000, 1));
        gpu.resource().deallocate(block).unwrap();
    });
}

/// Blocks of the async backend are allocated on a stream: the race is with that, too.
#[test]
fn a_race_is_reported_with_the_tag_of_the_block() {
    on_both(|rig| {
        let gpu = builder(rig).build().unwrap();
        let stream = rig.stream();
        let other = rig.stream();
        let block = weights(&gpu, &stream);
        set(&other, block.ptr(), 1000);
        let reports = rig.universe().reports();
        assert!(reports.iter().any(|report| report.kind == ReportKind::WriteAfterWrite));
        for report in &reports {
            assert!(report.kind.is_race() && report.tag.as_deref() == Some("weights"), "{report}");
        }
        rig.device().synchronize().unwrap();
        gpu.resource().deallocate(block).unwrap();
    });
}

#[derive(Debug, Default)]
struct Told(Mutex<Vec<(u64, usize, AllocTag)>>);

impl MemoryObserver for Told {
    fn heap_created(&self, _: u64, _: usize) {}

    fn heap_destroyed(&self, _: u64) {}

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, _: Generation) {
        self.0.lock().unwrap().push((ptr, bytes, tag));
    }

    fn region_freed(&self, _: u64, _: Generation) {}
}

#[test]
fn an_observer_of_the_program_replaces_the_simulator_s() {
    on_both(|rig| {
        let told = Arc::new(Told::default());
        let gpu = builder(rig).observer(told.clone()).build().unwrap();
        let stream = rig.stream();
        let block = weights(&gpu, &stream);
        set(&stream, block.ptr(), block.bytes() + 1);
        assert_eq!(*told.0.lock().unwrap(), [(block.ptr(), 1000, AllocTag::new("weights"))]);
        assert_eq!(rig.verdict(), Ok(()), "the simulator sees what the pool takes from it only");
        gpu.resource().deallocate(block).unwrap();
    });
}

#[test]
fn without_an_observer_the_simulator_sees_no_blocks() {
    on_both(|rig| {
        let gpu = builder(rig).without_observer().build().unwrap();
        let stream = rig.stream();
        let block = weights(&gpu, &stream);
        set(&stream, block.ptr(), block.bytes() + 1);
        assert_eq!(rig.verdict(), Ok(()));
        gpu.resource().deallocate(block).unwrap();
    });
}

#[cfg(feature = "direct")]
#[test]
fn an_observer_is_the_pool_s_and_refused_for_another_backend() {
    let rig = Rig::simulated();
    let builder = builder(&rig).backend(Backend::Direct).observer(Arc::new(Told::default()));
    let error = builder.build().unwrap_err().to_string();
    assert!(error.contains("`observer` is for `Backend::Pool`"), "{error}");
}
