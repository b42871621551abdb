//! The tests of the crate on the driver that the process uses.

mod blocks_are_large_enough;
mod conformance;
mod dedicated_segments;
mod grow_in_place;
mod limits;
mod no_refusal_in_vain;
mod parts;
mod segments;
mod slots_are_not_lost;
mod stats;
mod t12_wait_at_most;
mod t1_another_context_is_current;
mod t4_blocks_of_others;
mod t4_blocks_that_upstream_exchanges;
mod t4_panicking_observers;
mod t7_reaps;
mod threads;
mod upstreams;
