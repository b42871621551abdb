//! The tests of the crate on the driver that the process uses.

mod conformance;
mod limits;
mod s3_drop_orders;
mod t10_parts;
mod t1_threads_without_the_context;
mod t6_accounting_is_exact;
mod u7_open_windows;
mod u9_a_free_makes_no_stream_wait;
