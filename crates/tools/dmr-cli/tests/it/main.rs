//! The tests of the crate.

mod command;
mod reports;
mod sim_planted_faults;
mod verify;
