//! D8, simulated: a future that is ready makes no driver call.
//!
//! Alone in its process: one thread looks at the futures of the whole process, and its first call
//! for another device counts for the one before, whose context is current.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use dmr_testkit::{CountedWakes, HeldStream, Rig, block_on};

#[test]
fn polls_make_no_driver_call() {
    let rig = Rig::simulated();
    let [stream, other] = [rig.stream(), rig.stream()];
    let held = HeldStream::hold(rig.streams(), &stream);
    let mut completed = rig.streams().completed(&stream);
    let wakes = Arc::new(CountedWakes::default());
    assert!(wakes.poll(&mut completed).is_pending());
    held.release();
    let start = Instant::now();
    while wakes.count() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "no wake");
        std::thread::sleep(Duration::from_micros(100));
    }
    block_on(rig.streams().completed(&other)).unwrap();
    rig.universe().reset_calls();
    for _ in 0..10 {
        assert_eq!(wakes.poll(&mut completed), Poll::Ready(Ok(())));
    }
    drop(completed);
    assert_eq!(rig.universe().calls().total(), 0);
    drop((held, stream, other));
    rig.assert_clean();
}
