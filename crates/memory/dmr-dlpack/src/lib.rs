//! Tensors of other libraries by [DLPack], in and out of stream-ordered GPU memory.
//!
//! A tensor of another library is imported with the stream or the event of its producer, and is
//! tracked from then on as memory of this library is. A tensor that is exported makes the stream of
//! its consumer wait for all recorded uses first, and comes back when the consumer deletes it.
//!
//! | module | what it contains |
//! | --- | --- |
//! | [`tensor`] | [`Tensor`]: elements with a type, a shape and strides |
//! | [`import`](mod@import) | [`import()`], of both kinds of managed tensors |
//! | [`export`](mod@export) | [`Tensor::export`], and the end of an exported tensor |
//! | [`layout`] | [`Layout`]: the type, shape and strides of a tensor, and the bytes that they span |
//! | [`error`] | [`ImportError`], which names the field |
//!
//! [`dlpark`] has the C structs.
//!
//! [DLPack]: https://dmlc.github.io/dlpack/latest/

#![allow(unsafe_code, reason = "reads and makes structs of C")]

pub mod error;
pub mod export;
pub mod import;
pub mod layout;
pub mod tensor;

pub use dlpark;

pub use error::{FieldProblem, ImportError};
pub use export::{Consumer, ExportError, Exported};
pub use import::import;
pub use layout::Layout;
pub use tensor::Tensor;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
