//! Stream-ordered GPU memory from cuMemAlloc and cuMemFree: what a memory checker sees.
