//! `dmr-recorder` alone: an event is recorded and written.

use dmr_recorder::{RecorderConfig, label, start, stop, write_recording_to};

fn main() {
    start(RecorderConfig::new()).unwrap();
    drop(label("alone"));
    let mut file = Vec::new();
    let written = write_recording_to(&mut file).unwrap();
    assert_eq!(written.events, 2);
    stop();
}
