//! S1, D4: a call that waits for a stream returns when the device is lost, long before its timeout.

use std::thread;
use std::time::{Duration, Instant};

use dmr_core::ResourceError;
use dmr_streams::StreamPoolConfig;
use dmr_testkit::{Rig, RigConfig};

const FOREVER: Duration = Duration::from_secs(60);
const ILLEGAL_ADDRESS: i32 = 700;

#[test]
fn a_lost_device_ends_a_wait_for_a_stream_and_refuses_the_next_one() {
    let streams = StreamPoolConfig::new().with_max_streams(1);
    let rig = Rig::with(RigConfig { streams, simulated: true, ..RigConfig::default() });
    let held = rig.stream();
    let before = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.streams().acquire_timeout(FOREVER));
        thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        rig.universe().lose_device(0, ILLEGAL_ADDRESS);
        assert!(rig.device().synchronize().is_err());
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, ResourceError::DeviceLost { .. }), "{error}");
    });
    let error = rig.streams().acquire_timeout(FOREVER).unwrap_err();
    assert!(matches!(error, ResourceError::DeviceLost { .. }), "{error}");
    assert!(before.elapsed() < FOREVER / 2);
    drop(held);
}
