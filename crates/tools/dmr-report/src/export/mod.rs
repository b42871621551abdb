//! The events in the formats of other viewers.

pub mod perfetto;
mod pickle;
pub mod pytorch;
mod segments;
