//! A simulated driver in a process: installed, booted, and the interface of tests.

pub(crate) mod boot;
pub(crate) mod elf;
pub(crate) mod install;
pub(crate) mod universe;
