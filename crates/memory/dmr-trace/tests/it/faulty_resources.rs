//! A resource that does wrong is found out, by line, and no block is lost on the way.

use dmr_core::DeviceMemoryResource;
use dmr_trace::{Replay, ReplayError, ReplayOptions, TraceReader};

use crate::support::{Fake, Faults, reader};

const TRACE: &str = "\
action,ptr,bytes,stream
allocate,0x1,1000,0
allocate,0x2,1000,1
allocate,0x3,1000,0
free,0x2,1000,1
free,0x1,1000,0
free,0x3,1000,0
";

#[test]
fn a_block_allocated_twice_fails_and_both_lines_are_named() {
    let fake = Fake::with(Faults { twice: Some(2), ..Faults::default() });
    let summary = fake.replay_verified(TRACE).unwrap();
    assert_eq!(summary.verdict(), ["1 overlap", "1 corrupt block"]);
    let overlap = summary.overlaps.first[0];
    let corrupt = summary.corrupt_blocks.first[0];
    assert_eq!((overlap.line, overlap.other_line), (3, 2));
    assert_eq!((corrupt.line, corrupt.free_line, corrupt.offset), (2, Some(6), 0));
    let details = summary.details().join("\n");
    assert!(
        details
            .contains("overlap  line 3: the block at 0x100000 shares memory with that of line 2"),
        "{details}"
    );
    assert!(
        details.contains(
            "corrupt  line 2: the block does not hold its pattern at byte 0 when line 6 frees it"
        ),
        "{details}"
    );
}

#[test]
fn an_overlap_is_found_by_address_without_filling_anything() {
    let fake = Fake::with(Faults { twice: Some(3), ..Faults::default() });
    let summary = fake.replay(TRACE, ReplayOptions::new()).unwrap();
    assert_eq!(summary.verdict(), ["1 overlap"]);
}

#[test]
fn a_write_into_a_neighbour_is_found_at_its_first_byte() {
    // The third block takes the first one's place, and its fill runs into the second.
    let trace = "action,ptr,bytes\n\
                 allocate,1,256\nallocate,2,256\nfree,1,256\nallocate,3,256\nfree,3,256\n";
    let fake = Fake::with(Faults { overrun: Some(3), ..Faults::default() }).forgetting();
    let summary =
        Replay::new(&fake).verify(&fake).run(reader(trace), &mut fake.streams(1), &mut ()).unwrap();
    let corrupt = summary.corrupt_blocks.first[0];
    assert_eq!((corrupt.line, corrupt.free_line, corrupt.offset), (3, None, 0));
    assert_eq!(summary.corrupt_blocks.count, 1);
}

#[test]
fn refused_allocations_are_failures_and_their_frees_are_not_unmatched() {
    let fake = Fake::with(Faults { failing_allocs: 2..4, ..Faults::default() });
    let summary = fake.replay_verified(TRACE).unwrap();
    assert_eq!((summary.failed_allocs, summary.ops, summary.skipped_frees), (2, 2, 2));
    assert!(summary.unmatched_frees.is_empty());
    assert_eq!(summary.verdict(), ["2 failures"]);
    assert!(summary.failures.first[0].to_string().starts_with("line 3: out of device memory"));
    assert_eq!(fake.bytes_outstanding(), 0);
}

#[test]
fn a_size_that_no_resource_can_serve_is_a_failure_of_its_line() {
    let trace = "action,ptr,bytes\nallocate,1,18446744073709551615\nallocate,2,1125899906842625\n";
    let summary = Fake::new().replay(trace, ReplayOptions::new()).unwrap();
    let lines: Vec<_> = summary.failures.first.iter().map(|failure| failure.line).collect();
    assert_eq!(lines, [Some(2), Some(3)]);
}

#[test]
fn a_refused_free_is_a_failure_and_the_block_is_deallocated_at_the_end() {
    let fake = Fake::with(Faults { failing_frees: 1..3, ..Faults::default() });
    let summary = fake.replay_verified(TRACE).unwrap();
    assert_eq!((summary.failed_frees, summary.frees, summary.left_over.count), (2, 1, 0));
    let lines: Vec<_> = summary.failures.first.iter().map(|failure| failure.line).collect();
    assert_eq!(lines, [Some(5), Some(6)]);
    assert_eq!(fake.bytes_outstanding(), 0);
}

#[test]
fn a_resource_that_never_takes_blocks_back_is_reported_with_what_is_lost() {
    let fake = Fake::with(Faults { failing_frees: 1..u64::MAX, ..Faults::default() });
    let summary = fake.replay(TRACE, ReplayOptions::new()).unwrap();
    assert_eq!(summary.failed_frees, 3);
    assert!(summary.details().iter().any(|line| line.contains("3000 are after it")));
}

#[test]
fn accounting_that_drifts_is_a_failure() {
    let fake = Fake::with(Faults { miscounted: Some(2), ..Faults::default() });
    let summary = fake.replay(TRACE, ReplayOptions::new()).unwrap();
    assert!(!summary.passed());
    assert!(summary.failures.first[0].to_string().contains("bytes were outstanding before"));
}

#[test]
fn a_replay_that_ends_early_deallocates_everything() {
    let broken = format!("{TRACE}allocate,0x9,{}", "1".repeat(70_000));
    let fake = Fake::new();
    let trace = TraceReader::new("broken", std::io::Cursor::new(broken.replace("free", "reap")));
    let error = Replay::new(&fake).run(trace.unwrap(), &mut fake.streams(1), &mut ()).unwrap_err();
    assert!(matches!(error, ReplayError::Trace(_)), "{error}");
    assert_eq!(fake.bytes_outstanding(), 0);

    let fake = Fake::with(Faults { no_verdicts: true, ..Faults::default() });
    let error = fake.replay_verified(TRACE).unwrap_err();
    assert!(error.to_string().starts_with("test.csv: line 7: the checks up to here"), "{error}");
    assert_eq!((fake.calls().len(), fake.bytes_outstanding()), (3, 0));

    let fake = Fake::new();
    let error = fake.replay(TRACE, ReplayOptions::new().max_live_blocks(2)).unwrap_err();
    assert!(matches!(error, ReplayError::TooManyLiveBlocks { line: 4, limit: 2, .. }), "{error}");
    assert_eq!((fake.calls().len(), fake.bytes_outstanding()), (2, 0));
}
