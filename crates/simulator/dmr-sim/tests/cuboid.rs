//! Call sites in reports are places in the user's program, even if its crate, as this one, and its
//! functions have names that begin as those of cudarc and of the driver do.

#![allow(unsafe_code)] // cudarc's streams are used without its tracking

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use dmr_sim::Universe;

#[inline(never)]
fn cut_rows(stream: &Arc<CudaStream>, bytes: &mut CudaSlice<u8>) -> u32 {
    stream.memset_zeros(bytes).unwrap();
    line!() - 1
}

#[test]
fn a_call_site_is_in_the_user_s_crate_whatever_its_name_begins_with() {
    let universe = Universe::builder().capture_call_sites(true).build().unwrap();
    let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
    // SAFETY: that the streams are not ordered is what is reported.
    unsafe { gpu.disable_event_tracking() };
    let a = gpu.new_stream().unwrap();
    let b = gpu.new_stream().unwrap();
    let mut bytes = a.alloc_zeros::<u8>(64).unwrap();
    a.synchronize().unwrap();
    let lines = [cut_rows(&a, &mut bytes), cut_rows(&b, &mut bytes)];
    let reports = universe.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    let sites = [reports[0].first.as_ref().unwrap(), &reports[0].second];
    for (site, line) in sites.into_iter().zip(lines) {
        let place = site.call_site().expect("a call site");
        assert!(place.contains(&format!("tests/cuboid.rs:{line}:")), "{place}");
    }
    drop(bytes);
    assert_eq!(universe.reports().len(), 2, "the free on `a` does not wait for `b`");
}
