//! The tests of the crate that need the simulated driver.

#[path = "../peers/mod.rs"]
mod peers;

mod a_failure_loses_nothing;
mod d10_peer_access;
mod d10_peer_launches;
mod d1_parts_of_two_devices;
mod d1_try_get;
mod d2_every_call_held;
mod d4_lost_by_a_kernel;
mod d4_lost_device;
mod every_order_is_needed;
mod pool_over_pages_or_blocks;
mod r10_giving_away;
mod r11_every_declaration_is_needed;
mod r11_undeclared_accesses;
mod t9_trim;
mod the_simulator_sees_blocks;
mod u13_drops;
mod u14_captures_of_others;
mod u14_lent_streams;
