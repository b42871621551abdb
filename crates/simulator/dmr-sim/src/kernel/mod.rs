//! Kernels: their arguments, footprints and bodies, the PTX in images, and its interpreter.
//!
//! A kernel is a closure, also one as PTX: its body calls the interpreter. It sees its memory as
//! [`KernelMemory`], which permits and records each access.

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

pub(crate) use args::KernelArgs;
pub(crate) use body::{Fallback, Kernel};
pub(crate) use byte_set::{ByteSet, Chunk};
pub(crate) use compiler_log::{CompilerLog, LogBuffers};
pub(crate) use footprint::Footprint;
pub(crate) use image::{Linker, Refused};
pub(crate) use interpreter::Loaded;
pub(crate) use memory::KernelMemory;
pub(crate) use module::{Kernels, Module, Placed};
pub(crate) use recorder::Recorder;
pub(crate) use recording::{Lanes, Recording, Sites};
pub(crate) use refusal::Refusal;
