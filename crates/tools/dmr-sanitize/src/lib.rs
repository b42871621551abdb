//! The programs of this workspace that run under Compute Sanitizer.
//!
//! | program | purpose |
//! | --- | --- |
//! | test target `device` | runs a subset of the device tests on one stack, or on every stack |
//! | binary `control` | commits one planted fault, which a tool must report |
//!
//! Both run on a GPU and on the simulated driver, and print lines that start with
//! [`lines::PREFIX`] for `cargo xtask sanitize`.
//!
//! # What the tools report
//!
//! Compute Sanitizer 2025.3.1 and 2026.4 on an H200, `--xml`. Each control in device memory prints
//! the address of its fault; an address in the tool's record is the same. Only the tool's text has
//! the distance from the nearest allocation, and it does not count stream-ordered allocations.
//!
//! | class | tool | the tool's record |
//! | --- | --- | --- |
//! | `overrun`, `underrun`, `use-after-free` | memcheck | kind `Precise`, error `out of bounds`; the address distinguishes them |
//! | `use-after-free`, where the use was submitted before the free | memcheck | kind `Stream-ordered race`, text `Use-after-free race` |
//! | `use-before-alloc` | memcheck | kind `Precise`, error `potentially accessed before it is allocated` or, in 2026.4, `potentially made before memory is allocated` |
//! | `leak` | memcheck | kind `Leak` |
//! | `double-free` | memcheck | kind `Api`: `cuMemFree_v2` or `cuMemFreeAsync`, `CUDA_ERROR_INVALID_VALUE`; no address |
//! | `uninitialized` | initcheck | kind `Initcheck` |
//! | `shared-race` | racecheck | kind `Analysis`, text `Race condition`; no address |
//! | `divergent-barrier` | synccheck | kind `Synccheck`, type `Divergent thread(s) in warp`; no address |
//!
//! The tools are run with `--destroy-on-device-error kernel`: by default they end the context at a
//! fault, and every later call of the driver is one more record. memcheck needs
//! `--leak-check full --track-stream-ordered-races all`.
//!
//! initcheck needs `--force-blocking-launches`. Without it, it misses writes of a kernel while
//! another host thread calls the driver, and reports copies of the written bytes, which are right,
//! as uninitialized. It did so in 8 of 24 runs of the tests in `threads` (2025.3.1; 2026.4: 7 of
//! 18), on direct blocks too; with the option in none of 24 (2026.4: 6).
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

/// The result of a program's functions: an error ends the program with its message.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
