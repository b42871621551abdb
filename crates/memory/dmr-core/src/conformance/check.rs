//! The list of checks, and the functions that run them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::support::{Outcome, Subject, message_of};
use super::{
    CheckResult, Harness, Report, accounting, blocks, failures, growing, order, sizes, streams,
    tracking, trimming, windows,
};

/// The test of one promise of the contract.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check {
    /// The promise as a sentence: `zero_bytes_are_refused`.
    pub name: &'static str,
    /// The id of the promise in the contract: `T3`. `T` alone is the documentation of the trait.
    pub promise: &'static str,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    /// With a new harness.
    One(fn(&Subject<'_>) -> Outcome),
    /// With two new harnesses that live at the same time.
    Two(fn(&Subject<'_>, &Subject<'_>) -> Outcome),
}

/// Calls a macro with the list of checks: `mode promise module name`.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_checks {
    ($($then:tt)+) => {
        $($then)+! {
            One "T1" streams an_allocation_names_its_stream,
            One "T1" streams the_default_stream_is_resolved_and_never_stored,
            One "T2" streams streams_are_of_the_pool_that_the_resource_names,
            One "T2" streams a_stream_of_another_pool_is_refused,
            One "T2" streams a_returned_stream_is_refused,
            One "T3" sizes zero_bytes_are_refused,
            One "T3" sizes sizes_that_overflow_are_refused,
            One "T3" sizes sizes_beyond_the_device_are_refused,
            One "T3" sizes blocks_are_aligned,
            One "T" blocks a_block_has_the_requested_properties,
            One "T" blocks live_blocks_never_overlap,
            One "T" blocks generations_are_never_reused,
            One "T" blocks contents_survive_until_deallocate,
            One "T" blocks freed_memory_is_not_written_late,
            One "T4" failures running_out_of_memory_changes_nothing,
            Two "T4" failures a_block_of_another_resource_is_returned_in_the_error,
            One "T4" failures a_dropped_block_leaks_visibly,
            One "T6" accounting usage_counts_requested_bytes,
            One "T6" accounting usage_is_exact_through_a_random_sequence,
            One "T6" accounting usage_is_exact_after_eight_threads,
            One "T6" accounting totals_never_decrease,
            One "T7" accounting reaping_returns_the_bytes_it_freed,
            One "T7" accounting reap_pending_leaves_only_live_blocks,
            One "T7" accounting is_retired_reports_retired_blocks,
            One "T9" trimming trimming_returns_only_unused_memory,
            One "T10" growing a_part_is_refused_and_its_whole_can_be_freed,
            One "T11" growing growing_is_counted_exactly_or_changes_nothing,
            One "T5" tracking uses_are_tracked_or_refused,
            One "R4" tracking no_uses_are_no_error,
            One "T2" tracking a_use_on_a_wrong_stream_is_refused,
            One "T1" tracking a_use_on_the_default_stream_is_resolved,
            One "U12" tracking a_stale_id_is_use_after_free,
            One "U1" order a_read_waits_for_a_write_on_another_stream,
            One "U1" order a_write_waits_for_a_write_on_another_stream,
            One "U1" order a_write_waits_for_a_read_on_another_stream,
            One "U1" order a_use_recorded_afterwards_is_waited_for,
            One "U2" order a_recorded_use_does_not_hide_an_earlier_one,
            One "U2" order a_second_reader_does_not_hide_the_first,
            One "U9" order a_free_waits_for_every_recorded_use,
            One "U10" order fresh_memory_waits_for_its_previous_owner,
            One "U6" windows a_conflicting_window_is_refused,
            One "U6" windows windows_on_one_stream_nest,
            One "U15" windows disjoint_parts_do_not_conflict,
            One "U15" windows the_whole_waits_for_its_parts,
            One "U6" windows readers_share_a_block,
            One "U6" windows preparing_several_blocks_is_all_or_nothing,
            One "U6" windows a_cancelled_use_leaves_no_window,
            One "U7" windows a_block_deallocated_inside_a_window_outlives_it,
        }
    };
}

macro_rules! list {
    ($($mode:ident $promise:literal $module:ident $name:ident,)+) => {
        /// Every check of the suite.
        pub const CHECKS: &[Check] = &[$(Check {
            name: stringify!($name),
            promise: $promise,
            run: Run::$mode($module::$name),
        }),+];
    };
}
__conformance_checks!(list);

/// Makes a `#[test]` of every check of the [conformance suite](crate::conformance), with the name
/// of the check. The argument is an expression that makes a new [`Harness`]; it is evaluated for
/// each test. A module can contain this macro once.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        /// Makes the harness of one check.
        fn make_conformance_harness() -> impl $crate::conformance::Harness {
            $make
        }
        $crate::__conformance_checks!($crate::__conformance_test);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test {
    ($($mode:ident $promise:literal $module:ident $name:ident,)+) => {$(
        #[test]
        fn $name() -> Result<(), $crate::conformance::Report> {
            $crate::conformance::run(stringify!($name), make_conformance_harness).into_result()
        }
    )+};
}

/// Runs every check, each with new harnesses from `make`.
///
/// Does not panic: a panic of `make` or of the harness fails the check.
pub fn run_all<H: Harness>(mut make: impl FnMut() -> H) -> Report {
    Report::new(CHECKS.iter().map(|check| run_check(check, &mut make)).collect())
}

/// Runs the check with this name. Without such a check, the report is a failure.
///
/// Does not panic: see [`run_all`].
pub fn run<H: Harness>(name: &str, mut make: impl FnMut() -> H) -> Report {
    match CHECKS.iter().find(|check| check.name == name) {
        Some(check) => Report::new(vec![run_check(check, &mut make)]),
        None => Report::no_such_check(name),
    }
}

fn run_check<H: Harness>(check: &Check, make: &mut impl FnMut() -> H) -> CheckResult {
    let body = || -> Outcome {
        let first = make();
        let first = Subject::new(&first)?;
        match check.run {
            Run::One(run) => run(&first)?,
            Run::Two(run) => {
                let second = make();
                let second = Subject::new(&second)?;
                run(&first, &second)?;
                second.conclude()?;
            }
        }
        first.conclude()
    };
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.into()),
        Err(panic) => Some(format!("panicked: {}", message_of(&*panic))),
    };
    CheckResult { name: check.name, promise: check.promise, failure }
}
