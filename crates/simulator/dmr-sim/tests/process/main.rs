//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

#[path = "../support/mod.rs"]
mod support;

mod driver_variable;
mod sim_fork;
mod sim_install;
mod sim_unread_findings;
