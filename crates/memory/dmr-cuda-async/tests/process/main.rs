//! The tests of the crate whose process forks, exits, starts itself again or counts for itself.

mod d4_forked_child;
