//! The tests of the crate.

mod conformance_on_a_fake;
mod forwarding;
mod ledger_model;
mod part_ledger_model;
