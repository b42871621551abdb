//! Harness of this workspace's tests: one source for the simulated and the real driver.
