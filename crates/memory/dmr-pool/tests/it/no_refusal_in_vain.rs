//! Threads under a tight limit are refused only what did not fit: no request is refused while a
//! page or a segment was free, or in flight, all the time. `DMR_REFUSALS` sets the number of
//! refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, ResourceError, UseTrackingExt,
};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

use crate::upstreams::{UPSTREAMS, Upstream};

/// Bytes of each block: a page, or a segment.
const PAGE: u64 = 2 << 20;
/// Blocks that the limit allows,
const ROOM: u64 = 8;
/// and those that each thread holds at most.
const EACH: usize = 4;
const THREADS: usize = 4;
const TAG: AllocTag = AllocTag::new("in vain");

struct Scene {
    pool: PoolResource<Upstream>,
    streams: Vec<StreamLease>,
    /// Blocks that are held, or may be by a call under way.
    held: AtomicU64,
    /// The most blocks that were held since the call of each thread began.
    peaks: [AtomicU64; THREADS],
    refusals: AtomicU64,
    wanted: u64,
}

impl Scene {
    /// Returns `None` if the request was refused; panics if it fitted all the time.
    fn allocate(&self, thread: usize) -> Option<DeviceBlock> {
        self.peaks[thread].store(0, Ordering::SeqCst);
        // Before the call: what this one may take, the peaks of others have by then.
        let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
        for peak in &self.peaks {
            peak.fetch_max(held, Ordering::SeqCst);
        }
        match self.pool.allocate(PAGE as usize, self.streams[thread].id(), TAG) {
            Ok(block) => Some(block),
            Err(error) => {
                assert!(matches!(error, ResourceError::OutOfMemory { .. }), "{error}");
                let peak = self.peaks[thread].load(Ordering::SeqCst);
                assert!(peak > ROOM, "refused, with {peak} of {ROOM} blocks held at most: {error}");
                self.held.fetch_sub(1, Ordering::SeqCst);
                self.refusals.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn deallocate(&self, block: DeviceBlock) {
        self.pool.deallocate(block).unwrap();
        self.held.fetch_sub(1, Ordering::SeqCst);
    }

    fn run(&self, thread: usize) {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let mut blocks = Vec::new();
        while self.refusals.load(Ordering::Relaxed) < self.wanted {
            match random.u32(..8) {
                0 if !blocks.is_empty() => self.use_elsewhere(&blocks, &mut random),
                1..=3 if !blocks.is_empty() => {
                    self.deallocate(blocks.swap_remove(random.usize(..blocks.len())));
                }
                _ if blocks.len() < EACH => blocks.extend(self.allocate(thread)),
                _ => self.deallocate(blocks.swap_remove(0)),
            }
        }
        blocks.into_iter().for_each(|block| self.deallocate(block));
    }

    /// The memory is in flight when the block is freed.
    fn use_elsewhere(&self, blocks: &[DeviceBlock], random: &mut fastrand::Rng) {
        let block = &blocks[random.usize(..blocks.len())];
        let on = self.streams[random.usize(..THREADS)].id();
        let uses = [BlockUse::new(block.id(), Access::Write)];
        let tokens = self.pool.prepare_uses(&uses, on).unwrap();
        self.pool.finish_uses(tokens).unwrap();
    }
}

#[test]
fn what_fits_all_the_time_is_not_refused() {
    let wanted = std::env::var("DMR_REFUSALS").map_or(20_000, |number| number.parse().unwrap());
    for upstream in UPSTREAMS {
        let rig = Rig::new();
        let config = PoolConfig::fast().with_growth(PAGE).with_page_size(PAGE);
        let config = config.with_maximum_size(ROOM * PAGE);
        let pool = PoolResource::new(upstream(&rig), Arc::clone(rig.streams()), config).unwrap();
        let scene = Scene {
            pool,
            streams: (0..THREADS).map(|_| rig.stream()).collect(),
            held: AtomicU64::new(0),
            peaks: Default::default(),
            refusals: AtomicU64::new(0),
            wanted,
        };
        thread::scope(|scope| {
            (0..THREADS).for_each(|thread| {
                let scene = &scene;
                scope.spawn(move || scene.run(thread));
            });
        });
        drop(scene);
        rig.assert_clean();
    }
}
