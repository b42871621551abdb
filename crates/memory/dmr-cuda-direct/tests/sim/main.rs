//! The tests of the crate that need the simulated driver.

mod d2_deallocate_makes_no_driver_call;
mod driver_calls;
mod faults;
mod observer;
mod t4_failures_change_nothing;
