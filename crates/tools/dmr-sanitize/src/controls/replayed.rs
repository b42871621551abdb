//! Faults of replays: a graph that is launched by hand, without the checks and the waits of a
//! launch through the library.

#![allow(unsafe_code, reason = "commits faults")]

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, DriverError};
use dmr_core::DeviceMemoryResource;
use dmr_cuda_direct::DirectCudaResource;

use super::Control;
use super::scene::Scene;
use crate::tool::Tool;
use crate::{Outcome, lines};

pub(super) const AFTER_FREE: Control = Control {
    name: "replay-after-free-direct",
    tool: Tool::Memcheck,
    stack: "direct",
    class: "use-after-free",
    commit: |scene| {
        let resource = Scene::on(DirectCudaResource::new(Arc::clone(&scene.streams)));
        let block = scene.allocate_written(&resource)?;
        scene.streams.device().synchronize()?;
        let stale = block.ptr();
        let graph = write(scene, stale)?;
        resource.deallocate(block)?;
        scene.streams.device().synchronize()?;
        resource.reap_pending()?;
        lines::address(stale);
        // The fault: the block of the graph is gone.
        let _: Result<(), DriverError> = graph.launch();
        let _: Result<(), _> = scene.streams.device().synchronize();
        Ok(())
    },
};

#[cfg(feature = "all")]
pub(super) const BEFORE_ALLOC: Control = Control {
    name: "replay-before-alloc-async",
    tool: Tool::Memcheck,
    stack: "async",
    class: "use-before-alloc",
    commit: |scene| {
        let resource = super::ordered::driver_pool(scene)?;
        let block = scene.allocate(&resource)?;
        let graph = write(scene, block.ptr())?;
        lines::address(block.ptr());
        // The fault: the stream of the replay does not wait for the allocation.
        let _: Result<(), DriverError> = graph.launch();
        let _: Result<(), _> = scene.streams.device().synchronize();
        scene.free(&resource, block);
        Ok(())
    },
};

/// Captures a write of one byte, on the stream `b`.
fn write(scene: &Scene, ptr: u64) -> Outcome<CudaGraph> {
    let stream = scene.stream_b();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    // SAFETY: nothing runs in a capture; each control says what is wrong with its replay.
    let written = unsafe { scene.faults.write(stream, ptr, 1) };
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
    written?;
    Ok(graph.ok_or("the capture has left no graph")?)
}
