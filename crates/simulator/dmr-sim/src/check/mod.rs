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
pub(crate) mod table;
pub(crate) mod undeclared;
pub(crate) mod words;

pub(crate) use findings::Findings;
pub(crate) use freed::Freed;
pub(crate) use history::{Before, Check, Finding, History};
pub(crate) use log::{CheckLog, Logged, LoggedLaunch, Ticket};
pub(crate) use regions::{AddressState, Heaps, LibraryBlock};
pub(crate) use report::{Report, ReportKind, Verdict};
pub(crate) use shadow::Shadow;
pub(crate) use undeclared::Undeclared;
pub(crate) use words::{How, Test, Value, Wait, Words};
