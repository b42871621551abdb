//! `dmr-streams` alone: a device, a pool of streams and a lease, and with `cudarc` its stream.

use dmr_sim::Universe;
use dmr_streams::{Device, StreamPool, StreamPoolConfig};

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let pool = StreamPool::new(device, StreamPoolConfig::new().with_max_streams(2)).unwrap();
    let lease = pool.acquire().unwrap();
    #[cfg(feature = "cudarc")]
    lease.stream().synchronize().unwrap();
    pool.synchronize_all().unwrap();
    drop((lease, pool));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
