//! R3: a strict prepare without tracking fails before anything is enqueued; all or nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::spy::{Call, Context, Pinned};
use dmr_core::error::StreamProblem;
use dmr_core::{AllocTag, ByteRange, DeviceMemoryResource, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::{LaunchError, LaunchRecorder, PrepareError};
use dmr_pinned::PinnedMemory;
use dmr_streams::{DeviceContext, StreamPool};
use dmr_testkit::Rig;

#[test]
fn a_resource_without_tracking_is_not_even_asked() {
    let ctx = Context::untracking();
    let block = ctx.block();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&block);
    let error = recorder
        .launch(&ctx, |_| -> Result<(), std::fmt::Error> { panic!("enqueued") })
        .unwrap_err();
    let LaunchError::Prepare(PrepareError::Untracked { stream, source, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(stream, ctx.stream());
    let ResourceError::StreamMisuse { problem: StreamProblem::NotTracked, .. } = source else {
        panic!("{source:?}");
    };
    assert_eq!(ctx.calls(), []);
}

#[test]
fn a_refused_preparation_opens_no_window_and_runs_no_closure() {
    let ctx = Context::tracking();
    ctx.spy.fails_prepare.store(true, Ordering::Relaxed);
    let price = ctx.block();
    let volume = ctx.block();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read_column(AllocTag::new("price"), &price);
    recorder.read(&ctx.block());
    recorder.read_column(AllocTag::new("volume"), &volume);
    let error = recorder
        .launch(&ctx, |_| -> Result<(), std::fmt::Error> { panic!("enqueued") })
        .unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("launch on stream 0 refused: cuStreamWaitEvent"), "{message}");
    let columns = format!(
        "; column \"price\" is block {}, column \"volume\" is block {}",
        price.generation(),
        volume.generation()
    );
    assert!(message.ends_with(&columns), "{message}");
    assert_eq!(ctx.calls().len(), 1, "prepared, neither finished nor cancelled");
}

#[test]
fn a_block_of_another_stream_pool_is_refused_by_its_number() {
    let ctx = Context::tracking();
    let other = Context::tracking();
    let theirs = other.block();
    let mut recorder = LaunchRecorder::new_strict(ctx.stream());
    recorder.read(&theirs);
    let error = recorder.prepare(&ctx).unwrap_err();
    assert!(matches!(error, PrepareError::OtherPool { .. }), "{error:?}");
    assert!(error.to_string().contains(&theirs.generation().to_string()), "{error}");
    assert_eq!(ctx.calls(), [] as [Call; 0]);
}

#[test]
fn a_launch_on_a_stream_of_another_pool_is_refused_even_with_no_uses() {
    let ctx = Context::tracking();
    let other = Context::tracking();
    let refused = LaunchRecorder::new_strict(other.stream()).prepare(&ctx).unwrap_err();
    let PrepareError::Resource { source: ResourceError::StreamMisuse { .. }, .. } = refused else {
        panic!("{refused:?}");
    };
}

struct Bare(Arc<dyn DeviceMemoryResource>, Arc<StreamPool>);

impl DeviceContext for Bare {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.0
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.1
    }
}

#[test]
fn bare_direct_memory_is_refused_and_says_what_to_do() {
    let rig = Rig::new();
    let ctx = Bare(
        Arc::new(DirectCudaResource::new(Arc::clone(rig.streams()))),
        Arc::clone(rig.streams()),
    );
    let block = ctx.0.allocate(64, rig.streams().default_stream(), AllocTag::UNTAGGED).unwrap();
    let mut recorder = LaunchRecorder::new_strict(rig.streams().default_stream());
    recorder.read(&block);
    let error = recorder.prepare(&ctx).unwrap_err();
    assert!(error.to_string().contains("wrap the resource in `Tracked`"), "{error}");
    ctx.0.deallocate(block).unwrap();
    drop(ctx);
    rig.assert_clean();
}

#[test]
fn a_resource_that_panics_leaves_no_window_of_pinned_memory_open() {
    let ctx = Context::tracking();
    let stream = ctx.stream();
    let pinned = Pinned(PinnedMemory::new(ctx.rig.streams(), 64, stream).unwrap());
    let block = ctx.block();
    let launch = |pinned: &Pinned| {
        let mut recorder = LaunchRecorder::new_strict(stream);
        recorder.read(pinned);
        recorder.read(&block);
        recorder.launch(&ctx, |_| -> Result<(), ()> { Ok(()) }).is_ok()
    };
    ctx.spy.panics_in_prepare.store(true, Ordering::Relaxed);
    catch_unwind(AssertUnwindSafe(|| launch(&pinned))).unwrap_err();
    assert!(!ctx.rig.streams().uses().has_open_window(pinned.0.block().id()));
    ctx.spy.panics_in_prepare.store(false, Ordering::Relaxed);
    assert!(launch(&pinned));
    assert_eq!(pinned.0.synchronize(ByteRange::WHOLE), Ok(true), "no window is open");
}
