//! The conformance suite on fakes in host memory: a correct resource passes, a broken one fails
//! at the check of what is broken.

use dmr_core::conformance::{CHECKS, Harness, Report, check_forwarding, run, run_all};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceResult, StreamId, StreamPoolId, Usage,
};
use dmr_fake::{FakeHarness, Fault};

mod tracking {
    dmr_core::conformance_tests!(dmr_fake::FakeHarness::new(true));
}

mod not_tracking {
    dmr_core::conformance_tests!(dmr_fake::FakeHarness::new(false));
}

/// Each fault, whether the fake tracks uses, and the check that must find it.
const BROKEN: &[(Fault, bool, &str)] = &[
    (Fault::HomeIsAlwaysTheFirstStream, false, "an_allocation_names_its_stream"),
    (Fault::StoresDefault, false, "the_default_stream_is_resolved_and_never_stored"),
    (Fault::NamesAnotherPool, false, "streams_are_of_the_pool_that_the_resource_names"),
    (Fault::TakesForeignStreams, false, "a_stream_of_another_pool_is_refused"),
    (Fault::TakesReturnedStreams, false, "a_returned_stream_is_refused"),
    (Fault::TakesZeroBytes, false, "zero_bytes_are_refused"),
    (Fault::WrapsOversize, false, "sizes_that_overflow_are_refused"),
    (Fault::ClampsToTheDevice, false, "sizes_beyond_the_device_are_refused"),
    (Fault::Misaligns, false, "blocks_are_aligned"),
    (Fault::BlocksForgetTheirTag, false, "a_block_has_the_requested_properties"),
    (Fault::Overlaps, false, "live_blocks_never_overlap"),
    (Fault::ReusesGenerations, false, "generations_are_never_reused"),
    (Fault::ScribblesOnReap, false, "contents_survive_until_deallocate"),
    (Fault::FreesWithoutWaiting, false, "freed_memory_is_not_written_late"),
    (Fault::CountsRefusedAllocations, false, "running_out_of_memory_changes_nothing"),
    (Fault::TakesForeignBlocks, false, "a_block_of_another_resource_is_returned_in_the_error"),
    (Fault::CountsRefusedBlocks, false, "a_block_of_another_resource_is_returned_in_the_error"),
    (Fault::ReturnsAnotherBlock, false, "a_block_of_another_resource_is_returned_in_the_error"),
    (Fault::ReapsLiveBlocks, false, "a_dropped_block_leaks_visibly"),
    (Fault::CountsRoundedBytes, false, "usage_counts_requested_bytes"),
    (Fault::OutstandingIsLiveOnly, false, "usage_counts_requested_bytes"),
    (Fault::ReservesLessThanIsLive, false, "usage_counts_requested_bytes"),
    (Fault::ReapLosesAccounting, false, "usage_counts_requested_bytes"),
    (Fault::LosesAFreeNowAndThen, false, "usage_is_exact_through_a_random_sequence"),
    (Fault::CountersRace, false, "usage_is_exact_after_eight_threads"),
    (Fault::TotalsGoBack, false, "totals_never_decrease"),
    (Fault::ReturnsReservedBytesOnReap, false, "reaping_returns_the_bytes_it_freed"),
    (Fault::ReapPendingDoesNotWait, false, "reap_pending_leaves_only_live_blocks"),
    (Fault::TrimsLiveBlocks, false, "trimming_returns_only_unused_memory"),
    (Fault::ReturnsTooMuchOnTrim, false, "trimming_returns_only_unused_memory"),
    (Fault::CallsLiveBlocksRetired, false, "is_retired_reports_retired_blocks"),
    (Fault::ReturnsFreedTooEarly, false, "is_retired_reports_retired_blocks"),
    (Fault::TakesParts, false, "a_part_is_refused_and_its_whole_can_be_freed"),
    (Fault::GrowsParts, false, "a_part_is_refused_and_its_whole_can_be_freed"),
    (Fault::GrowsUncounted, false, "growing_is_counted_exactly_or_changes_nothing"),
    (Fault::CountsRefusedGrowth, false, "growing_is_counted_exactly_or_changes_nothing"),
    (Fault::GrowsOverNeighbours, false, "growing_is_counted_exactly_or_changes_nothing"),
    (Fault::RefusesWhatItClaims, true, "uses_are_tracked_or_refused"),
    (Fault::RefusesNoUses, true, "no_uses_are_no_error"),
    (Fault::TracksOnForeignStreams, true, "a_use_on_a_wrong_stream_is_refused"),
    (Fault::TokensKeepDefault, true, "a_use_on_the_default_stream_is_resolved"),
    (Fault::TakesStaleIds, true, "a_stale_id_is_use_after_free"),
    (Fault::SkipsWaits, true, "a_read_waits_for_a_write_on_another_stream"),
    (Fault::SkipsWaits, true, "a_write_waits_for_a_write_on_another_stream"),
    (Fault::ForgetsReads, true, "a_write_waits_for_a_read_on_another_stream"),
    (Fault::SkipsWaits, true, "a_use_recorded_afterwards_is_waited_for"),
    (Fault::SkipsWaits, true, "a_recorded_use_does_not_hide_an_earlier_one"),
    (Fault::KeepsOneReader, true, "a_second_reader_does_not_hide_the_first"),
    (Fault::FreeIgnoresUses, true, "a_free_waits_for_every_recorded_use"),
    (Fault::ForgetsTheAllocation, true, "fresh_memory_waits_for_its_previous_owner"),
    (Fault::IgnoresConflicts, true, "a_conflicting_window_is_refused"),
    (Fault::RefusesNesting, true, "windows_on_one_stream_nest"),
    (Fault::RefusesDisjointParts, true, "disjoint_parts_do_not_conflict"),
    (Fault::SkipsWaits, true, "the_whole_waits_for_its_parts"),
    (Fault::RefusesASecondReader, true, "readers_share_a_block"),
    (Fault::PreparesInPart, true, "preparing_several_blocks_is_all_or_nothing"),
    (Fault::CancelKeepsTheWindow, true, "a_cancelled_use_leaves_no_window"),
    (Fault::FreesInsideAWindow, true, "a_block_deallocated_inside_a_window_outlives_it"),
];

#[test]
fn every_broken_fake_fails_at_the_check_of_what_is_broken() {
    for &(fault, tracks, expected) in BROKEN {
        let report = run(expected, || FakeHarness::broken(tracks, Some(fault)));
        assert!(!report.is_ok(), "{fault:?} passes {expected}");
        let why = report.to_string();
        assert!(!why.contains("panicked"), "{fault:?} is found by a panic only: {why}");
    }
}

#[test]
fn every_check_has_been_seen_red() {
    for check in CHECKS {
        let seen = BROKEN.iter().any(|(_, _, expected)| *expected == check.name);
        assert!(seen, "no broken fake fails at {}", check.name);
    }
}

#[test]
fn a_report_says_which_promise_failed_and_why() {
    let report = run_all(|| FakeHarness::broken(false, Some(Fault::TakesZeroBytes)));
    assert_eq!(report.results().len(), CHECKS.len());
    let failed: Vec<_> = report.failed().map(|check| check.name).collect();
    assert!(failed.contains(&"zero_bytes_are_refused"), "{report}");
    let text = report.to_string();
    assert!(text.contains("FAILED T3 zero_bytes_are_refused: allocate(0) was accepted"), "{text}");
    assert!(report.into_result().is_err());
    let clean = run_all(|| FakeHarness::new(true));
    let all = CHECKS.len();
    assert_eq!(clean.to_string(), format!("{all} of {all} checks passed"));
}

#[test]
fn a_harness_that_panics_fails_the_check_and_not_the_runner() {
    let report = run("zero_bytes_are_refused", || -> FakeHarness { panic!("no device") });
    assert!(report.to_string().contains("panicked: no device"), "{report}");
}

#[test]
fn an_unknown_check_is_a_failure() {
    let report: Report = run("no_such_check", || FakeHarness::new(true));
    assert!(report.into_result().is_err());
}

#[test]
fn the_forwarding_check_passes_pointers_and_finds_what_an_adaptor_forgets() {
    for tracks in [true, false] {
        let harness = FakeHarness::new(tracks);
        check_forwarding(&harness, |spy| spy).unwrap();
        check_forwarding(&harness, |spy| Box::new(spy) as Box<dyn DeviceMemoryResource>).unwrap();
        let missed = check_forwarding(&harness, Forgetful).unwrap_err();
        let forgotten = ["bytes_outstanding", "try_grow", "trim_to", "use_tracking"];
        for method in forgotten {
            assert!(missed.contains(&format!("{method} (0 calls)")), "{method}: {missed}");
        }
        assert!(missed.contains("virtual_memory (returns None)"), "{missed}");
        assert_eq!(harness.resource().usage().outstanding(), 0);
    }
}

/// An adaptor that forwards only the methods without a default body.
#[derive(Debug)]
struct Forgetful<R>(R);

impl<R: DeviceMemoryResource> DeviceMemoryResource for Forgetful<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.0.allocate(bytes, stream, tag)
    }
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.0.deallocate(block)
    }
    fn is_retired(&self, block: BlockId) -> bool {
        self.0.is_retired(block)
    }
    fn device_ordinal(&self) -> usize {
        self.0.device_ordinal()
    }
    fn stream_pool(&self) -> StreamPoolId {
        self.0.stream_pool()
    }
    fn usage(&self) -> Usage {
        self.0.usage()
    }
    fn try_reap(&self) -> ResourceResult<u64> {
        self.0.try_reap()
    }
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.0.reap_pending()
    }
}
