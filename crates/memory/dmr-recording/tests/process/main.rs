//! Tests that end processes.

#[path = "../support/mod.rs"]
mod support;

mod killed_writers;
