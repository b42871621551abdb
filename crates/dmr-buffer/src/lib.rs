//! Typed device buffers, pinned buffers and columns over stream-ordered GPU memory.
