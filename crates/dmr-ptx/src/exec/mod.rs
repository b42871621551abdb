//! Programs and their execution: warps, memory, barriers, calls.
