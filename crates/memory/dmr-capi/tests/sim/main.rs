//! The tests of the exported functions on the simulated driver.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "calls the functions as a program in C does")]

mod support;

mod c10_columns;
mod c11_recordings;
mod c1_errors;
mod c2_versions;
mod c3_order;
mod c4_streams;
mod c5_nothing_is_lost;
mod c6_threads_and_forks;
mod c7_reports;
mod c8_spilling;
mod c9_tensors;
