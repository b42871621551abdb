//! The findings that the simulated driver writes are those that are read.

#![allow(unsafe_code, reason = "cudarc's streams are used without its tracking")]

use cudarc::driver::CudaContext;
use dmr_sim::Universe;

use crate::support::open;

#[test]
fn a_race_has_both_operations_and_their_streams() {
    let universe = Universe::builder().build().unwrap();
    let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
    // SAFETY: that the streams are not ordered is what is reported.
    unsafe { gpu.disable_event_tracking() };
    let streams = [gpu.new_stream().unwrap(), gpu.new_stream().unwrap()];
    let mut bytes = streams[0].alloc_zeros::<u8>(64).unwrap();
    streams[0].synchronize().unwrap();
    for stream in &streams {
        stream.memset_zeros(&mut bytes).unwrap();
    }
    gpu.synchronize().unwrap();
    drop(bytes);
    let verdict = universe.finish();
    let model = open(verdict.to_csv().as_bytes());
    assert_eq!(model.findings.len(), verdict.reports.len());
    let report = &verdict.reports[0];
    let finding = &model.findings[0];
    assert!(finding.race);
    assert_eq!(finding.kind, "write-after-write");
    assert_eq!((finding.address, finding.bytes), (report.address, report.bytes));
    let streams: Vec<_> = finding.sides.iter().map(|side| side.stream).collect();
    assert_eq!(streams, [report.first.as_ref().unwrap().stream, report.second.stream]);
    assert_eq!(finding.sides[1].operation, &*report.second.operation);
    let text = dmr_report::text::report(&model);
    assert!(text.contains("finding  write-after-write race"), "{text}");
}

#[test]
fn a_universe_without_findings_writes_none() {
    let universe = Universe::new().unwrap();
    assert!(open(universe.finish().to_csv().as_bytes()).findings.is_empty());
}
