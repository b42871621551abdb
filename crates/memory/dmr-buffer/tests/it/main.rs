//! The tests of the crate on the driver that the process uses.

#[path = "../context/mod.rs"]
mod context;

mod buffers_and_views;
mod casts;
mod d5_copies_free_the_host;
mod d5_pinned;
mod d7_pinned_views;
mod d8_to_host;
mod d9_exchanged_block;
mod f3_columns;
mod fills;
mod peers_copies;
mod r10_adopt;
mod s3_drop_orders;
mod t3_sizes;
mod t4_failed_drops_are_kept;
mod u_buffers_on_many_streams;
