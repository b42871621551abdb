//! The tests of the crate that need the simulated driver.

#![allow(unsafe_code, reason = "captures work of the tests")]

#[path = "../scene/mod.rs"]
mod scene;

mod every_order_is_needed;
mod g1_failed_calls;
mod g2_costs_and_races;
mod g2_kept_values;
mod g3_adopted_graphs;
mod g5_uses_before_a_capture;
