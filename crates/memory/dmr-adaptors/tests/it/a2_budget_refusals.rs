//! The steps before a request is refused, and what the refusal says.
#![cfg(feature = "budget")]

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::error::Holder;
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
};

const TAG: AllocTag = AllocTag::new("probe-keys");

fn layered(limit: u64, backend: Backend) -> (BudgetResource<Arc<Backend>>, Arc<Backend>) {
    let backend = Arc::new(backend);
    (BudgetLayer::new(limit).layer(Arc::clone(&backend)), backend)
}

fn refusal<T: std::fmt::Debug>(result: ResourceResult<T>) -> ResourceError {
    let error = result.unwrap_err();
    assert!(matches!(error, ResourceError::OutOfBudget { .. }), "{error}");
    error
}

#[test]
fn what_is_retired_stays_charged_until_it_is_freed() {
    let (budget, backend) = layered(1000, Backend::new().keeping(true));
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    assert_eq!(budget.deallocate(block).unwrap(), BlockState::Retired);
    assert_eq!((budget.budget().reserved_bytes(), budget.budget().pending_bytes()), (600, 600));
    assert_eq!(budget.try_reap().unwrap(), 600);
    assert_eq!((budget.budget().reserved_bytes(), budget.budget().pending_bytes()), (0, 0));
}

#[test]
fn it_reaps_then_waits_then_refuses() {
    // A reap that does not wait is enough.
    let (budget, backend) = layered(1000, Backend::new().keeping(true));
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    budget.deallocate(block).unwrap();
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    assert_eq!(backend.reaped()[1], 0);
    // It is not.
    backend.reap_early(false);
    budget.deallocate(block).unwrap();
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    assert_eq!(backend.reaped()[1], 1);
    // There is nothing to wait for.
    let refused = refusal(budget.allocate(401, backend.stream(), TAG));
    assert!(matches!(refused, ResourceError::OutOfBudget { remaining: 400, .. }), "{refused}");
    assert_eq!(backend.reaped()[1], 1);
    budget.deallocate(block).unwrap();
}

#[test]
fn it_does_not_wait_where_waiting_is_disabled() {
    let backend = Arc::new(Backend::new().keeping(false));
    let layer = BudgetLayer::new(1000).with_reap_pending(false);
    let budget = layer.layer(Arc::clone(&backend));
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    budget.deallocate(block).unwrap();
    let refused = refusal(budget.allocate(600, backend.stream(), TAG));
    assert_eq!(backend.reaped()[1], 0);
    let ResourceError::OutOfBudget { remaining, pending, .. } = refused else { unreachable!() };
    assert_eq!((remaining, pending), (400, 600));
    budget.reap_pending().unwrap();
}

#[test]
fn an_oversized_request_is_refused_at_once_and_without_a_reap() {
    let (budget, backend) = layered(1000, Backend::new().keeping(true));
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    budget.deallocate(block).unwrap();
    let refused = refusal(budget.allocate(1001, backend.stream(), TAG));
    let ResourceError::OutOfBudget { requested, limit, remaining, pending, .. } = refused else {
        unreachable!()
    };
    assert_eq!((requested, limit, remaining, pending), (1001, 1000, 400, 600));
    assert_eq!(backend.reaped(), [0, 0]);
    assert_eq!(budget.budget().reserved_bytes(), 600);
}

#[test]
fn a_refusal_says_who_holds_the_most_and_what_is_pending() {
    let backend = Arc::new(Backend::new().keeping(false));
    let tenant = Budget::new(1 << 20).named(AllocTag::new("tenant 7"));
    let layer = BudgetLayer::on(&tenant).with_reap_pending(false);
    let budget = layer.layer(Arc::clone(&backend));
    let allocate = |bytes, tag| budget.allocate(bytes, backend.stream(), tag).unwrap();
    let keys = [allocate(200 << 10, TAG), allocate(300 << 10, TAG)];
    let other = allocate(100 << 10, AllocTag::UNTAGGED);
    let gone = allocate(200 << 10, AllocTag::new("gone"));
    budget.deallocate(gone).unwrap();
    let error = refusal(budget.allocate(300 << 10, backend.stream(), TAG));
    let ResourceError::OutOfBudget { ref holders, .. } = error else { unreachable!() };
    let holder = |tag, kib: u64, blocks| Holder { tag, bytes: kib << 10, blocks };
    let expected = [
        holder(TAG, 500, 2),
        holder(AllocTag::new("gone"), 200, 1),
        holder(AllocTag::UNTAGGED, 100, 1),
    ];
    assert_eq!(**holders, expected);
    assert_eq!(budget.budget().holders(), expected);
    assert_eq!(
        error.to_string(),
        "out of budget \"tenant 7\": 300 KiB requested, 224 KiB of 1 MiB left; 500 KiB held by \
         \"probe-keys\" (2 blocks), 200 KiB held by \"gone\" (1 blocks), 100 KiB held by \
         \"untagged\" (1 blocks), 200 KiB pending: call reap_pending or raise the limit"
    );
    for block in keys.into_iter().chain([other]) {
        budget.deallocate(block).unwrap();
    }
}

#[test]
fn a_block_freed_on_another_thread_is_taken_off_its_tag() {
    let (budget, backend) = layered(1000, Backend::new());
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| budget.deallocate(block).unwrap());
    });
    assert_eq!(budget.budget().holders(), []);
    assert_eq!(budget.budget().reserved_bytes(), 0);
    let block = budget.allocate(1000, backend.stream(), TAG).unwrap();
    budget.deallocate(block).unwrap();
}

#[test]
fn what_another_tenant_retired_makes_room_when_it_is_freed() {
    let whole = Budget::new(1000);
    let tenant = |name| BudgetLayer::on(&whole.sub_budget(AllocTag::new(name), 1000));
    // Of one pool; and of another runtime, whose resource no other call reaps.
    for same in [true, false] {
        let first = Arc::new(Backend::new().keeping(true));
        let second = if same { Arc::clone(&first) } else { Arc::new(Backend::new()) };
        let a = tenant("a").layer(Arc::clone(&first));
        let b = tenant("b").layer(second);
        let block = a.allocate(600, first.stream(), TAG).unwrap();
        a.deallocate(block).unwrap();
        let block = b.allocate(900, first.stream(), TAG).unwrap();
        assert_eq!(b.budget().reserved_bytes(), 900);
        assert_eq!(a.budget().reserved_bytes(), 0);
        b.deallocate(block).unwrap();
        b.reap_pending().unwrap();
    }
    assert_eq!(whole.reserved_bytes(), 0);
}

#[test]
fn what_the_resource_refuses_is_its_own_error_and_costs_nothing() {
    let (budget, backend) = layered(u64::MAX, Backend::new().failing(2));
    for bytes in [0, usize::MAX, usize::MAX - 100] {
        let error = budget.allocate(bytes, backend.stream(), TAG).unwrap_err();
        assert!(matches!(error, ResourceError::InvalidSize { .. }), "{error}");
    }
    let block = budget.allocate(100, backend.stream(), TAG).unwrap();
    let refused = budget.deallocate(block).unwrap_err();
    assert!(matches!(refused.error, ResourceError::Driver { .. }));
    assert_eq!(budget.budget().reserved_bytes(), 100);
    budget.deallocate(refused.block).unwrap();
    let error = budget.allocate(100, backend.stream(), TAG).unwrap_err();
    assert!(matches!(error, ResourceError::Driver { .. }));
    assert_eq!(budget.budget().reserved_bytes(), 0);
    assert_eq!(budget.budget().holders(), []);
}

#[test]
fn a_resource_that_panics_leaves_nothing_charged() {
    let resource = Hooked::new(Backend::new());
    let budget = Arc::new(BudgetLayer::new(1000).layer(Arc::clone(&resource)));
    resource.on_allocate(|| panic!("a callback of the user's"));
    let stream = resource.backend.stream();
    let call = || drop(budget.allocate(600, stream, TAG));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
    assert_eq!(budget.budget().reserved_bytes(), 0);
}

#[test]
fn the_resource_inside_can_call_back_and_free() {
    let resource = Hooked::new(Backend::new());
    let budget = Arc::new(BudgetLayer::new(1000).layer(Arc::clone(&resource)));
    let stream = resource.backend.stream();
    let held = Mutex::new(Some(budget.allocate(300, stream, TAG).unwrap()));
    let inside = Arc::clone(&budget);
    resource.on_allocate(move || {
        let Some(block) = held.lock().unwrap().take() else { return };
        inside.deallocate(block).unwrap();
        let block = inside.allocate(200, stream, TAG).unwrap();
        assert_eq!(inside.budget().reserved_bytes(), 900);
        inside.deallocate(block).unwrap();
        inside.budget().set_limit(2000);
        inside.budget().set_limit(1000);
    });
    let block = budget.allocate(700, stream, TAG).unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 700);
    budget.deallocate(block).unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 0);
}

#[test]
fn a_thread_that_is_being_torn_down_can_free_and_allocate() {
    struct Held(BudgetResource<Arc<Backend>>, Option<DeviceBlock>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.deallocate(self.1.take().unwrap()).unwrap();
            let block = self.0.allocate(900, self.0.upstream().stream(), TAG).unwrap();
            self.0.deallocate(block).unwrap();
        }
    }
    thread_local! {
        static HELD: OnceLock<Held> = const { OnceLock::new() };
    }
    let whole = Budget::new(1000);
    let layer = BudgetLayer::on(&whole);
    let backend = Arc::new(Backend::new());
    let thread = std::thread::spawn(move || {
        // Registered before the thread has a number, so dropped after that is gone.
        HELD.with(|held| {
            let budget = layer.layer(Arc::clone(&backend));
            assert!(held.get().is_none());
            let block = budget.allocate(600, backend.stream(), TAG).unwrap();
            assert!(held.set(Held(budget, Some(block))).is_ok());
        });
    });
    thread.join().unwrap();
    assert_eq!((whole.reserved_bytes(), whole.remaining(), whole.holders()), (0, 1000, vec![]));
}

#[test]
fn what_is_freed_before_the_last_poll_makes_room() {
    // The resource frees the block just after the nth query whether it is still retired.
    for n in 1.. {
        let resource = Hooked::new(Backend::new().keeping(false));
        let budget = BudgetLayer::new(1000).layer(Arc::clone(&resource));
        let stream = resource.backend.stream();
        let block = budget.allocate(600, stream, TAG).unwrap();
        budget.deallocate(block).unwrap();
        resource.frees_after(n);
        match budget.allocate(600, stream, TAG) {
            Ok(block) => drop(block),
            Err(error) => {
                assert!(resource.queries_left() >= 0, "a later query than {n} found it: {error}");
                assert!(n > 3, "it polls before, between and after the reaps: {n} queries");
                break;
            }
        }
    }
}

#[test]
fn what_upstream_frees_by_itself_is_released_by_later_deallocations() {
    // It frees the oldest when more than eight are retired.
    let (budget, backend) = layered(u64::MAX, Backend::new().retiring(1));
    for _ in 0..1000 {
        let block = budget.allocate(10, backend.stream(), TAG).unwrap();
        budget.deallocate(block).unwrap();
        assert!(budget.budget().pending_bytes() <= 100, "{:?}", budget.budget());
    }
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// Calls the user in the middle of an allocation.
struct Hooked {
    backend: Backend,
    hook: OnceLock<Hook>,
    /// The number of queries after which it frees what is retired; reaping does nothing.
    queries_left: OnceLock<AtomicI64>,
}

impl Hooked {
    fn new(backend: Backend) -> Arc<Self> {
        Arc::new(Self { backend, hook: OnceLock::new(), queries_left: OnceLock::new() })
    }

    fn frees_after(&self, queries: i64) {
        assert!(self.queries_left.set(AtomicI64::new(queries)).is_ok());
    }

    fn queries_left(&self) -> i64 {
        self.queries_left.get().map_or(0, |left| left.load(SeqCst))
    }

    fn on_allocate(&self, hook: impl Fn() + Send + Sync + 'static) {
        assert!(self.hook.set(Box::new(hook)).is_ok());
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

impl DeviceMemoryResource for Hooked {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        if let Some(hook) = self.hook.get() {
            hook();
        }
        self.backend.allocate(bytes, stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.backend.deallocate(block)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        let is_retired = self.backend.is_retired(block);
        if self.queries_left.get().is_some_and(|left| left.fetch_sub(1, SeqCst) == 1) {
            self.backend.reap_pending().unwrap();
        }
        is_retired
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
        if self.queries_left.get().is_some() { Ok(0) } else { self.backend.try_reap() }
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        if self.queries_left.get().is_some() { Ok(0) } else { self.backend.reap_pending() }
    }
}
