//! The tests of the crate that need the simulated driver.

#[path = "../a3/mod.rs"]
mod a3;
#[path = "../scripted/mod.rs"]
mod scripted;

mod a2_budget_bypassed;
mod a3_check_all;
mod a3_faults;
mod a3_memory_is_short;
mod a3_strays;
mod a3_windows_and_streams;
mod a4_stacks;
