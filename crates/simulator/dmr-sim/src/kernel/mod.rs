//! Kernels: their arguments, footprints and bodies, the PTX in images, and its interpreter.

pub(crate) mod args;
pub(crate) mod body;
pub(crate) mod byte_set;
pub(crate) mod compiler_log;
pub(crate) mod footprint;
pub(crate) mod image;
pub(crate) mod interpreter;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod recorder;
pub(crate) mod recording;
pub(crate) mod refusal;
