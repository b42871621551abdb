//! The tests of the crate on the driver that the process uses.

mod announcements;
mod pools_and_launches;
