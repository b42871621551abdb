//! A replay makes the calls of the trace, in order, and accounts for them.

use dmr_core::DeviceMemoryResource;
use dmr_trace::replay::Progress;
use dmr_trace::{Replay, ReplayObserver, ReplayOptions};

use crate::support::{Fake, Faults, reader};

const TRACE: &str = "\
action,ptr,bytes,stream,tag
allocate,0x1,1000,7,a
allocate,0x2,2000,9,b
free,0x1,1000,7,
allocate,0x1,500,9,c
free,0x2,2000,9,
";

#[test]
fn each_row_is_one_call_with_its_bytes_its_stream_and_its_tag() {
    let fake = Fake::new();
    let summary = fake.replay(TRACE, ReplayOptions::new()).unwrap();
    let streams = fake.streams(2);
    let calls: Vec<_> = fake.calls().iter().map(|(b, s, t)| (*b, *s, t.name())).collect();
    assert_eq!(calls, [(1000, streams[0], "a"), (2000, streams[1], "b"), (500, streams[1], "c")]);
    assert_eq!((summary.rows, summary.ops, summary.allocs, summary.frees), (5, 5, 3, 2));
    assert_eq!((summary.streams, summary.trace_streams, summary.folded_streams), (2, 2, 0));
}

#[test]
fn times_and_peaks_are_those_of_the_calls() {
    let summary = Fake::new().replay(TRACE, ReplayOptions::new()).unwrap();
    assert_eq!(summary.peak_live_bytes, 3000);
    assert_eq!(summary.peak_reserved_bytes, 1024 + 2048 + 512, "nothing was reaped in between");
    assert_eq!((summary.latency.n, summary.alloc_latency.n, summary.free_latency.n), (5, 3, 2));
    let latency = summary.latency;
    assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.p999);
    assert!(summary.total_ns > 0 && summary.total_ns < summary.wall_ns);
    assert!(summary.passed() && summary.verdict().is_empty());
}

#[test]
fn blocks_that_the_trace_never_frees_are_reported_by_line_and_deallocated() {
    let fake = Fake::new();
    let summary = fake.replay_verified(TRACE).unwrap();
    assert_eq!((summary.left_over.first.as_slice(), summary.left_over_bytes), (&[5][..], 500));
    assert!(summary.passed() && summary.verified);
    assert_eq!(fake.bytes_outstanding(), 0);
    assert_eq!(fake.usage().total_freed, fake.usage().total_allocated);
}

#[test]
fn rows_of_failed_calls_reaps_and_zero_bytes_are_passed_over_and_counted() {
    let fake = Fake::new();
    let trace = "action,ptr,bytes,result\n\
                 allocate,0x1,100,out_of_memory\n\
                 allocate failure,(nil),100,\n\
                 reap,,77,ok\n\
                 allocate,0x5,0,ok\n\
                 free,0x5,0,ok\n\
                 allocate,0x1,100,ok\n\
                 free,0x1,100,driver\n\
                 free,0x1,100,ok\n";
    let summary = fake.replay(trace, ReplayOptions::new().strict(true)).unwrap();
    assert_eq!((summary.rows, summary.ops), (8, 2));
    assert_eq!((summary.failed_rows, summary.other_rows, summary.zero_byte_rows), (3, 1, 2));
    assert!(summary.passed(), "{:?}", summary.verdict());
}

const GROWTHS: &str = "\
action,ptr,bytes,stream,tag,generation
allocate,0x1,100,7,a,1
grow,0x1,200,7,a,1
allocate,0x2,100,9,b,2
grow,0x2,256,9,b,2
grow,0x1,1000,7,a,1
grow,0x9,5000,7,,9
free,0x1,1000,7,a,1
free,0x2,256,9,b,2
";

#[test]
fn a_block_grows_in_place_or_is_replaced_by_a_larger_one() {
    let fake = Fake::new();
    let summary = fake.replay_verified(GROWTHS).unwrap();
    let streams = fake.streams(2);
    let calls: Vec<_> = fake.calls().iter().map(|(b, s, t)| (*b, *s, t.name())).collect();
    assert_eq!(calls, [(100, streams[0], "a"), (100, streams[1], "b"), (1000, streams[0], "a")]);
    assert_eq!((summary.grows, summary.moved_blocks, summary.skipped_grows), (2, 1, 1));
    assert_eq!((summary.allocs, summary.frees, summary.ops), (3, 3, 8));
    assert_eq!(summary.peak_live_bytes, 200 + 256 + 1000);
    assert!(summary.passed(), "{:?} {:?}", summary.verdict(), summary.details());
    assert_eq!(fake.bytes_outstanding(), 0);
}

#[test]
fn a_growth_that_fails_is_named_by_its_line_and_its_block_stays() {
    let fake = Fake::with(Faults { failing_grows: 1..2, ..Faults::default() });
    let summary = fake.replay_verified(GROWTHS).unwrap();
    assert_eq!((summary.failed_grows, summary.grows, summary.moved_blocks), (1, 1, 1));
    assert_eq!(summary.failures.first.first().map(|failure| failure.line), Some(Some(3)));
    assert_eq!(summary.verdict(), ["1 failure"]);
    assert_eq!(fake.bytes_outstanding(), 0);
}

#[test]
fn blocks_are_paired_by_generation_where_the_trace_has_one() {
    let fake = Fake::new();
    let trace = "action,ptr,bytes,generation\n\
                 allocate,0x1,100,1\n\
                 allocate,0x1,200,2\n\
                 free,0x1,100,1\n\
                 free,0x1,200,2\n";
    let summary = fake.replay(trace, ReplayOptions::new().strict(true)).unwrap();
    assert_eq!(summary.ops, 4);
    assert!(summary.passed(), "{:?}", summary.verdict());
}

#[test]
fn a_name_that_is_given_again_leaves_the_earlier_block_over() {
    let fake = Fake::new();
    let trace = "action,ptr,bytes\nallocate,0x1,100\nallocate,0x1,200\nfree,0x1,200\n";
    let summary = fake.replay(trace, ReplayOptions::new()).unwrap();
    assert_eq!(summary.left_over.first, [2]);
    assert_eq!(
        summary.reallocated.first[0].to_string(),
        "line 3: allocated again; the block of line 2 was never freed"
    );
    assert_eq!(fake.bytes_outstanding(), 0);
}

#[test]
fn a_free_that_names_another_stream_is_counted() {
    let trace = "action,ptr,bytes,stream\nallocate,0x1,100,1\nfree,0x1,100,2\n";
    let summary = Fake::new().replay(trace, ReplayOptions::new()).unwrap();
    assert_eq!((summary.cross_stream_frees, summary.ops), (1, 2));
}

#[test]
fn the_observer_is_called_for_each_row_before_its_call_and_for_the_progress() {
    #[derive(Default)]
    struct Heard(Vec<Option<u64>>, Option<Progress>);
    impl ReplayObserver for Heard {
        fn row(&mut self, line: Option<u64>) {
            self.0.push(line);
        }
        fn progress(&mut self, progress: Progress) {
            self.1 = Some(progress);
        }
    }
    let fake = Fake::new();
    let mut heard = Heard::default();
    Replay::new(&fake).run(reader(TRACE), &mut fake.streams(2), &mut heard).unwrap();
    assert_eq!(heard.0[..6], [Some(2), Some(3), Some(4), Some(5), Some(6), None]);
    assert_eq!(heard.1.map(|progress| progress.rows), Some(5));
}

#[test]
fn a_summary_serialises_under_the_names_that_the_peers_benchmarks_use() {
    let summary = Fake::new().replay(TRACE, ReplayOptions::new()).unwrap();
    let json = serde_json::to_value(&summary).unwrap();
    for name in [
        "ops",
        "total_ns",
        "ns_per_op",
        "p50",
        "p90",
        "p99",
        "p999",
        "max",
        "mean",
        "n",
        "alloc_p50",
        "alloc_mean",
        "free_p999",
        "free_n",
        "clock_ns",
        "peak_live_bytes",
        "peak_reserved_bytes",
        "failed_allocs",
    ] {
        assert!(json[name].is_number(), "{name} in {json}");
    }
    assert_eq!(json["left_over"]["first"][0], 5);
}
