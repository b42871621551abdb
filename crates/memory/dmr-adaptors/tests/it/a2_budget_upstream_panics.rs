//! A2: a resource that panics under a budget costs the budget nothing for ever.
#![cfg(feature = "budget")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    DriverAllocation, ResourceResult, StreamId, StreamPoolId, Usage,
};

const TAG: AllocTag = AllocTag::new("rows");

/// Panics when it is asked about a block, or after it has deallocated or given away one.
#[derive(Debug)]
struct Panics {
    resource: Arc<Backend>,
    panics: AtomicBool,
    panics_in_free: AtomicBool,
}

impl Panics {
    fn new(resource: &Arc<Backend>) -> Self {
        let [panics, panics_in_free] = [(); 2].map(|()| AtomicBool::new(false));
        Self { resource: Arc::clone(resource), panics, panics_in_free }
    }
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
        let deallocated = self.resource.deallocate(block);
        assert!(!self.panics_in_free.load(SeqCst), "as the test asks");
        deallocated
    }
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let given = self.resource.deallocate(block);
        panic!("as the test asks: {given:?}");
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
    let budget = BudgetLayer::new(1000).layer(Panics::new(&backend));
    let [old, young] = [(); 2].map(|()| budget.allocate(100, backend.stream(), TAG).unwrap());
    budget.deallocate(old).unwrap();
    budget.upstream().panics.store(true, SeqCst);
    catch_unwind(AssertUnwindSafe(|| budget.deallocate(young))).unwrap_err();
    budget.upstream().panics.store(false, SeqCst);
    budget.reap_pending().unwrap();
    assert_eq!((backend.bytes_outstanding(), budget.budget().reserved_bytes()), (0, 0));
}

/// With and without a block that stays retired.
#[test]
fn a_block_whose_deallocation_panics_is_charged_until_upstream_has_freed_it() {
    for keeps in [false, true] {
        for asked_panics in [false, true] {
            let backend = Backend::new();
            let backend = Arc::new(if keeps { backend.keeping(false) } else { backend });
            let budget = BudgetLayer::new(1000).layer(Panics::new(&backend));
            let [block, given] =
                [(); 2].map(|()| budget.allocate(300, backend.stream(), TAG).unwrap());
            budget.upstream().panics_in_free.store(true, SeqCst);
            budget.upstream().panics.store(asked_panics, SeqCst);
            catch_unwind(AssertUnwindSafe(|| budget.deallocate(block))).unwrap_err();
            catch_unwind(AssertUnwindSafe(|| budget.give_away(given))).unwrap_err();
            budget.upstream().panics.store(false, SeqCst);
            budget.try_reap().unwrap();
            let charged = if keeps { 600 } else { 0 };
            assert_eq!(budget.budget().reserved_bytes(), charged, "{keeps} {asked_panics}");
            budget.reap_pending().unwrap();
            assert_eq!(budget.budget().reserved_bytes(), 0);
            assert_eq!(budget.budget().holders(), []);
        }
    }
}
