//! D4: in a forked child graphs are refused or return nothing, and drops make no driver call.

#![cfg(unix)]
#![allow(unsafe_code, reason = "forks, and captures work")]

use std::sync::Arc;

use cudarc::driver::result::memset_d8_async;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_graphs::{Capture, CaptureError, CaptureMode, CaptureOptions, Graph, GraphPool};
use dmr_launch::{Footprint, LaunchError, PrepareError};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{DeviceContext, StreamPool};
use dmr_testkit::{Rig, exit_code};

const BYTES: usize = 1 << 16;

struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// A value that a graph keeps. Its drop stands for one that calls the driver.
struct Module;

impl Drop for Module {
    fn drop(&mut self) {
        let _ = cudarc::driver::result::ctx::get_current();
    }
}

fn is_refused(launched: Result<(), LaunchError<Box<ResourceError>>>) -> bool {
    matches!(
        launched,
        Err(LaunchError::Prepare(PrepareError::Resource {
            source: ResourceError::ForkedProcess { .. },
            ..
        }))
    )
}

#[test]
fn a_forked_child_can_launch_capture_and_drop_nothing_of_its_parent() {
    let rig = Rig::new();
    let streams = Arc::clone(rig.streams());
    let pages = VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new()).unwrap();
    let pool = PoolResource::new(pages, Arc::clone(&streams), PoolConfig::default()).unwrap();
    let ctx = Context { resource: Arc::new(pool), streams };
    let stream = rig.stream();
    let pool = GraphPool::new(&ctx, AllocTag::new("graph"));
    let options = || CaptureOptions::new().with_pool(&pool);
    let work = |capture: &mut Capture<'_>| {
        capture.keep(Module);
        let memory = capture.allocate(BYTES)?;
        // SAFETY: the memory has this number of bytes.
        unsafe {
            memset_d8_async(memory.device_ptr(), 1, BYTES, capture.stream().cu_stream()).unwrap();
        }
        Ok::<_, ResourceError>(())
    };
    // SAFETY: the work uses memory of the capture.
    let mut graph = unsafe { Graph::capture(&ctx, &stream, options(), work) }.unwrap();
    // SAFETY: as above.
    let not_launched = unsafe { Graph::capture(&ctx, &stream, options(), work) }.unwrap();
    graph.launch(&stream).unwrap();
    let of_cudarc = stream.stream();
    of_cudarc.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    let adopted = of_cudarc.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    // SAFETY: the graph is empty.
    let adopted = unsafe { Graph::adopt(&ctx, adopted, Footprint::new()) };
    adopted.launch(&stream).unwrap();

    // SAFETY: the child makes calls that are refused, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: as above.
        let captured = unsafe { Graph::capture(&ctx, &stream, options(), work) };
        // SAFETY: as above.
        let updated = unsafe { graph.update(&stream, CaptureMode::Relaxed, work) };
        let begins = |error: &CaptureError<ResourceError>| {
            matches!(error, CaptureError::Begin(ResourceError::ForkedProcess { .. }))
        };
        let refused = [
            is_refused(graph.launch(&stream)),
            is_refused(graph.replay(&stream).launch()),
            is_refused(adopted.launch(&stream)),
            captured.is_err_and(|error| begins(&error)),
            updated.is_err_and(|error| begins(&error)),
            pool.reserved_bytes() == 0,
        ];
        drop((graph, not_launched, adopted, pool));
        let no_calls = [dmr_sim::calls_of_forked_child() == 0];
        // Which of them was not as it should be, counted from 1.
        let mut results = refused.iter().chain(&no_calls);
        let wrong = results.position(|right| !right).map_or(0, |nth| nth as i32 + 1);
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(wrong) };
    }
    assert_eq!(exit_code(child), Some(0));

    for graph in [&graph, &not_launched, &adopted] {
        graph.launch(&stream).unwrap();
    }
    assert_eq!(pool.reserved_bytes(), 2 << 20);
    drop((graph, not_launched, adopted, pool));
    ctx.resource.reap_pending().unwrap();
    assert_eq!(ctx.resource.bytes_outstanding(), 0);
    drop((ctx, stream));
    rig.assert_clean();
}
