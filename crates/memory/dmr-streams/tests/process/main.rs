//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

mod d3_ordinal_out_of_range;
mod sim_many_streams;
