//! Call stacks in reports: the frames of the program, the innermost first, where a test asks for
//! them.

#![allow(unsafe_code, reason = "cudarc's streams are used without its tracking")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use dmr_sim::{Report, Universe, UniverseBuilder};

#[inline(never)]
fn inner(stream: &Arc<CudaStream>, bytes: &mut CudaSlice<u8>) -> u32 {
    stream.memset_zeros(bytes).unwrap();
    line!() - 1
}

#[inline(never)]
fn outer(stream: &Arc<CudaStream>, bytes: &mut CudaSlice<u8>) -> [u32; 2] {
    let innermost = std::hint::black_box(inner(stream, bytes)); // no tail call, which has no frame
    [innermost, line!() - 1]
}

/// Returns the report of a race, and the lines on the way to its second operation.
fn race(builder: UniverseBuilder) -> (Report, [u32; 2]) {
    let universe = builder.build().unwrap();
    let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
    // SAFETY: that the streams are not ordered is what is reported.
    unsafe { gpu.disable_event_tracking() };
    let a = gpu.new_stream().unwrap();
    let b = gpu.new_stream().unwrap();
    let mut bytes = a.alloc_zeros::<u8>(64).unwrap();
    a.synchronize().unwrap();
    outer(&a, &mut bytes);
    let lines = outer(&b, &mut bytes);
    let report = universe.reports().remove(0);
    gpu.synchronize().unwrap();
    drop(bytes);
    let _ = universe.reports();
    (report, lines)
}

#[test]
fn the_table_of_the_findings_has_the_call_stacks_with_a_line_for_each_frame() {
    let universe = Universe::builder().capture_call_stacks(true).build().unwrap();
    let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
    // SAFETY: that the streams are not ordered is what is reported.
    unsafe { gpu.disable_event_tracking() };
    let streams = [gpu.new_stream().unwrap(), gpu.new_stream().unwrap()];
    let mut bytes = streams[0].alloc_zeros::<u8>(64).unwrap();
    streams[0].synchronize().unwrap();
    outer(&streams[0], &mut bytes);
    let lines = outer(&streams[1], &mut bytes);
    gpu.synchronize().unwrap();
    drop(bytes);
    let table = universe.finish().to_csv();
    let [innermost, caller] = lines.map(|line| format!("tests/build/call_stacks.rs:{line}:"));
    let second = table.split(",second,").nth(1).unwrap();
    let at = second.find(&innermost).unwrap();
    assert!(second[at..].lines().nth(1).unwrap().contains(&caller), "{table}");
}

#[test]
fn a_report_shows_all_frames_of_the_program_with_the_innermost_first() {
    let (report, lines) = race(Universe::builder().capture_call_stacks(true));
    let stack = report.second.call_stack();
    for (place, line) in stack.iter().zip(lines) {
        assert!(place.contains(&format!("tests/build/call_stacks.rs:{line}:")), "{stack:?}");
    }
    assert!(stack.len() >= 4, "with the test and its helper: {stack:?}");
    assert!(stack.iter().all(|place| place.contains("build/call_stacks.rs")), "{stack:?}");
    let text = report.to_string();
    assert!(text.contains(&format!(", at {}\n    called at {}\n", stack[0], stack[1])), "{text}");
}

#[test]
fn one_frame_is_shown_where_only_the_call_site_is_captured() {
    let (report, [innermost, _]) = race(Universe::builder().capture_call_sites(true));
    let stack = report.second.call_stack();
    assert_eq!(stack.len(), 1, "{stack:?}");
    assert!(stack[0].contains(&format!(":{innermost}:")), "{stack:?}");
    assert!(!report.to_string().contains("called at"), "{report}");
}

#[test]
fn no_frame_is_captured_unless_a_test_asks_for_it() {
    let (report, _) = race(Universe::builder().capture_call_stacks(false));
    assert_eq!(report.second.call_stack(), Vec::<String>::new());
}
