//! Installation of the simulator in place of libcuda, and separation of universes.
#![allow(unsafe_code)] // the driver is called directly

use std::thread;

use crate::support::gpu::{self, Gpu, code, fill, kinds, malloc};
use cudarc::driver::{CudaContext, result, sys};
use dmr_sim::{Because, Driver, Universe};

#[test]
fn installing_again_changes_nothing() {
    dmr_sim::install().unwrap();
    dmr_sim::install().unwrap();
    let universe = Universe::new().unwrap();
    let _gpu = Gpu::new(&universe);
    dmr_sim::install().unwrap();
    malloc(64).unwrap();
}

#[test]
fn cudarc_finds_the_simulated_driver() {
    dmr_sim::install().unwrap();
    // SAFETY: asks whether the library can be loaded.
    assert!(unsafe { sys::is_culib_present() });
    let universe = Universe::new().unwrap();
    let context = CudaContext::new(universe.ordinal(0)).unwrap();
    let name = context.name().unwrap();
    assert!(name.to_lowercase().contains("simulated"), "{name}");
}

#[test]
fn many_threads_install_at_once() {
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let universe = Universe::new().unwrap();
                let _gpu = Gpu::new(&universe);
                malloc(64).unwrap();
            });
        }
    });
}

#[test]
fn after_an_installation_the_process_runs_on_the_simulator() {
    dmr_sim::install().unwrap();
    // Unless the environment selects a driver.
    let expected = match std::env::var("DMR_DRIVER").as_deref() {
        Ok("cuda") => Driver::Cuda,
        Ok("sim") => Driver::Simulated(Because::Requested),
        _ => Driver::Simulated(Because::Installed),
    };
    assert_eq!(dmr_sim::select(), Ok(expected));
}

#[test]
fn ordinals_belong_to_one_universe_at_a_time() {
    let one = Universe::new().unwrap();
    let two = Universe::new().unwrap();
    let mut ordinals = [one.ordinal(0), one.ordinal(1), two.ordinal(0), two.ordinal(1)];
    ordinals.sort_unstable();
    assert!(ordinals.windows(2).all(|pair| pair[0] < pair[1]));
    let count = result::device::get_count().unwrap() as usize;
    assert!(count > ordinals[3]);
}

#[test]
fn an_ordinal_without_a_device_is_invalid() {
    let universe = Universe::new().unwrap();
    let _ = universe.ordinal(0);
    result::init().unwrap();
    let invalid = sys::CUresult::CUDA_ERROR_INVALID_DEVICE as i32;
    for ordinal in [-1, 1_000_000] {
        assert_eq!(code(result::device::get(ordinal)), Some(invalid));
    }
}

#[test]
fn an_ended_universe_is_refused() {
    let universe = Universe::new().unwrap();
    let gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    drop(universe);
    assert!(malloc(64).is_err());
    assert!(fill(block, 1, 64, a).is_err());
    assert!(gpu::sync(a).is_err());
    drop(gpu);
}

#[test]
fn a_clone_keeps_the_universe_alive() {
    let universe = Universe::new().unwrap();
    let clone = universe.clone();
    let _gpu = Gpu::new(&universe);
    drop(universe);
    malloc(64).unwrap();
    assert_eq!(clone.finish().reports.len(), 1, "one leak");
}

#[test]
fn universes_on_parallel_threads_do_not_see_each_other() {
    thread::scope(|scope| {
        for racy in [true, false, true, false, true, false, true, false] {
            scope.spawn(move || {
                let universe = Universe::new().unwrap();
                let _gpu = Gpu::new(&universe);
                let a = gpu::stream();
                let b = gpu::stream();
                for _ in 0..200 {
                    let block = malloc(64).unwrap();
                    fill(block, 1, 64, a).unwrap();
                    if !racy {
                        gpu::order(a, b);
                    }
                    fill(block, 2, 64, b).unwrap();
                    gpu::free(block).unwrap();
                }
                assert_eq!(kinds(&universe).len(), if racy { 200 } else { 0 });
                assert_eq!(universe.calls().count("cuMemAlloc_v2"), 200);
            });
        }
    });
}

#[test]
fn a_handle_of_another_universe_is_refused_or_kept_apart() {
    let one = Universe::new().unwrap();
    let two = Universe::new().unwrap();
    let first = Gpu::new(&one);
    let a = gpu::stream();
    let event = gpu::event();
    let _second = Gpu::new(&two);
    let b = gpu::stream();
    assert!(gpu::record(event, b).is_err());
    assert!(gpu::wait(b, event).is_err());
    first.bind();
    gpu::record(event, a).unwrap();
    gpu::sync(a).unwrap();
}

#[test]
fn an_ended_universe_holds_nothing() {
    let universe = Universe::new().unwrap();
    let gpu = Gpu::new(&universe);
    let held = std::sync::Arc::new(());
    let inside = held.clone();
    universe.register_kernel(
        "keeper",
        move |_| {
            let _ = &inside;
            dmr_sim::Footprint::new()
        },
        |_, _| (),
    );
    malloc(64).unwrap(); // this thread's last call was to this universe
    drop((gpu, universe));
    assert_eq!(std::sync::Arc::strong_count(&held), 1);
}
