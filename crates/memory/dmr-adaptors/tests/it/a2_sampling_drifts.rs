//! Why a budget charges what it is asked for and not what it sees: a resource's own number, read
//! before and after a call, has other threads' bytes in it.
#![cfg(feature = "budget")]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceResult, StreamId, StreamPoolId, Usage,
};

const BYTES: usize = 100;
const TAG: AllocTag = AllocTag::UNTAGGED;

/// Lets two calls of `allocate` happen at the same time, one step after the other.
#[derive(Debug)]
struct InStep {
    backend: Backend,
    step: Barrier,
}

impl DeviceMemoryResource for InStep {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // Both have been called, both allocate, then both return.
        self.step.wait();
        let block = self.backend.allocate(bytes, stream, tag);
        self.step.wait();
        block
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.backend.deallocate(block)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.backend.is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        0
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.backend.stream_pool()
    }

    fn usage(&self) -> Usage {
        self.backend.usage()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.backend.try_reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.backend.reap_pending()
    }
}

/// Charges the difference that a call seems to make.
struct Sampled {
    inner: Arc<InStep>,
    charged: AtomicU64,
}

impl Sampled {
    fn allocate(&self) -> DeviceBlock {
        let before = self.inner.bytes_outstanding();
        let block = self.inner.allocate(BYTES, self.inner.backend.stream(), TAG).unwrap();
        let after = self.inner.bytes_outstanding();
        self.charged.fetch_add(after - before, SeqCst);
        block
    }
}

/// Returns the bytes that are charged after two threads have allocated a block each at the same
/// time, and what is out.
fn after_two(
    inner: &InStep,
    allocate: impl Fn() -> DeviceBlock + Sync,
    charged: impl Fn() -> u64,
) -> (u64, u64) {
    let blocks = std::thread::scope(|scope| {
        [scope.spawn(&allocate), scope.spawn(&allocate)].map(|thread| thread.join().unwrap())
    });
    let charged_and_held = (charged(), inner.bytes_outstanding());
    for block in blocks {
        inner.deallocate(block).unwrap();
    }
    charged_and_held
}

fn in_step() -> Arc<InStep> {
    Arc::new(InStep { backend: Backend::new(), step: Barrier::new(2) })
}

#[test]
fn two_allocations_at_once_are_charged_once_each() {
    let inner = in_step();
    let budget = BudgetLayer::new(1000).layer(Arc::clone(&inner));
    let allocate = || budget.allocate(BYTES, inner.backend.stream(), TAG).unwrap();
    let both = after_two(&inner, allocate, || budget.budget().reserved_bytes());
    assert_eq!(both, (2 * BYTES as u64, 2 * BYTES as u64));
}

#[test]
fn the_same_check_finds_that_sampling_charges_them_twice() {
    let inner = in_step();
    let sampled = Sampled { inner: Arc::clone(&inner), charged: AtomicU64::new(0) };
    let (charged, out) = after_two(&inner, || sampled.allocate(), || sampled.charged.load(SeqCst));
    assert_eq!((charged, out), (4 * BYTES as u64, 2 * BYTES as u64));
}
