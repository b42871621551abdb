//! Pages are charged when they are created and until they are destroyed, beside blocks.
#![cfg(feature = "budget")]

use crate::a2_support;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_core::error::Holder;
use dmr_core::{
    AddressRange, AllocTag, BlockId, BlockState, DeallocateError, DestroyError, DeviceBlock,
    DeviceMemoryResource, PhysicalMemory, ReleaseError, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage, VirtualMemory,
};

const PAGE: u64 = 2 << 20;
const TAG: AllocTag = AllocTag::new("kv-cache");

/// Pages that are only numbers: remembers if ever more than `bound` bytes are out, and fails every
/// `fails_every`th call.
#[derive(Debug)]
struct Pages {
    pool: StreamPoolId,
    bound: u64,
    exceeded: AtomicBool,
    out: AtomicU64,
    calls: AtomicU64,
    fails_every: u64,
    made: Mutex<HashMap<u64, u64>>,
    reaps: AtomicU64,
}

impl Pages {
    fn new(bound: u64, fails_every: u64) -> Arc<Self> {
        Arc::new(Self {
            pool: StreamPoolId::next().unwrap(),
            bound,
            exceeded: AtomicBool::new(false),
            out: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            fails_every,
            made: Mutex::default(),
            reaps: AtomicU64::new(0),
        })
    }

    fn call(&self) -> ResourceResult<u64> {
        let call = self.calls.fetch_add(1, SeqCst) + 1;
        if call.is_multiple_of(self.fails_every) {
            return Err(ResourceError::driver("cuMemCreate", 999, "CUDA_ERROR_UNKNOWN", 0));
        }
        Ok(call)
    }
}

impl DeviceMemoryResource for Pages {
    fn allocate(&self, _: usize, _: StreamId, _: AllocTag) -> ResourceResult<DeviceBlock> {
        Err(ResourceError::zero_size())
    }
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        Err(DeallocateError::new(ResourceError::foreign_block(&block, 0), block))
    }
    fn is_retired(&self, _: BlockId) -> bool {
        false
    }
    fn device_ordinal(&self) -> usize {
        0
    }
    fn stream_pool(&self) -> StreamPoolId {
        self.pool
    }
    fn usage(&self) -> Usage {
        Usage::default()
    }
    fn try_reap(&self) -> ResourceResult<u64> {
        self.reaps.fetch_add(1, SeqCst);
        Ok(0)
    }
    fn reap_pending(&self) -> ResourceResult<u64> {
        Ok(0)
    }
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl VirtualMemory for Pages {
    fn granularity(&self) -> u64 {
        PAGE
    }
    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange> {
        // SAFETY: these addresses are never used.
        #[allow(unsafe_code, reason = "addresses of nothing")]
        Ok(unsafe { AddressRange::from_parts(1 << 40, bytes) })
    }
    fn release(&self, _: AddressRange) -> Result<(), Box<ReleaseError>> {
        Ok(())
    }
    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory> {
        let handle = self.call()?;
        if self.out.fetch_add(bytes, SeqCst) + bytes > self.bound {
            self.exceeded.store(true, SeqCst);
        }
        self.made.lock().unwrap().insert(handle, bytes);
        // SAFETY: there is no memory; the address is never used.
        #[allow(unsafe_code, reason = "making memory is what a resource does")]
        Ok(unsafe { PhysicalMemory::from_parts(handle, bytes, 0, tag) })
    }
    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<DestroyError>> {
        if let Err(error) = self.call() {
            return Err(DestroyError::new(error, memory));
        }
        let bytes = self.made.lock().unwrap().remove(&memory.handle()).unwrap();
        assert_eq!(bytes, memory.bytes());
        self.out.fetch_sub(bytes, SeqCst);
        Ok(())
    }
    fn map(&self, _: &PhysicalMemory, _: u64) -> ResourceResult<()> {
        Ok(())
    }
    fn unmap(&self, _: &PhysicalMemory, _: u64) -> ResourceResult<()> {
        Ok(())
    }
}

fn destroy(pages: &dyn VirtualMemory, mut memory: PhysicalMemory) {
    while let Err(refused) = pages.destroy(memory) {
        memory = refused.memory;
    }
}

#[test]
fn sixteen_threads_never_have_more_pages_than_the_limit_and_leave_nothing_charged() {
    const LIMIT: u64 = 40 * PAGE;
    let inner = Pages::new(LIMIT, 13);
    let budget = BudgetLayer::new(LIMIT).layer(Arc::clone(&inner));
    let refused = AtomicU64::new(0);
    let created = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let budget = &budget;
            let refused = &refused;
            let created = &created;
            scope.spawn(move || {
                let pages = budget.virtual_memory().unwrap();
                let mut held = Vec::new();
                for round in 0..20_000_u64 {
                    let bytes = (1 + (thread * 7 + round) % 5) * PAGE;
                    match pages.create(bytes, TAG) {
                        Ok(memory) => held.push(memory),
                        Err(ResourceError::OutOfBudget { .. }) => {
                            refused.fetch_add(1, SeqCst);
                        }
                        Err(error) => assert!(matches!(error, ResourceError::Driver { .. })),
                    }
                    if held.len() as u64 > round % 4 {
                        created.fetch_add(1, SeqCst);
                        destroy(pages, held.swap_remove(0));
                    }
                }
                held.into_iter().for_each(|memory| destroy(pages, memory));
            });
        }
    });
    assert!(!inner.exceeded.load(SeqCst));
    assert_eq!((inner.out.load(SeqCst), budget.budget().reserved_bytes()), (0, 0));
    assert_eq!(budget.budget().holders(), []);
    let refused = refused.into_inner();
    let created = created.into_inner();
    assert!(refused > 100 && created > 100, "{refused} refused, {created} created");
}

#[test]
fn a_refusal_says_who_holds_pages_and_comes_after_a_reap() {
    let inner = Pages::new(u64::MAX, u64::MAX);
    let budget = BudgetLayer::new(10 * PAGE).layer(Arc::clone(&inner));
    let pages = budget.virtual_memory().unwrap();
    let held = pages.create(6 * PAGE, TAG).unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 6 * PAGE);
    let refused = pages.create(5 * PAGE, TAG).unwrap_err();
    let ResourceError::OutOfBudget { requested, remaining, holders, .. } = &refused else {
        panic!("{refused}")
    };
    assert_eq!((*requested as u64, *remaining), (5 * PAGE, 4 * PAGE));
    assert_eq!(**holders, [Holder { tag: TAG, bytes: 6 * PAGE, blocks: 1 }]);
    assert_eq!(inner.reaps.load(SeqCst), 1);
    destroy(pages, held);
    destroy(pages, pages.create(10 * PAGE, TAG).unwrap());
    assert_eq!(budget.budget().reserved_bytes(), 0);
}

#[test]
fn a_failure_upstream_changes_nothing_and_returns_the_memory() {
    let inner = Pages::new(u64::MAX, 2);
    let budget = BudgetLayer::new(10 * PAGE).layer(Arc::clone(&inner));
    let pages = budget.virtual_memory().unwrap();
    let memory = pages.create(4 * PAGE, TAG).unwrap();
    let refused = pages.destroy(memory).unwrap_err();
    assert_eq!(budget.budget().reserved_bytes(), 4 * PAGE);
    pages.destroy(refused.memory).unwrap();
    assert!(pages.create(4 * PAGE, TAG).is_err());
    assert_eq!((budget.budget().reserved_bytes(), budget.budget().holders().len()), (0, 0));
}

#[test]
fn addresses_and_mappings_take_nothing() {
    let budget = BudgetLayer::new(PAGE).layer(Pages::new(u64::MAX, u64::MAX));
    let pages = budget.virtual_memory().unwrap();
    let range = pages.reserve(1 << 40).unwrap();
    let memory = pages.create(PAGE, TAG).unwrap();
    for at in [range.base(), range.base() + PAGE] {
        pages.map(&memory, at).unwrap();
    }
    assert_eq!(budget.budget().reserved_bytes(), PAGE);
    for at in [range.base(), range.base() + PAGE] {
        pages.unmap(&memory, at).unwrap();
    }
    destroy(pages, memory);
    pages.release(range).unwrap();
}

#[test]
fn a_tenants_pages_are_charged_to_the_whole() {
    let inner = Pages::new(u64::MAX, u64::MAX);
    let whole = Budget::new(10 * PAGE);
    let [a, b] = [4, 10].map(|share| {
        let share = whole.sub_budget(AllocTag::UNTAGGED, share * PAGE);
        BudgetLayer::on(&share).layer(Arc::clone(&inner))
    });
    let [a, b] = [&a, &b].map(|budget| budget.virtual_memory().unwrap());
    let held = a.create(4 * PAGE, TAG).unwrap();
    assert!(a.create(PAGE, TAG).is_err());
    assert!(b.create(7 * PAGE, TAG).is_err());
    assert_eq!(whole.reserved_bytes(), 4 * PAGE);
    destroy(a, held);
    destroy(b, b.create(10 * PAGE, TAG).unwrap());
    assert_eq!(whole.reserved_bytes(), 0);
}

#[test]
fn memory_releases_its_own_charge_and_none_if_it_was_created_upstream() {
    let inner = Pages::new(u64::MAX, u64::MAX);
    let budget = BudgetLayer::new(10 * PAGE).layer(Arc::clone(&inner));
    let pages = budget.virtual_memory().unwrap();
    let held = pages.create(4 * PAGE, TAG).unwrap();
    let uncharged = inner.create(3 * PAGE, TAG).unwrap();
    destroy(pages, uncharged);
    assert_eq!(budget.budget().reserved_bytes(), 4 * PAGE);
    assert!(pages.create(7 * PAGE, TAG).is_err(), "it would exceed the limit");
    destroy(pages, held);
    assert_eq!((budget.budget().reserved_bytes(), budget.budget().holders().len()), (0, 0));
}

#[test]
fn a_resource_without_pages_has_none_in_a_budget_either() {
    let backend = a2_support::Backend::new();
    let budget = BudgetLayer::new(10 * PAGE).layer(backend);
    assert!(budget.virtual_memory().is_none());
    let error = VirtualMemory::create(&budget, PAGE, TAG).unwrap_err();
    assert!(matches!(error, ResourceError::NoVirtualMemory { .. }), "{error}");
    assert_eq!(budget.budget().reserved_bytes(), 0);
}
