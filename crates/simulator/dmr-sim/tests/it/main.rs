//! The tests of the crate on the driver that the process uses.

#[path = "../support/mod.rs"]
mod support;

mod argument_facts;
mod capture_facts;
mod user_object_facts;
mod virtual_memory_facts;
