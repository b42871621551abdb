//! Stream-ordered GPU device memory: one runtime per GPU, swappable backends.
