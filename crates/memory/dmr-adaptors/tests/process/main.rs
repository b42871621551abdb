//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

#[path = "../a1/mod.rs"]
mod a1;
#[path = "../a3/mod.rs"]
mod a3;

mod a1_accepted_rows_reach_the_file;
mod a1_forked_child;
mod a1_the_log_is_whole_at_exit;
mod a1_tracing_events;
mod a3_forked_child;
mod a4_statistics_forked_child;
