//! Support of the simulator's tests: random programs, the brute-force oracle that judges them, and
//! thin driver calls.
#![allow(unsafe_code, reason = "the driver is called directly")]
// Each test file compiles this module and uses a part of it.
#![allow(dead_code)]

pub(crate) mod calls;
pub(crate) mod generate;
pub(crate) mod gpu;
pub(crate) mod graphs;
pub(crate) mod judge;
pub(crate) mod late;
pub(crate) mod model;
pub(crate) mod named;
pub(crate) mod oracle;
pub(crate) mod order;
pub(crate) mod program;
pub(crate) mod rng;
pub(crate) mod run;
pub(crate) mod shrink;
pub(crate) mod virtual_memory;
pub(crate) mod words;
