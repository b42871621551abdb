//! The programs of this workspace that run under Compute Sanitizer.
//!
//! | program | what it does |
//! | --- | --- |
//! | test target `device` | runs a subset of the device tests on one stack, or on every stack |
//! | binary `control` | commits one planted fault, which a tool must report |
//!
//! Both run on a GPU and on the simulated driver, and print lines that start with
//! [`lines::PREFIX`] for `cargo xtask sanitize`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`stacks`] | the stacks, by name |
//! | [`lines`] | the lines for the runner |
//! | [`machine`] | the driver that a program runs on |
//! | [`tool`] | the four tools |
//! | [`faults`] | the kernels that commit faults |
//! | [`canary`] | one fault for each tool, in a process of its own |
//! | [`controls`] | the planted faults, by name |

pub mod canary;
pub mod controls;
pub mod faults;
pub mod lines;
pub mod machine;
pub mod stacks;
pub mod tool;

/// What a program returns: any error ends it with a message.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
