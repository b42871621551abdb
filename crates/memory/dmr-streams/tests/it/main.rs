//! The tests of the crate on the driver that the process uses.

mod d8_futures;
mod device_properties;
mod ops_patterns;
mod s1_capacity;
mod s1_waiting;
mod s2_adopted_streams;
mod s2_raw_handles;
mod s2_slots_used_again;
mod s3_drop_orders;
mod t1_default;
mod t2_ids;
mod t4_blocks_that_upstream_exchanges;
mod tracked_conformance;
mod tracked_u7_u9_frees;
mod u4_nothing_later_is_waited_for;
mod u6_launches_in_any_order;
