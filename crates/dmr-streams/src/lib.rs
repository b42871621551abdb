//! CUDA devices, stream pools and device operations for stream-ordered GPU memory.
