//! An allocation makes the host wait for device work no longer than its thread lets it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, ResourceError, UseTrackingExt,
    wait_at_most,
};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::StreamLease;
use dmr_testkit::{HeldStream, Rig};

use crate::upstreams::{Make, UPSTREAMS, Upstream};

const MIB: u64 = 1 << 20;
const QUARTER: usize = 512 << 10;
const TAG: AllocTag = AllocTag::new("wait at most");

type Pool = PoolResource<Upstream>;

/// A full pool in which two neighbours were freed that a stream which is held still uses. The block
/// that would fit needs both.
struct Full {
    pool: Pool,
    kept: Vec<DeviceBlock>,
    held: HeldStream,
    own: StreamLease,
    _others: [StreamLease; 2],
}

impl Full {
    fn new(rig: &Rig, upstream: Make) -> Self {
        let config = PoolConfig::fast().with_growth(2 * MIB).with_page_size(2 * MIB);
        let config = config.with_maximum_size(4 * MIB);
        let pool = PoolResource::new(upstream(rig), Arc::clone(rig.streams()), config).unwrap();
        let [own, b, c] = [rig.stream(), rig.stream(), rig.stream()];
        let quarters = |of: &StreamLease| -> Vec<_> {
            (0..4).map(|_| pool.allocate(QUARTER, of.id(), TAG).unwrap()).collect()
        };
        let mut kept = quarters(&c);
        let mut freed = quarters(&b);
        freed.sort_by_key(DeviceBlock::ptr);
        kept.extend([freed.remove(0), freed.remove(2)]);
        let held = HeldStream::hold(rig.streams(), &c);
        for block in freed {
            let uses = [BlockUse::new(block.id(), Access::Write)];
            let tokens = pool.prepare_uses(&uses, c.id()).unwrap();
            pool.finish_uses(tokens).unwrap();
            pool.deallocate(block).unwrap();
        }
        Self { pool, kept, held, own, _others: [b, c] }
    }

    fn allocate(&self) -> Result<DeviceBlock, ResourceError> {
        self.pool.allocate(2 * QUARTER, self.own.id(), TAG)
    }

    fn end(self) {
        let Self { pool, kept, held, .. } = self;
        drop(held);
        for block in kept {
            pool.deallocate(block).unwrap();
        }
    }
}

#[test]
fn a_wait_ends_at_the_deadline() {
    for upstream in UPSTREAMS {
        let rig = Rig::new();
        let full = Full::new(&rig, upstream);
        for limit in [Duration::ZERO, Duration::from_millis(30)] {
            let start = Instant::now();
            let refused = wait_at_most(limit, || full.allocate());
            assert!(start.elapsed() >= limit, "{:?}", start.elapsed());
            assert!(matches!(refused, Err(ResourceError::OutOfMemory { .. })), "{refused:?}");
        }
        full.end();
        rig.assert_clean();
    }
}

#[test]
fn memory_whose_work_is_done_before_the_deadline_is_found() {
    for upstream in UPSTREAMS {
        let rig = Rig::new();
        let mut full = Full::new(&rig, upstream);
        let found = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                full.held.release();
            });
            wait_at_most(Duration::from_secs(3600), || full.allocate()).unwrap()
        });
        full.kept.push(found);
        full.end();
        rig.assert_clean();
    }
}

#[test]
fn a_reap_ends_at_the_deadline_and_a_drop_does_not() {
    for upstream in UPSTREAMS {
        let rig = Rig::new();
        let full = Full::new(&rig, upstream);
        let reaped = wait_at_most(Duration::ZERO, || full.pool.reap_pending());
        assert!(matches!(reaped, Err(ResourceError::Driver { .. })), "{reaped:?}");
        wait_at_most(Duration::ZERO, || full.end());
        rig.assert_clean();
    }
}
