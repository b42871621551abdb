//! The tests of the crate.

mod command;
mod sim_planted_faults;
mod verify;
