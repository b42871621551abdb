//! The call site of a race is the program's own: not in this library, whatever layers the call goes
//! through. Needs the line tables of the build.

#![cfg(feature = "pool")]
#![allow(unsafe_code, reason = "submits work by address")]

use std::sync::Arc;

use dmr::cudarc::driver::result::memset_d8_async;
use dmr::prelude::*;
use dmr_sim::Universe;
use dmr_testkit::Rig;

#[test]
fn the_call_site_of_a_race_is_the_program_s_own() {
    let universe = Universe::builder().capture_call_sites(true).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    let gpu = builder.backend(Backend::Pool).build().unwrap();
    let stream = rig.stream();
    let other = rig.stream();
    let x = DeviceBuffer::<u8>::zeroed(&gpu, &stream, 64).unwrap();
    let line = line!() - 1;
    let ptr = x.block().unwrap().ptr();
    // SAFETY: on the simulated driver, which reports the race.
    unsafe { memset_d8_async(ptr, 0, 64, other.stream().cu_stream()) }.unwrap();
    let reports = universe.reports();
    assert!(!reports.is_empty());
    for site in reports.iter().filter_map(|report| report.first.as_ref()) {
        let place = site.call_site().expect("a call site");
        assert!(place.contains(&format!("tests/build.rs:{line}:")), "{place}");
    }
    rig.device().synchronize().unwrap();
    drop((x, stream, other, gpu));
}
