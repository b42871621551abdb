//! Faults in blocks of the async backend, which are allocated and freed in the order of a stream.

#![allow(unsafe_code, reason = "commits faults")]

use std::sync::Arc;

use cudarc::driver::{DriverError, result};
use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_streams::{PatternOps, StreamLease};

use super::Control;
use super::scene::Scene;
use crate::tool::Tool;
use crate::{Outcome, lines};

const STACK: &str = "async";

pub(super) const OVERRUN: Control = Control {
    name: "overrun-async",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "overrun",
    commit: |scene| scene.overrun(&driver_pool(scene)?),
};

pub(super) const USE_AFTER_FREE: Control = Control {
    name: "use-after-free-async",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "use-after-free",
    commit: |scene| {
        let resource = driver_pool(scene)?;
        let block = scene.allocate_written(&resource)?;
        let stale = block.ptr();
        // The free is queued on its stream, and has not run, when the memory is used.
        let _delay = delay(scene, &scene.a)?;
        resource.deallocate(block)?;
        lines::address(stale);
        // SAFETY: the fault: the memory was freed on the other stream.
        unsafe { scene.faults.write(scene.stream_b(), stale, 1)? };
        Ok(())
    },
};

pub(super) const FREE_WHILE_USED: Control = Control {
    name: "free-while-used-async",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "use-after-free",
    commit: |scene| {
        let resource = driver_pool(scene)?;
        let block = scene.allocate_written(&resource)?;
        scene.streams.device().synchronize()?;
        let _delay = delay(scene, &scene.b)?;
        lines::address(block.ptr());
        // SAFETY: the fault: the use is not recorded, so the free does not wait for it.
        unsafe { scene.faults.write(scene.stream_b(), block.ptr(), 1)? };
        scene.free(&resource, block);
        Ok(())
    },
};

pub(super) const USE_BEFORE_ALLOC: Control = Control {
    name: "use-before-alloc-async",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "use-before-alloc",
    commit: |scene| {
        let resource = driver_pool(scene)?;
        let block = scene.allocate(&resource)?;
        lines::address(block.ptr());
        // SAFETY: the fault: the other stream does not wait for the allocation.
        unsafe { scene.faults.write(scene.stream_b(), block.ptr(), 1)? };
        let _: Result<(), _> = scene.streams.device().synchronize();
        scene.free(&resource, block);
        Ok(())
    },
};

pub(super) const UNINITIALIZED: Control = Control {
    name: "uninitialized-async",
    tool: Tool::Initcheck,
    stack: STACK,
    class: "uninitialized",
    commit: |scene| {
        let resource = driver_pool(scene)?;
        let sum = scene.allocate_written(&resource)?;
        let block = scene.allocate_written(&resource)?;
        resource.deallocate(block)?;
        scene.read_unwritten(&resource, sum)
    },
};

pub(super) const DOUBLE_FREE: Control = Control {
    name: "double-free-async",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "double-free",
    commit: |scene| {
        let resource = driver_pool(scene)?;
        let block = scene.allocate_written(&resource)?;
        let stale = block.ptr();
        resource.deallocate(block)?;
        scene.streams.device().synchronize()?;
        lines::address(stale);
        // SAFETY: the fault: the memory was freed, so the driver refuses this.
        let _: Result<(), DriverError> =
            unsafe { result::free_async(stale, scene.stream_b().cu_stream()) };
        Ok(())
    },
};

/// Keeps a stream busy for 200 ms. Dropping the returned value waits for the kernel and unloads it.
fn delay(scene: &Scene, stream: &StreamLease) -> Outcome<PatternOps> {
    let ops = PatternOps::new(Arc::clone(&scene.streams))?;
    ops.delay(stream.id(), 200_000_000)?;
    Ok(ops)
}

pub(super) fn driver_pool(scene: &Scene) -> Outcome<AsyncCudaResource> {
    let resource = AsyncCudaResource::new(Arc::clone(&scene.streams), AsyncConfig::default())?;
    Ok(Scene::on(resource))
}
