//! Faults in shared memory and at barriers.

#![allow(unsafe_code, reason = "commits faults")]

use std::sync::Arc;

use dmr_cuda_direct::DirectCudaResource;

use super::Control;
use super::scene::Scene;
use crate::tool::Tool;

const STACK: &str = "direct";

pub(super) const RACE: Control = Control {
    name: "shared-race",
    tool: Tool::Racecheck,
    stack: STACK,
    class: "shared-race",
    commit: |scene| {
        let resource = Scene::on(DirectCudaResource::new(Arc::clone(&scene.streams)));
        let block = scene.allocate_written(&resource)?;
        // SAFETY: the block is longer than the kernel needs; the fault is in shared memory.
        unsafe { scene.faults.race(scene.stream_a(), block.ptr())? };
        scene.free(&resource, block);
        Ok(())
    },
};

pub(super) const DIVERGENT_BARRIER: Control = Control {
    name: "divergent-barrier",
    tool: Tool::Synccheck,
    stack: STACK,
    class: "divergent-barrier",
    commit: |scene| {
        let resource = Scene::on(DirectCudaResource::new(Arc::clone(&scene.streams)));
        let block = scene.allocate_written(&resource)?;
        // SAFETY: the block is longer than the kernel needs; the fault is a barrier.
        unsafe { scene.faults.divergent(scene.stream_a(), block.ptr())? };
        scene.free(&resource, block);
        Ok(())
    },
};
