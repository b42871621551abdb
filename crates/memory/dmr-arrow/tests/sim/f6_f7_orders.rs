//! F6, F7: the waits are needed, and what cannot wait ends no capture.

use cudarc::driver::sys::CUstreamCaptureMode;
use dmr_arrow::{ArrowColumn, ColumnParts};
use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceMemoryResource;
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

use crate::support::consumer::{given, read, release};
use crate::support::{Gpu, Producer, Spec, taken};

fn numbers() -> Spec {
    Spec {
        format: "C".into(),
        length: 64,
        buffers: vec![None, Some(vec![9; 64])],
        ..Spec::default()
    }
}

/// Imports a column and reads it on another stream; with or without its event.
fn import(rig: &Rig, has_event: bool) -> String {
    let gpu = Gpu::new(rig);
    let home = rig.stream();
    let other = rig.stream();
    let producer = Producer::new(rig);
    let mut made = producer.make(&numbers());
    if !has_event {
        made.0.sync_event = std::ptr::null_mut();
    }
    let (array, schema) = taken(&mut made.0, &mut made.1);
    // SAFETY: the structs are as the specification says, but for the order.
    let column = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) }.unwrap();
    let mut copy = DeviceBuffer::<u8>::zeroed(&gpu, &other, 64).unwrap();
    copy.copy_from(column.values::<u8>().unwrap().unwrap(), &other).unwrap();
    producer.stream.synchronize().unwrap();
    rig.verdict().err().unwrap_or_default()
}

#[test]
fn an_array_without_its_event_is_a_race_with_the_producer() {
    assert_eq!(import(&Rig::simulated(), true), "");
    let found = import(&Rig::simulated(), false);
    assert!(found.contains("read-after-write race"), "{found}");
}

/// Exports a column that is written on a stream, and reads it as another library does.
fn export(rig: &Rig, waits: bool) -> String {
    let gpu = Gpu::new(rig);
    let home = rig.stream();
    let other = rig.stream();
    let mut values = DeviceBuffer::<u8>::zeroed(&gpu, &home, 64).unwrap();
    values.fill(9, &home).unwrap();
    // The event is for the buffers of the whole tree.
    let parts = ColumnParts {
        format: "+s".into(),
        length: 64,
        buffers: vec![None],
        children: vec![ArrowColumn::of("x", values)],
        ..ColumnParts::default()
    };
    let exported = ArrowColumn::new(parts).unwrap().export(&gpu, &other).unwrap();
    let (array, schema) = given(exported.array, exported.schema);
    let consumer = rig.device().context().new_stream().unwrap();
    let child = Spec { name: "x".into(), ..numbers() };
    let expected = Spec {
        format: "+s".into(),
        length: 64,
        buffers: vec![None],
        children: vec![child],
        ..Spec::default()
    };
    let found = read(&consumer, &array, &schema, &expected, waits);
    if waits {
        assert_eq!(found, expected);
    }
    release(array, schema);
    rig.verdict().err().unwrap_or_default()
}

#[test]
fn a_consumer_that_does_not_wait_for_the_event_is_in_a_race() {
    assert_eq!(export(&Rig::simulated(), true), "");
    let found = export(&Rig::simulated(), false);
    assert!(found.contains("read-after-write race"), "{found}");
}

#[test]
fn an_array_that_is_released_during_a_capture_is_freed_after_it() {
    let rig = Rig::simulated();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let captured = rig.stream();
    let values = DeviceBuffer::<u8>::zeroed(&gpu, &home, 64).unwrap();
    let exported = ArrowColumn::of("x", values).export(&gpu, &home).unwrap();
    let stream = captured.stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    drop(exported);
    assert_eq!(gpu.resource().usage().live, 64);
    let flags =
        cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.end_capture(flags).unwrap();
    let values = DeviceBuffer::<u8>::zeroed(&gpu, &home, 32).unwrap();
    let exported = ArrowColumn::of("y", values).export(&gpu, &home).unwrap();
    assert_eq!(gpu.resource().usage().live, 32, "the first one is freed by the next export");
    drop(exported);
    assert_eq!(gpu.resource().usage().live, 0);
    drop((gpu, home, captured));
    rig.assert_clean();
}

/// One release has waited for the device, and has not freed yet; another one cannot wait, so its
/// consumer may not be done.
#[test]
fn a_release_frees_nothing_that_was_released_after_it_has_waited() {
    let rig = Rig::simulated();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let captured = rig.stream();
    let exported = |bytes: usize| {
        let values = DeviceBuffer::<u8>::zeroed(&gpu, &home, bytes).unwrap();
        ArrowColumn::of("x", values).export(&gpu, &home).unwrap()
    };
    let first = exported(64);
    let second = exported(32);
    let hold = rig.universe().hold_after_nth("cuCtxSynchronize", 1);
    let releases = std::thread::spawn(move || drop(first));
    hold.wait_until_held();
    let stream = captured.stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    drop(second);
    let flags =
        cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.end_capture(flags).unwrap();
    hold.release();
    releases.join().unwrap();
    assert_eq!(gpu.resource().usage().live, 32);
    drop(exported(16));
    assert_eq!(gpu.resource().usage().live, 0);
    drop((gpu, home, captured));
    rig.assert_clean();
}

#[test]
fn an_export_on_a_stream_that_captures_is_refused_and_the_capture_goes_on() {
    let rig = Rig::simulated();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let captured = rig.stream();
    let values = DeviceBuffer::<u8>::zeroed(&gpu, &home, 64).unwrap();
    let column = ArrowColumn::of("x", values);
    let stream = captured.stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let refused = column.export(&gpu, &captured).unwrap_err();
    assert!(refused.to_string().contains("captur"), "{refused}");
    let flags =
        cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.end_capture(flags).unwrap();
    drop(column.export(&gpu, &captured).unwrap());
    drop((gpu, home, captured, column));
    rig.assert_clean();
}

#[test]
fn a_lost_device_frees_what_is_released() {
    let rig = Rig::simulated();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    let producer = Producer::new(&rig);
    let mut made = producer.make(&numbers());
    let (array, schema) = taken(&mut made.0, &mut made.1);
    // SAFETY: the structs are as the specification says.
    let column = unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) }.unwrap();
    let exported = column.export(&gpu, &home).unwrap();
    drop(column);
    rig.universe().fail_nth("cuCtxSynchronize", 1, 700);
    assert!(rig.device().synchronize().is_err());
    assert!(rig.device().is_lost());
    drop(exported);
    producer.releases.wait_for(1);
}
