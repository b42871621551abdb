//! The tests of the crate on the driver that the process uses.

mod conformance;
mod d2_deallocate_never_frees;
mod s3_drop_orders;
mod t3_sizes;
mod t4_errors_return_the_block;
mod t5_no_tracking_is_loud;
mod t6_accounting_is_exact;
mod u8_a_free_comes_after_the_work;
