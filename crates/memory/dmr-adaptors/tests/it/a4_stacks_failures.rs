//! A4, T4: over a resource that fails now and then, any stack returns a block that it could not
//! free unchanged, a failed call changes no accounting, and no memory is lost.
#![cfg(all(
    feature = "aligned",
    feature = "budget",
    feature = "callbacks",
    feature = "debug-guard",
    feature = "logging",
    feature = "statistics"
))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dmr_adaptors::ResourceBuilder;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_adaptors::logging::{InMemorySink, LoggingLayer};
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_core::conformance::Harness;
use dmr_core::{
    Access, AllocTag, BlockState, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource,
    DeviceOps, ResourceError, ResourceResult, StreamId, UseTokens, UseTracking, UseTrackingExt,
};
use dmr_fake::FakeHarness;
use proptest::prelude::*;

/// Bytes of a budget: more than is live most of the time.
const LIMIT: usize = 512 << 10;

/// More bytes than the padding of five adaptors.
const PADDING: usize = 32 << 10;

type Resource = Arc<dyn DeviceMemoryResource>;

#[derive(Clone, Copy, Debug)]
enum Adaptor {
    Aligned,
    Budget,
    Callbacks,
    DebugGuard,
    Logging,
    Statistics,
}

use Adaptor::{Aligned, Budget, Callbacks, DebugGuard, Logging, Statistics};

const ADAPTORS: [Adaptor; 6] = [Aligned, Budget, Callbacks, DebugGuard, Logging, Statistics];

impl Adaptor {
    fn around(self, inner: Resource, ops: &Arc<dyn DeviceOps>) -> Resource {
        let inner = ResourceBuilder::new(inner);
        match self {
            Aligned => inner.layer(AlignedLayer::new(4096).expect("an alignment")).build_shared(),
            Budget => inner.layer(BudgetLayer::new(LIMIT as u64)).build_shared(),
            Callbacks => {
                let layer = FailureCallbackLayer::new().with_callback(|_| Response::Decline);
                inner.layer(layer).build_shared()
            }
            DebugGuard => {
                // A small quarantine, so that blocks leave it all the time.
                let layer = DebugGuardLayer::new(Arc::clone(ops)).with_quarantine(1 << 16, 4);
                inner.layer(layer).build_shared()
            }
            Logging => inner.layer(LoggingLayer::new(Arc::new(InMemorySink::new()))).build_shared(),
            Statistics => inner.layer(StatisticsLayer::new()).build_shared(),
        }
    }
}

/// Refuses one in `one_of` calls that can fail, at scattered positions, so that not every retry of
/// a call fails. Never refuses two calls in a row: an adaptor must be able to free a block that it
/// cannot use.
#[derive(Debug)]
struct Flaky<R> {
    inner: R,
    /// 0 refuses none.
    one_of: Arc<AtomicU64>,
    calls: AtomicU64,
    has_just_refused: AtomicBool,
}

impl<R> Flaky<R> {
    fn new(inner: R, one_of: Arc<AtomicU64>) -> Self {
        Self { inner, one_of, calls: AtomicU64::new(0), has_just_refused: AtomicBool::new(false) }
    }

    fn turn(&self, call: &'static str) -> ResourceResult<()> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let scattered = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let one_of = self.one_of.load(Ordering::Relaxed);
        let refuses = one_of != 0 && scattered.is_multiple_of(one_of);
        if refuses && !self.has_just_refused.swap(true, Ordering::Relaxed) {
            return Err(ResourceError::driver(call, 1, "CUDA_ERROR_INVALID_VALUE", 0));
        }
        self.has_just_refused.store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl<R: DeviceMemoryResource> DeviceMemoryResource for Flaky<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.turn("allocate").and_then(|()| self.inner.allocate(bytes, stream, tag))
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        match self.turn("deallocate") {
            Ok(()) => self.inner.deallocate(block),
            Err(error) => Err(DeallocateError::new(error, block)),
        }
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.turn("try_reap").and_then(|()| self.inner.try_reap())
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.turn("reap_pending").and_then(|()| self.inner.reap_pending())
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.inner.use_tracking().map(|_| self as _)
    }

    dmr_core::forward!(
        inner: is_retired, device_ordinal, stream_pool, usage,
    );
}

impl<R: DeviceMemoryResource> Flaky<R> {
    fn tracking(&self) -> &dyn UseTracking {
        self.inner.use_tracking().expect("a resource that tracks uses")
    }
}

impl<R: DeviceMemoryResource> UseTracking for Flaky<R> {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.turn("prepare").and_then(|()| self.tracking().prepare(uses, tokens))
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.tracking().finish(tokens)
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.tracking().cancel(tokens)
    }
}

/// A call of the program.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate {
        bytes: usize,
        stream: usize,
    },
    /// A write on either stream, where uses are tracked.
    Use {
        block: usize,
        stream: usize,
    },
    Deallocate {
        block: usize,
    },
    TryReap,
    ReapPending,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        4 => (1..20_000_usize, 0..2_usize)
            .prop_map(|(bytes, stream)| Call::Allocate { bytes, stream }),
        2 => (0..64_usize, 0..2_usize).prop_map(|(block, stream)| Call::Use { block, stream }),
        4 => (0..64_usize).prop_map(|block| Call::Deallocate { block }),
        1 => Just(Call::TryReap),
        1 => Just(Call::ReapPending),
    ];
    prop::collection::vec(call, 1..80)
}

/// The program that uses a stack: the blocks that it holds, and the usage that the stack must
/// report.
struct User<'a> {
    harness: &'a FakeHarness<Resource>,
    held: Vec<DeviceBlock>,
    live: u64,
    allocated: u64,
}

impl User<'_> {
    fn resource(&self) -> &dyn DeviceMemoryResource {
        self.harness.resource()
    }

    fn make(&mut self, call: Call) {
        let at = |block: usize| (!self.held.is_empty()).then(|| block % self.held.len());
        match call {
            Call::Allocate { bytes, stream } => {
                let stream = self.harness.streams()[stream];
                if let Ok(block) = self.resource().allocate(bytes, stream, AllocTag::UNTAGGED) {
                    assert_eq!(block.bytes(), bytes);
                    self.harness.fill(stream, &block, 0x5a).expect("a fill");
                    self.live += bytes as u64;
                    self.allocated += bytes as u64;
                    self.held.push(block);
                }
            }
            Call::Use { block, stream } => {
                let Some(at) = at(block) else { return };
                let id = self.held[at].id();
                let stream = self.harness.streams()[stream];
                let uses = [BlockUse::new(id, Access::ReadWrite)];
                if let Ok(tokens) = self.resource().prepare_uses(&uses, stream) {
                    self.harness.fill(stream, &self.held[at], 0x5a).expect("a fill");
                    self.resource().finish_uses(tokens).expect("a window that is open");
                }
            }
            Call::Deallocate { block } => {
                if let Some(at) = at(block) {
                    let block = self.held.swap_remove(at);
                    self.deallocate(block);
                }
            }
            Call::TryReap => drop(self.resource().try_reap()),
            Call::ReapPending => drop(self.resource().reap_pending()),
        }
        let usage = self.resource().usage();
        let said = (usage.live, usage.total_allocated);
        assert_eq!(said, (self.live, self.allocated), "after {call:?}: {usage:?}");
        assert_eq!(usage.outstanding(), self.resource().bytes_outstanding(), "{usage:?}");
    }

    /// A refused block comes back unchanged.
    fn deallocate(&mut self, block: DeviceBlock) {
        let before = (block.id(), block.ptr(), block.bytes(), block.alignment());
        match self.resource().deallocate(block) {
            Ok(_) => self.live -= before.2 as u64,
            Err(refusal) => {
                let DeallocateError { error, block, .. } = *refusal;
                let after = (block.id(), block.ptr(), block.bytes(), block.alignment());
                assert_eq!(before, after, "{error}");
                assert_eq!(block.state(), BlockState::Live, "{error}");
                self.held.push(block);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_fails_below_a_stack_costs_no_memory_above_it(
        adaptors in prop::collection::vec(prop::sample::select(&ADAPTORS[..]), 0..=5),
        tracks in any::<bool>(),
        one_of in 2..7_u64,
        calls in calls(),
    ) {
        let one_of = Arc::new(AtomicU64::new(one_of));
        let harness = FakeHarness::wrapped(tracks, |fake, ops| {
            let flaky: Resource = Arc::new(Flaky::new(fake, Arc::clone(&one_of)));
            adaptors.iter().fold(flaky, |inner, adaptor| adaptor.around(inner, &ops))
        });
        let mut user = User { harness: &harness, held: Vec::new(), live: 0, allocated: 0 };
        calls.into_iter().for_each(|call| user.make(call));
        // A call that failed succeeds when it is retried.
        one_of.store(0, Ordering::Relaxed);
        let held = std::mem::take(&mut user.held);
        held.into_iter().for_each(|block| user.deallocate(block));
        prop_assert_eq!(user.held.len(), 0);
        let reaped = harness.resource().reap_pending();
        prop_assert!(reaped.is_ok(), "{:?}", reaped);
        for usage in [harness.resource().usage(), harness.fake().usage()] {
            prop_assert_eq!(usage.outstanding(), 0, "{:?}", usage);
            prop_assert_eq!(usage.total_freed, usage.total_allocated, "{:?}", usage);
        }
        // No failure has cost a budget anything.
        let [stream, _] = harness.streams();
        let all = harness.resource().allocate(LIMIT - PADDING, stream, AllocTag::UNTAGGED);
        prop_assert!(all.is_ok(), "{:?}", all);
    }
}
