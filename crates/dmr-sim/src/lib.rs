//! A simulated CUDA driver that finds stream-ordering races, for tests without a GPU.
