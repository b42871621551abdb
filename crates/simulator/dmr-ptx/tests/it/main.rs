//! The tests of the crate.

#[path = "../exec_memory/mod.rs"]
mod exec_memory;
#[allow(dead_code, reason = "the example `hardware` uses the rest")]
#[path = "../hardware/mod.rs"]
mod hardware;
#[path = "../support/mod.rs"]
mod support;

mod exec_arith;
mod exec_checks;
mod exec_checks_off;
mod exec_clock;
mod exec_clusters;
mod exec_copies;
mod exec_flow;
mod exec_grid;
mod exec_hostile;
mod exec_link;
mod exec_mbarrier;
mod exec_planted;
mod exec_tensors;
mod exec_undefined;
mod exec_uniform;
mod exec_used_bytes;
mod exec_warp;
mod fatbin_images;
mod hardware_results;
mod syntax_bodies;
mod syntax_modules;
mod syntax_random;
