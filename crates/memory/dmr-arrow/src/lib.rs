//! Arrow's C device interface for stream-ordered GPU memory.
//!
//! Libraries pass columns to each other as two C structs: a type, and buffers in device memory with
//! an event behind which they can be read. [`ArrowColumn::import`] adopts the buffers of another
//! library, which are tracked from then on; [`ArrowColumn::export`] lends the buffers of a column.
//!
//! | module | what it contains |
//! | --- | --- |
//! | [`abi`] | [`ArrowSchema`], [`ArrowArray`], [`ArrowDeviceArray`]: the structs, and their release |
//! | [`mod@column`] | [`ArrowColumn`] and its buffers; [`Primitive`], the types of elements |
//! | [`parts`] | [`ColumnParts`], to make a column |
//! | [`mod@format`] | [`Format`](format::Format), the types of columns |
//! | [`error`] | [`ColumnError`], [`ColumnImportError`] |
//! | `import`, `plan`, `shape` | import: reading, checking, adopting |
//! | `export`, `returned` | export: the event, the structs, and the end of lent memory |

#![allow(unsafe_code, reason = "reads and makes the structs of a C interface")]

pub mod abi;
pub mod column;
pub mod error;
mod export;
pub mod format;
mod import;
pub mod parts;
mod plan;
mod returned;
mod shape;

pub use abi::{ArrowArray, ArrowDeviceArray, ArrowSchema};
pub(crate) use column::Head;
pub use column::{ArrowColumn, ColumnBuffer, Primitive};
pub use error::{ColumnError, ColumnImportError};
pub use export::ExportedColumn;
pub use parts::ColumnParts;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
