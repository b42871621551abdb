//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

#[path = "../forks/mod.rs"]
mod forks;

mod backend_variable;
mod d6_shutdown;
mod flight_recorder;
mod recorded_refusals;
mod recorded_waits;
mod recordings;
mod shared_budget;
mod sim_d4_forks_under_load;
mod sim_d6_at_exit;
mod sim_d8_at_exit;
mod sim_d9_growing_buffers;
mod sim_no_host_allocation;
