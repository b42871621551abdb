//! The tests of the crate whose process forks.

mod d4_forked_child;
