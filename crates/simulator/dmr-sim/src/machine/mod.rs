//! The simulated machine: its state, the submission and execution of work, and driver calls.

pub(crate) mod checks;
pub(crate) mod declarations;
pub(crate) mod end_times;
pub(crate) mod engine;
pub(crate) mod executable;
pub(crate) mod graph;
pub(crate) mod graph_capture;
pub(crate) mod graph_memory;
pub(crate) mod host_clock;
pub(crate) mod leaks;
pub(crate) mod modules;
pub(crate) mod objects;
pub(crate) mod operation;
pub(crate) mod pinned;
pub(crate) mod refusals;
pub(crate) mod registry;
pub(crate) mod running;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod stream_memory;
pub(crate) mod transfers;
pub(crate) mod user_objects;
pub(crate) mod virtual_memory;
pub(crate) mod waiting;
