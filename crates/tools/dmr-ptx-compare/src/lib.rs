//! Runs the kernels of PTX files on the simulator and on a GPU, and compares the results bit by
//! bit.
//!
//! The name of a kernel determines its arguments: the kernels of the crate `candle-kernels` have
//! names such as `uexp_f32` and `conv2d_bf16`, and a convention for each family. The same seed
//! makes the same arguments on every machine, so that only results travel between machines.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`element`] | types of elements: encoding, decoding, distance in units of the last place |
//! | [`draw`] | random values, special values among them |
//! | [`launch`] | a launch: grid, arguments, outputs |
//! | [`plan`] | the launches of a kernel, by the conventions of its family |
//! | [`device`] | runs launches through the driver, simulated or not |
//! | [`results`] | the file of results |
//! | [`features`] | properties of PTX that permit several results: contraction, approximations, atomics of floats |
//! | [`compile`], [`split`] | compiles the kernels, and splits PTX into parts |
//! | [`recorded`] | results that a GPU has recorded, as text |
//! | [`report`], [`table`] | the comparison of two files of results, and its table |

pub mod compile;
pub mod device;
pub mod draw;
pub mod element;
pub mod features;
pub mod launch;
pub mod plan;
pub mod recorded;
pub mod report;
pub mod results;
pub mod split;
pub mod table;
