//! A refusal is reported once, when other threads can call the driver again.
#![allow(unsafe_code)] // the driver is called directly

use std::sync::mpsc;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use dmr_sim::{Refusal, Universe};

use crate::support::gpu::Gpu;
use crate::support::named::call;

static UNIVERSE: OnceLock<Universe> = OnceLock::new();
static OTHERS_COULD_CALL: Mutex<Vec<bool>> = Mutex::new(Vec::new());

fn report(_: &Refusal) {
    let (done, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = UNIVERSE.get().map(Universe::refusals);
        let _ = done.send(());
    });
    let could = heard.recv_timeout(Duration::from_secs(5)).is_ok();
    OTHERS_COULD_CALL.lock().unwrap().push(could);
}

#[test]
fn sim_a_refusal_is_reported_once_and_without_the_lock() {
    let universe = Universe::builder().report_refusals(report).build().unwrap();
    let _gpu = Gpu::new(&universe);
    UNIVERSE.set(universe).unwrap();
    for _ in 0..2 {
        assert_eq!(call!(cuArrayDestroy(0 => u64)), 801); // CUDA_ERROR_NOT_SUPPORTED
    }
    assert_eq!(*OTHERS_COULD_CALL.lock().unwrap(), [true]);
}
