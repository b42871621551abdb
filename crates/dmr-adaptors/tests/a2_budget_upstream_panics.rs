//! A resource that panics when it is asked about a block.
#![cfg(feature = "budget")]

mod a2_support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceResult, StreamId, StreamPoolId, Usage,
};

const TAG: AllocTag = AllocTag::new("rows");

/// Panics when it is asked about a block.
#[derive(Debug)]
struct Panics {
    resource: Arc<Backend>,
    panics: AtomicBool,
}

impl DeviceMemoryResource for Panics {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.resource.allocate(bytes, stream, tag)
    }
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.resource.deallocate(block)
    }
    fn is_retired(&self, block: BlockId) -> bool {
        assert!(!self.panics.load(SeqCst), "as the test asks");
        self.resource.is_retired(block)
    }
    fn device_ordinal(&self) -> usize {
        0
    }
    fn stream_pool(&self) -> StreamPoolId {
        self.resource.stream_pool()
    }
    fn usage(&self) -> Usage {
        self.resource.usage()
    }
    fn try_reap(&self) -> ResourceResult<u64> {
        self.resource.try_reap()
    }
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.resource.reap_pending()
    }
}

#[test]
fn a_resource_that_panics_when_it_is_asked_about_a_block_loses_none_of_the_budget() {
    let backend = Arc::new(Backend::new().keeping(true));
    let panics = Panics { resource: Arc::clone(&backend), panics: AtomicBool::new(false) };
    let budget = BudgetLayer::new(1000).layer(panics);
    let [old, young] = [(); 2].map(|()| budget.allocate(100, backend.stream(), TAG).unwrap());
    budget.deallocate(old).unwrap();
    budget.upstream().panics.store(true, SeqCst);
    catch_unwind(AssertUnwindSafe(|| budget.deallocate(young))).unwrap_err();
    budget.upstream().panics.store(false, SeqCst);
    budget.reap_pending().unwrap();
    assert_eq!((backend.bytes_outstanding(), budget.budget().reserved_bytes()), (0, 0));
}
