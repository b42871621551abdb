//! `dmr-trace` alone: replays a trace on a resource of one's own.

mod own_resource;

use dmr_core::{StreamId, StreamPoolId};
use dmr_trace::{Replay, TraceReader};
use own_resource::Addresses;

const TRACE: &str = "action,ptr,bytes,stream\nallocate,0x1,4096,0\nfree,0x1,,0\n";

fn main() {
    let pool = StreamPoolId::next().unwrap();
    let memory = Addresses::new(pool);
    let mut streams = vec![StreamId::from_parts(pool, 0, 1).unwrap()];
    let trace = TraceReader::new("alone", TRACE.as_bytes()).unwrap();
    let summary = Replay::new(&memory).run(trace, &mut streams, &mut ()).unwrap();
    assert!(summary.passed(), "{summary}");
}
