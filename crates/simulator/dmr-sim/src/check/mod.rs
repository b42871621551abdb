//! The checks: the history of each byte, live and freed blocks, findings and reports.

pub(crate) mod declared;
pub(crate) mod findings;
pub(crate) mod freed;
pub(crate) mod history;
pub(crate) mod log;
pub(crate) mod operation;
pub(crate) mod regions;
pub(crate) mod report;
pub(crate) mod shadow;
pub(crate) mod undeclared;
pub(crate) mod words;
