//! The tests of the crate on the driver that the process uses.

#[path = "../counting/mod.rs"]
mod counting;
#[path = "../spy/mod.rs"]
mod spy;

mod r1_recording_ends_the_borrow;
mod r2_one_use_per_block;
mod r3_strict_refuses_before_anything_is_enqueued;
mod r5_a_failed_launch_is_recorded;
mod r6_strict_rejects_permissive_counts;
mod r8_timeouts;
mod r9_views;
mod r_launches_on_many_streams;
