//! D2: while the driver unmaps a page for one thread, the others go on.

use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::stage::{ALL, Stage};
use crate::support::{MIB, Upstream};
use dmr_core::{DeviceBlock, DeviceMemoryResource};
use dmr_pool::PoolConfig;

#[test]
fn a_reap_that_the_driver_keeps_waiting_does_not_keep_an_allocation_waiting() {
    let config = PoolConfig::compact().with_page_size(2 * MIB).with_maximum_size(8 * MIB);
    let stage = Stage::new(Upstream::Virtual, config);
    let [a, b, _] = stage.streams();
    // Two pages move, and leave their old addresses.
    let mut held: Vec<_> = (0..4).map(|_| stage.allocate(a, ALL)).collect();
    held.sort_by_key(DeviceBlock::ptr);
    for nth in [2, 0] {
        stage.free(held.remove(nth));
    }
    let block = stage.allocate(a, 2 * ALL);
    // Two more have to move for the next one.
    held.drain(..).for_each(|block| stage.free(block));
    // The events that it polls are recorded, and then complete.
    stage.pool.try_reap().unwrap();
    stage.rig.device().synchronize().unwrap();

    let (sent, received) = channel();
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = stage.universe().hold_nth("cuMemUnmap", 1);
        let reaps = scope.spawn(|| stage.pool.try_reap());
        hold.wait_until_held();
        let allocates = scope.spawn(|| {
            let block = stage.allocate(b, 2 * ALL);
            sent.send(()).unwrap();
            block
        });
        let in_time = received.recv_timeout(Duration::from_secs(20));
        hold.release();
        reaps.join().unwrap().unwrap();
        stage.free(allocates.join().unwrap());
        assert!(in_time.is_ok(), "the allocation came after the driver's call");
    });
    stage.free(block);
    stage.end();
}
