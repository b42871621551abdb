//! The threads make the calls of the peers, no stream reads memory too early or too late, and a
//! block that is lost is an error.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::sync::lock;
use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, ResourceError, ResourceResult, StreamId,
};

use super::*;
use crate::sequence::Fnv;

/// Refuses every seventh allocation, hashes the calls, and loses block number `lost` that is
/// deallocated (from 1 on).
#[derive(Debug)]
struct Faulty {
    inner: std::sync::Arc<dyn DeviceMemoryResource>,
    allocations: AtomicU64,
    deallocations: AtomicU64,
    lost: u64,
    hash: Mutex<Fnv>,
}

impl Faulty {
    fn of(stack: &Stack, lost: u64) -> Self {
        let inner = std::sync::Arc::clone(&stack.resource);
        let allocations = AtomicU64::new(0);
        let deallocations = AtomicU64::new(0);
        Self { inner, allocations, deallocations, lost, hash: Mutex::default() }
    }
}

impl DeviceMemoryResource for Faulty {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        lock(&self.hash).word(bytes as u64);
        if (self.allocations.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(7) {
            return Err(ResourceError::beyond_device(bytes, 0));
        }
        self.inner.allocate(bytes, stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        lock(&self.hash).word(1 << 63 | block.bytes() as u64);
        if self.deallocations.fetch_add(1, Ordering::Relaxed) + 1 == self.lost {
            return Ok(BlockState::Freed);
        }
        self.inner.deallocate(block)
    }

    dmr_core::forward!(
        inner: is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending, trim_to,
        use_tracking,
    );
}

/// Runs `steps` steps of `threads` threads over the default stack, of which block number `lost`
/// that is deallocated is lost. Returns the outcomes and the hash of the calls.
fn run_faulty(threads: u64, steps: usize, lost: u64) -> Result<(Vec<Outcome>, Fnv), BenchError> {
    let limit = 2048 << 20;
    let machine = Machine::open(0)?;
    let streams = machine.streams()?;
    let stack = stacks::limited("pool-pages", &streams, limit)?.unwrap().stack;
    let leases = (0..threads).map(|_| streams.acquire()).collect::<Result<Vec<_>, _>>()?;
    let resource = Faulty::of(&stack, lost);
    let work = Work { steps, most: share(limit, 90, threads), budget: Duration::MAX };
    let place = Place::new(&resource, machine.device(), &leases, work)?;
    let mut outcomes = place.pass(&mut || Ok(()))?;
    let hash = *lock(&resource.hash);
    place.free_all(&mut outcomes)?;
    assert_eq!(settle(&resource, machine.device())?, 0);
    assert_eq!(machine.findings(), Vec::<String>::new());
    Ok((outcomes, hash))
}

/// The values that the peers' reference generator prints.
#[test]
fn refusals_leave_the_steps_of_the_peers() {
    let (outcomes, hash) = run_faulty(1, 5_000, 0).unwrap();
    let Outcome { allocations, refusals, frees, reads, passes, .. } = &outcomes[0];
    let found = (allocations.len() + refusals.len(), refusals.len(), *frees, *reads, *passes);
    assert_eq!(found, (2_060, 294, 1_507, 1_477, 250));
    assert_eq!(hash, Fnv(0x6418_c102_09d2_672b));
}

#[test]
fn four_threads_leave_no_block_and_no_race() {
    let (outcomes, _) = run_faulty(4, 2_000, 0).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.made == 2_000 && outcome.reads > 400));
}

#[test]
fn a_block_that_is_lost_is_an_error() {
    let error = run_faulty(2, 500, 100).unwrap_err().to_string();
    assert!(error.starts_with("lost: Usage"), "{error}");
}
