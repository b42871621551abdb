//! The tests of the crate that need the simulated driver.

#[path = "../context/mod.rs"]
mod context;

mod d5_lies_about_host_memory;
mod d5_pinned_order;
mod r9_pinned_views;
