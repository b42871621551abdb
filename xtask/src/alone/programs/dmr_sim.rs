//! `dmr-sim` alone: cudarc runs on the simulated driver, which finds a race between two streams.

use cudarc::driver::CudaContext;
use dmr_sim::{ReportKind, Universe};

fn main() {
    let universe = Universe::new().unwrap();
    let context = CudaContext::new(universe.ordinal(0)).unwrap();
    // SAFETY: the accesses race; that is what the simulator has to report.
    unsafe { context.disable_event_tracking() };
    let a = context.new_stream().unwrap();
    let b = context.new_stream().unwrap();
    let zeros = a.alloc_zeros::<u32>(1024).unwrap();
    b.clone_dtoh(&zeros).unwrap();
    let found = universe.reports();
    assert!(found.iter().any(|report| report.kind == ReportKind::ReadAfterWrite), "{found:?}");
}
