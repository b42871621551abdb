//! Stream-ordered GPU memory from a pool of the CUDA driver, with use tracking.
