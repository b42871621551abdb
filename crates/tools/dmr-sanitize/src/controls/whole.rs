//! Faults in blocks of the direct backend: one driver allocation each.

#![allow(unsafe_code, reason = "commits faults")]

use std::sync::Arc;

use cudarc::driver::{DriverError, result};
use dmr_core::DeviceMemoryResource;
use dmr_cuda_direct::DirectCudaResource;

use super::Control;
use super::scene::Scene;
use crate::tool::Tool;
use crate::{Outcome, lines};

const STACK: &str = "direct";

pub(super) const OVERRUN: Control = Control {
    name: "overrun-direct",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "overrun",
    commit: |scene| scene.overrun(&direct(scene)),
};

pub(super) const UNDERRUN: Control = Control {
    name: "underrun-direct",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "underrun",
    commit: |scene| {
        let resource = direct(scene);
        let block = scene.allocate_written(&resource)?;
        lines::address(block.ptr() - 1);
        // SAFETY: the fault: one byte before the block.
        unsafe { scene.faults.write(scene.stream_a(), block.ptr() - 1, 1)? };
        scene.free(&resource, block);
        Ok(())
    },
};

pub(super) const USE_AFTER_FREE: Control = Control {
    name: "use-after-free-direct",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "use-after-free",
    commit: |scene| {
        let resource = direct(scene);
        let block = scene.allocate_written(&resource)?;
        let stale = block.ptr();
        free_at_once(scene, &resource, block)?;
        lines::address(stale);
        // SAFETY: the fault: the memory was freed.
        unsafe { scene.faults.write(scene.stream_b(), stale, 1)? };
        Ok(())
    },
};

pub(super) const UNINITIALIZED: Control = Control {
    name: "uninitialized-direct",
    tool: Tool::Initcheck,
    stack: STACK,
    class: "uninitialized",
    commit: |scene| {
        let resource = direct(scene);
        let sum = scene.allocate_written(&resource)?;
        let block = scene.allocate_written(&resource)?;
        free_at_once(scene, &resource, block)?;
        scene.read_unwritten(&resource, sum)
    },
};

pub(super) const LEAK: Control = Control {
    name: "leak-direct",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "leak",
    commit: |scene| {
        let resource = direct(scene);
        let block = scene.allocate_written(&resource)?;
        lines::address(block.ptr());
        // The fault: a block that is dropped without `deallocate` is leaked.
        drop(block);
        Ok(())
    },
};

pub(super) const DOUBLE_FREE: Control = Control {
    name: "double-free-direct",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "double-free",
    commit: |scene| {
        let resource = direct(scene);
        let block = scene.allocate_written(&resource)?;
        let stale = block.ptr();
        free_at_once(scene, &resource, block)?;
        lines::address(stale);
        // SAFETY: the fault: the memory was freed, so the driver refuses this.
        let _: Result<(), DriverError> = unsafe { result::free_sync(stale) };
        Ok(())
    },
};

fn direct(scene: &Scene) -> DirectCudaResource {
    Scene::on(DirectCudaResource::new(Arc::clone(&scene.streams)))
}

/// Waits for all work and frees the block. Returns errors, because the fault was not committed yet.
fn free_at_once(
    scene: &Scene,
    resource: &DirectCudaResource,
    block: dmr_core::DeviceBlock,
) -> Outcome {
    scene.streams.device().synchronize()?;
    resource.deallocate(block)?;
    resource.reap_pending()?;
    Ok(())
}
