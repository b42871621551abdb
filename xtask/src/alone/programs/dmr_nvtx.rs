//! `dmr-nvtx` alone: without a tool it announces nothing and runs the work.

fn main() {
    assert!(dmr_nvtx::memory_observer().is_none());
    assert_eq!(dmr_nvtx::range(c"alone", || dmr_nvtx::restricted(&[], || 1)), 1);
}
