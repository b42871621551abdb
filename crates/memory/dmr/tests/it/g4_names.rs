//! G4: statistics, the heap map, the log and the error of a budget name the memory of a graph by
//! its tag.

#![cfg(all(feature = "pool", feature = "budget", feature = "logging", feature = "statistics"))]
#![allow(unsafe_code, reason = "captures")]

use dmr::dmr_adaptors::budget::Budget;
use dmr::dmr_graphs::CaptureOptions;
use dmr::prelude::*;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;
const DECODE: AllocTag = AllocTag::new("decode of 32");

#[test]
fn the_memory_of_a_graph_has_the_name_of_the_graph() {
    let rig = Rig::new();
    let log = std::env::temp_dir().join(format!("dmr-g4-names-{}.csv", std::process::id()));
    let budget = Budget::new(64 * MIB as u64);
    let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::Pool);
    let gpu = builder.budget_on(&budget).statistics().log_csv(&log).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let options = CaptureOptions::new().with_tag(DECODE);
    let work = |capture: &mut Capture<'_>| capture.allocate(3 * MIB).map(drop);
    // SAFETY: nothing is captured.
    let graph = unsafe { Graph::capture(&gpu, &stream, options, work) }.unwrap();

    let statistics = gpu.statistics().unwrap().snapshot();
    let of_the_graph = statistics.by_tag.iter().find(|line| line.tag == DECODE);
    assert_eq!(of_the_graph.unwrap().bytes.current, 4 * MIB as u64);
    let map = gpu.pool().unwrap().heap_map();
    let named: u64 = map.iter().filter(|region| region.tag == DECODE).map(|it| it.bytes).sum();
    assert!(named >= 4 * MIB as u64, "{named}");
    let refused = DeviceBuffer::<u8>::uninit(&gpu, &stream, 128 * MIB).unwrap_err();
    assert!(refused.to_string().contains("decode of 32"), "{refused}");

    drop((graph, stream));
    gpu.shutdown().unwrap();
    drop(gpu);
    let rows = std::fs::read_to_string(&log).unwrap();
    assert!(rows.lines().filter(|row| row.contains("decode of 32")).count() >= 2, "{rows}");
    std::fs::remove_file(log).unwrap();
    rig.assert_clean();
}
