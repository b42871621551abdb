//! The tests of the crate on the driver that the process uses.

#![allow(unsafe_code, reason = "captures work of the tests")]

#[path = "../scene/mod.rs"]
mod scene;

mod g1_a_capture_is_whole_or_nothing;
mod g2_a_replay_is_one_use;
mod g3_update_and_adopt;
mod g4_memory_in_a_capture;
mod g_random_programs;
