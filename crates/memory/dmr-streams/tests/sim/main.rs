//! The tests of the crate that need the simulated driver.

#[path = "../no_memory/mod.rs"]
mod no_memory;

mod d8_futures;
mod device_bind;
mod ops_faults;
mod pool_creation;
mod s1_waiting;
mod s2_retirement;
mod s2_slots_used_again;
mod s2_u11_other_streams;
mod t4_panics_in_frees;
mod tracked_faults;
mod tracked_frees;
mod u12_life_of_a_slot;
mod u13_u14_unprotected_work;
mod u14_capture_mode;
mod u14_events_of_graphs;
mod u14_first_stream;
mod u14_legacy_stream;
mod u14_verdicts_and_captures;
mod u15_parts;
mod u1_u3_implied_waits;
mod u1_u6_windows_and_waits;
mod u2_u3_u11_calls;
mod u3_events_of_freed_blocks;
mod u5_order_numbers_and_events;
mod u6_launch_numbers;
mod u6_launch_tokens;
mod u6_u12_table;
mod u6_u7_windows;
mod u9_dependencies;
