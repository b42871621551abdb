//! D5: no safe code makes the host see pinned memory that the device still writes, whatever its
//! resources claim.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::context::Context;
use dmr_buffer::pinned::try_reap_pinned;
use dmr_buffer::{DeviceBuffer, PinnedBuffer};
use dmr_core::{
    AllocTag, BlockId, BlockState, BlockUse, ByteRange, DeallocateError, DeviceBlock,
    DeviceMemoryResource, DeviceOps, DriverAllocation, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage, UseTokens, UseTracking,
};
use dmr_launch::{LaunchRecorder, Reads, Writes};
use dmr_pinned::{PinnedKind, PinnedResource};
use dmr_sim::{Policy, Universe};
use dmr_streams::{DeviceContext, StreamPool, StreamPoolConfig, Tracked};
use dmr_testkit::Rig;

/// A block of this size has a segment of its own, so the next block of the size is at the same
/// address.
const LEN: usize = 3 << 20;
/// The byte that the device writes.
const WRITTEN: u8 = 7;

fn lazy() -> Rig {
    Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().expect("the simulator"))
}

/// A resource over pinned memory that does not do what it says. It needs no `unsafe`.
#[derive(Debug)]
struct Lying<R> {
    upstream: R,
    lie: Lie,
    /// The pool that it claims to work on.
    pool: StreamPoolId,
    /// The stream on which it allocates, if not on the one that it is asked for.
    stream: Option<StreamId>,
    asked: AtomicUsize,
    /// The block that it returns instead of the one that it is to give away.
    instead: Mutex<Option<DeviceBlock>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// It opens no window.
    Prepare,
    /// It opens windows on the first byte only.
    PreparedBytes,
    /// It closes windows as if no work had been submitted.
    Finish,
    /// It closes windows before the work is submitted.
    EarlyCancel,
    /// Every second time that it is asked, it has no use tracking.
    Changes,
    /// It panics instead of closing windows.
    PanicAtFinish,
    /// None: its uses are those of its upstream.
    None,
}

const LIES_ABOUT_USES: [Lie; 4] = [Lie::Prepare, Lie::PreparedBytes, Lie::Finish, Lie::EarlyCancel];

impl<R: DeviceMemoryResource> Lying<R> {
    fn new(upstream: R, lie: Lie) -> Self {
        let pool = upstream.stream_pool();
        let asked = AtomicUsize::new(0);
        let instead = Mutex::new(None);
        Self { upstream, lie, pool, stream: None, asked, instead }
    }

    fn tracking(&self) -> &dyn UseTracking {
        self.upstream.use_tracking().expect("upstream tracks uses")
    }
}

impl<R: DeviceMemoryResource> DeviceMemoryResource for Lying<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.upstream.allocate(bytes, self.stream.unwrap_or(stream), tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.upstream.deallocate(block)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.upstream.is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.upstream.device_ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.pool
    }

    fn usage(&self) -> Usage {
        self.upstream.usage()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.upstream.try_reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.upstream.reap_pending()
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        (self.lie != Lie::Changes || asked.is_multiple_of(2)).then_some(self)
    }

    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let error = ResourceError::use_after_free(block.id().generation());
        let other = self.instead.lock().unwrap().take();
        Err(DeallocateError::new(error, other.unwrap_or(block)))
    }
}

impl<R: DeviceMemoryResource> UseTracking for Lying<R> {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        match self.lie {
            Lie::Prepare => Ok(()),
            Lie::PreparedBytes => {
                let first = |used: &BlockUse| {
                    let byte = ByteRange::new(used.block.ptr(), 1);
                    BlockUse::of_bytes(used.block, used.access, byte)
                };
                let uses: Vec<_> = uses.iter().map(first).collect();
                self.tracking().prepare(&uses, tokens)
            }
            Lie::Finish | Lie::PanicAtFinish | Lie::Changes | Lie::None => {
                self.tracking().prepare(uses, tokens)
            }
            Lie::EarlyCancel => {
                self.tracking().prepare(uses, tokens)?;
                self.tracking().cancel(tokens)
            }
        }
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        match self.lie {
            Lie::Finish => self.tracking().cancel(tokens),
            Lie::PanicAtFinish => panic!("a resource that panics"),
            _ => self.tracking().finish(tokens),
        }
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.tracking().cancel(tokens)
    }
}

fn pinned(streams: &Arc<StreamPool>) -> PinnedResource {
    PinnedResource::new(Arc::clone(streams), PinnedKind::Cached)
}

fn lying(rig: &Rig, lie: Lie) -> Context {
    Context::with(rig, Arc::new(Lying::new(pinned(rig.streams()), lie)))
}

/// Asserts that the host alone has the memory of a new pinned buffer, when a block of host memory
/// was deallocated that work on another stream than `home` may use.
#[track_caller]
fn assert_the_host_is_alone(rig: &Rig, ctx: &Context, home: StreamId, lie: impl std::fmt::Debug) {
    ctx.streams().synchronize(home).unwrap();
    try_reap_pinned(ctx).unwrap();
    let mut pinned = PinnedBuffer::<u8>::uninit(ctx, home, LEN).unwrap();
    let bytes = pinned.as_mut_slice().unwrap();
    bytes.fill(0);
    rig.device().synchronize().unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "{lie:?}: the device has written the slice");
}

#[test]
fn a_fill_of_a_buffer_in_host_memory_is_waited_for_whatever_its_resource_does_with_its_uses() {
    for lie in LIES_ABOUT_USES {
        let rig = lazy();
        let honest = Context::tracked(&rig);
        let lying = lying(&rig, lie);
        let home = rig.stream();
        let away = rig.stream();
        let mut target = DeviceBuffer::<u8>::uninit(&lying, &home, LEN).unwrap();
        target.fill_bytes(WRITTEN, &away).unwrap();
        drop(target);
        assert_the_host_is_alone(&rig, &honest, home.id(), lie);
    }
}

#[test]
fn a_launch_on_host_memory_is_waited_for_whatever_the_resource_does_with_its_uses() {
    for lie in LIES_ABOUT_USES {
        let rig = lazy();
        let honest = Context::tracked(&rig);
        let lying = lying(&rig, lie);
        let home = rig.stream();
        let away = rig.stream();
        let source = DeviceBuffer::from_host(&honest, &away, &vec![WRITTEN; LEN]).unwrap();
        let pinned = pinned(rig.streams());
        // Of an honest resource; the launch names another one.
        let mut target = pinned.allocate(LEN, home.id(), AllocTag::UNTAGGED).unwrap();
        let memory = (Reads(&source), Writes(&mut target));
        LaunchRecorder::new_strict(&away)
            .launch_with(&lying, memory, |stream, (from, mut to)| {
                stream.memcpy_dtod(&from, &mut to)
            })
            .unwrap();
        pinned.deallocate(target).unwrap();
        assert_the_host_is_alone(&rig, &honest, home.id(), lie);
    }
}

#[test]
fn a_fill_of_a_block_in_host_memory_is_waited_for_without_a_window() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let pinned = pinned(rig.streams());
    let block = pinned.allocate(LEN, home.id(), AllocTag::UNTAGGED).unwrap();
    let pattern = u32::from_le_bytes([WRITTEN; 4]);
    rig.ops().fill_pattern(&block, 0..LEN, pattern, away.id()).unwrap();
    pinned.deallocate(block).unwrap();
    assert_the_host_is_alone(&rig, &ctx, home.id(), "a fill");
}

/// The ids of two pools' streams are not compared.
#[test]
fn use_tracking_refuses_a_block_of_another_stream_pool() {
    let rig = lazy();
    let other = StreamPool::new(rig.device().clone(), StreamPoolConfig::default()).unwrap();
    let home = rig.stream();
    let away = other.acquire().unwrap();
    let mut upstream = Lying::new(pinned(rig.streams()), Lie::None);
    upstream.pool = other.id();
    upstream.stream = Some(home.id());
    let tracked = Tracked::new(upstream, Arc::clone(&other)).unwrap();
    tracked.allocate(LEN, away.id(), AllocTag::UNTAGGED).unwrap_err();
    assert_eq!(pinned(rig.streams()).usage().live, 0, "the block was deallocated");
}

/// The uses of the tracked block are in a use slot of its own.
#[test]
fn a_fill_of_a_buffer_in_tracked_host_memory_is_waited_for_whatever_the_resource_does_with_its_uses()
 {
    for lie in LIES_ABOUT_USES {
        let rig = lazy();
        let streams = rig.streams();
        let honest = Context::tracked(&rig);
        let tracked = Tracked::new(pinned(streams), Arc::clone(streams)).unwrap();
        let lying = Context::with(&rig, Arc::new(Lying::new(tracked, lie)));
        let home = rig.stream();
        let away = rig.stream();
        let mut target = DeviceBuffer::<u8>::uninit(&lying, &home, LEN).unwrap();
        target.fill_bytes(WRITTEN, &away).unwrap();
        drop(target);
        lying.resource().try_reap().unwrap();
        assert_the_host_is_alone(&rig, &honest, home.id(), lie);
    }
}

/// A permissive launch leaves memory out whose uses are not tracked; host memory is not left out.
#[test]
fn a_permissive_launch_on_host_memory_is_waited_for_if_its_resource_tracks_uses_only_at_times() {
    for asked in 0..2 {
        let rig = lazy();
        let honest = Context::tracked(&rig);
        let changing = Arc::new(Lying::new(pinned(rig.streams()), Lie::Changes));
        let lying = Context::with(&rig, changing.clone());
        let home = rig.stream();
        let away = rig.stream();
        let source = away.stream().clone_htod(&vec![WRITTEN; LEN]).unwrap();
        let pinned = pinned(rig.streams());
        let mut target = pinned.allocate(LEN, home.id(), AllocTag::UNTAGGED).unwrap();
        changing.asked.store(asked, Ordering::Relaxed);
        // Refused, or waited for.
        let _ = LaunchRecorder::new_permissive(&away).launch_with(
            &lying,
            Writes(&mut target),
            |stream, mut to| stream.memcpy_dtod(&source, &mut to),
        );
        pinned.deallocate(target).unwrap();
        assert_the_host_is_alone(&rig, &honest, home.id(), asked);
    }
}

#[test]
fn a_block_that_a_resource_returns_instead_of_another_keeps_the_mark_of_host_memory() {
    let rig = lazy();
    let streams = rig.streams();
    let home = rig.stream();
    let pinned_blocks = pinned(streams);
    let marked = pinned_blocks.allocate(LEN, home.id(), AllocTag::UNTAGGED).unwrap();
    assert!(marked.id().slot().is_of_host_memory());
    let upstream = Lying::new(Context::tracked(&rig).resource().clone(), Lie::None);
    *upstream.instead.lock().unwrap() = Some(marked);
    let tracked = Tracked::new(upstream, Arc::clone(streams)).unwrap();
    let given = tracked.allocate(LEN, home.id(), AllocTag::UNTAGGED).unwrap();
    let refused = tracked.give_away(given).unwrap_err();
    assert!(refused.block.id().slot().is_of_host_memory());
    pinned_blocks.deallocate(refused.block).unwrap();
}

/// The driver does not wait for a copy to page-locked memory.
#[test]
fn a_copy_to_a_pinned_slice_is_over_when_the_resource_has_panicked() {
    let rig = lazy();
    let honest = Context::tracked(&rig);
    let panicking = Lying::new(honest.resource().clone(), Lie::PanicAtFinish);
    let lying = Context::with(&rig, Arc::new(panicking));
    let home = rig.stream();
    let source = DeviceBuffer::<u8>::uninit(&lying, &home, LEN).unwrap();
    let mut pinned = PinnedBuffer::<u8>::uninit(&honest, &home, LEN).unwrap();
    let bytes = pinned.as_mut_slice().unwrap();
    let copy = AssertUnwindSafe(|| source.copy_to_host(bytes, &home));
    catch_unwind(copy).expect_err("the resource panics").downcast::<&str>().unwrap();
    bytes.fill(WRITTEN);
    rig.device().synchronize().unwrap();
    assert!(bytes.iter().all(|byte| *byte == WRITTEN), "the device has written the slice");
    // The source was never written.
    let expected = |report: &dmr_sim::Report| report.kind == dmr_sim::ReportKind::Uninitialised;
    assert!(rig.universe().reports().iter().all(expected));
}
