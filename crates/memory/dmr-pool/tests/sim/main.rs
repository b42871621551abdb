//! The tests of the crate that need the simulated driver.

#[path = "../support/mod.rs"]
mod support;

mod addresses;
mod d2_growth_holds_nothing_up;
mod d2_reaps_hold_nothing_up;
mod driver_calls;
mod drop_after_retirement;
mod every_order_is_needed;
mod faults;
mod full_upstream;
mod grow_in_place;
mod in_flight;
mod large_blocks;
mod no_refusal_in_vain;
mod observer;
mod observer_follows_streams;
mod out_of_memory;
mod pages_moves;
mod pages_trace;
mod pressure;
mod stalls;
mod stress;
mod t9_pending_chunks;
mod u14_capture;
mod u6_launches_in_any_order;
mod u7_failed_prepare;
mod upstream_panics;
