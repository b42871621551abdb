//! G2: a spillable buffer that a graph holds is not moved, and is again when the graph is gone.

#![allow(unsafe_code, reason = "captures work of the test")]
#![cfg(all(feature = "spill", feature = "pool", feature = "budget"))]

use dmr::cudarc::driver::DriverError;
use dmr::cudarc::driver::result::memset_d8_async;
use dmr::dmr_adaptors::budget::Budget;
use dmr::dmr_spill::SpillError;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

/// Captures a fill of a spillable buffer, which the graph holds.
fn capture_fill(gpu: &DeviceRuntime, stream: &StreamLease, cache: &mut Spillable<u8>) -> Graph {
    let work = |capture: &mut Capture<'_>| {
        let mut cache = cache.on_device_mut(stream).map_err(|error| error.to_string())?;
        let to = capture.write(&mut *cache).device_ptr();
        // SAFETY: the memory is the buffer's, which the graph holds.
        let filled = unsafe { memset_d8_async(to, 7, MIB, capture.stream().cu_stream()) };
        capture.keep(cache.keep());
        filled.map_err(|error: DriverError| error.to_string())
    };
    // SAFETY: the work uses the buffer that it records.
    unsafe { Graph::capture(gpu, stream, CaptureMode::default(), work) }.unwrap()
}

#[test]
fn a_buffer_that_a_graph_holds_stays_where_it_is() {
    let rig = Rig::new();
    let budget = Budget::new(64 * MIB as u64);
    let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::DirectTracked);
    let gpu = builder.budget_on(&budget).spill().build().unwrap();
    let spill = gpu.spill().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let insert = || {
        let buffer = DeviceBuffer::<u8>::zeroed(&gpu, &stream, MIB).unwrap();
        spill.insert(buffer).unwrap()
    };
    let mut cache = insert();
    let other = insert();
    let graph = capture_fill(&gpu, &stream, &mut cache);
    assert!(spill.free(2 * MIB as u64).is_err(), "only the other one can be moved");
    assert!(other.is_spilled() && !cache.is_spilled());
    graph.launch(&stream).unwrap();
    // It can be read meanwhile, and not be taken for exclusive use.
    let read = cache.on_device(&stream).unwrap().to_host(&stream).unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
    assert!(matches!(cache.on_device_mut(&stream), Err(SpillError::Unavailable)));
    graph.launch(&stream).unwrap();
    drop(graph);
    spill.free(MIB as u64).unwrap();
    assert!(cache.is_spilled());
    let read = cache.on_device(&stream).unwrap().to_host(&stream).unwrap();
    assert!(read.iter().all(|byte| *byte == 7), "the bytes of the last replay");
    // One whose owner is gone lives as long as the graph.
    let graph = capture_fill(&gpu, &stream, &mut cache);
    drop(cache);
    graph.launch(&stream).unwrap();
    drop((graph, other, stream));
    gpu.shutdown().unwrap();
    drop(gpu);
    rig.assert_clean();
}
