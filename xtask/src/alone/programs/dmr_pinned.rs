//! `dmr-pinned` alone: pinned memory of a stream pool, dropped, reaped and returned to the driver.

use dmr_pinned::{PinnedMemory, PinnedPool};
use dmr_sim::Universe;
use dmr_streams::{Device, StreamPool, StreamPoolConfig};

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let streams = StreamPool::new(device, StreamPoolConfig::new()).unwrap();
    drop(PinnedMemory::new(&streams, 1000, streams.default_stream()).unwrap());
    let pool = PinnedPool::of(&streams);
    pool.reap_pending().unwrap();
    assert!(pool.trim_to(0).unwrap() >= 1000);
    drop(streams);
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
