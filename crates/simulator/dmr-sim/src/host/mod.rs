//! The process and the threads that call the driver: forks, `cuInit`, contexts, labels, locks.

pub(crate) mod callback;
pub(crate) mod capture_mode;
pub(crate) mod current_context;
pub(crate) mod faults;
pub(crate) mod fork;
pub(crate) mod initialised;
pub(crate) mod label;
pub(crate) mod python;
pub(crate) mod sync;

pub(crate) use faults::{CallCounts, Faults, Hold, Instead};
pub(crate) use label::{CallStack, Frames};
