//! The tests of the crate on the driver that the process uses.

#[path = "../a1/mod.rs"]
mod a1;
#[path = "../a2_support/mod.rs"]
mod a2_support;
#[path = "../a3/mod.rs"]
mod a3;
#[path = "../scripted/mod.rs"]
mod scripted;

mod a1_a_file_that_cannot_be_written;
mod a1_a_full_queue;
mod a1_a_log_replays;
mod a1_a_sink_never_changes_a_call;
mod a1_every_call_is_one_record;
mod a1_formats_round_trip;
mod a1_rows_sort_into_the_order_of_the_calls;
mod a2_budget_conformance;
mod a2_budget_counts_pages;
mod a2_budget_is_never_exceeded;
mod a2_budget_leases;
mod a2_budget_limits;
mod a2_budget_over_backends;
mod a2_budget_refusals;
mod a2_budget_shared;
mod a2_budget_shared_is_locked;
mod a2_budget_shares;
mod a2_budget_upstream_panics;
mod a2_sampling_drifts;
mod a3_blocks_deallocated_twice;
mod a3_conformance;
mod a3_deallocations_end;
mod a3_no_false_alarm;
mod a3_quarantine_is_bounded;
mod a3_writes_after_free_are_found;
mod a3_writes_outside_are_found;
mod a4_aligned;
mod a4_aligned_on_backends;
mod a4_callbacks;
mod a4_callbacks_on_backends;
mod a4_forwarding;
mod a4_pinned_stacks;
mod a4_stacks_failures;
mod a4_statistics;
mod a4_statistics_export;
mod a4_statistics_on_backends;
mod a4_statistics_scopes;
mod a4_statistics_threads;
mod t10_parts;
mod t11_growing;
mod t4_blocks_that_upstream_exchanges;
