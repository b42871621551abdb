//! The tests of the crate that need the simulated driver.

#[path = "../pinned_support/mod.rs"]
mod pinned_support;

mod d7_pinned_segments;
mod d7_pinned_uses;
mod u14_pinned_drop;
