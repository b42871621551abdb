//! Helpers of the tests: runs of forms, random texts and random programs.

pub(crate) mod forms;
pub(crate) mod mutations;
pub(crate) mod programs;
