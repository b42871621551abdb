//! Faults in blocks of a pool that announces them through NVTX, and launches whose kernels make
//! accesses that were not declared.

#![allow(unsafe_code, reason = "commits faults")]

use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource};
use dmr_launch::LaunchRecorder;
use dmr_streams::{DeviceContext, StreamPool};

use super::Control;
use super::scene::{BYTES, Scene};
use crate::stacks::Stack;
use crate::tool::Tool;
use crate::{Outcome, lines};

const STACK: &str = "pool";

pub(super) const OVERRUN: Control = Control {
    name: "overrun-pool",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "overrun",
    commit: |scene| {
        let pool = Announced::new(scene)?;
        let first = pool.block(scene)?;
        let second = pool.block(scene)?;
        lines::address(first.ptr() + u64::from(BYTES));
        // SAFETY: the fault: one byte behind the block, in the memory of the pool.
        unsafe { scene.faults.write(scene.stream_a(), first.ptr(), BYTES + 1)? };
        scene.free(&pool.resource, first);
        scene.free(&pool.resource, second);
        Ok(())
    },
};

pub(super) const USE_AFTER_FREE: Control = Control {
    name: "use-after-free-pool",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "use-after-free",
    commit: |scene| {
        let pool = Announced::new(scene)?;
        let kept = pool.block(scene)?;
        let stale = pool.recycle(scene)?;
        lines::address(stale);
        // SAFETY: the fault: the block was deallocated, and the pool can allocate its memory.
        unsafe { scene.faults.write(scene.stream_a(), stale, 1)? };
        scene.free(&pool.resource, kept);
        Ok(())
    },
};

pub(super) const UNINITIALIZED: Control = Control {
    name: "uninitialized-pool",
    tool: Tool::Initcheck,
    stack: STACK,
    class: "uninitialized",
    commit: |scene| {
        let pool = Announced::new(scene)?;
        let sum = pool.block(scene)?;
        let stale = pool.recycle(scene)?;
        let recycled = scene.allocate(&pool.resource)?;
        if recycled.ptr() != stale {
            return Err("the pool has not recycled the memory of the freed block".into());
        }
        lines::address(recycled.ptr());
        // SAFETY: the fault: the block was never written, unlike the one before in its memory.
        unsafe { scene.faults.read(scene.stream_a(), recycled.ptr(), 1, sum.ptr())? };
        scene.free(&pool.resource, recycled);
        scene.free(&pool.resource, sum);
        Ok(())
    },
};

pub(super) const NOT_WRITABLE: Control = Control {
    name: "not-writable-pool",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "not-writable",
    commit: |scene| {
        let pool = Announced::new(scene)?;
        let from = pool.block(scene)?;
        let mut to = pool.block(scene)?;
        lines::address(from.ptr());
        let at = from.ptr();
        // SAFETY: the fault: the launch has declared that it reads this block.
        pool.launch(scene, &from, &mut to, |stream| unsafe { scene.faults.write(stream, at, 1) })?;
        scene.free(&pool.resource, from);
        scene.free(&pool.resource, to);
        Ok(())
    },
};

pub(super) const UNDECLARED: Control = Control {
    name: "undeclared-pool",
    tool: Tool::Memcheck,
    stack: STACK,
    class: "undeclared",
    commit: |scene| {
        let pool = Announced::new(scene)?;
        let from = pool.block(scene)?;
        let mut to = pool.block(scene)?;
        let other = pool.block(scene)?;
        lines::address(other.ptr());
        let at = other.ptr();
        // SAFETY: the fault: the launch has not declared this block.
        pool.launch(scene, &from, &mut to, |stream| unsafe { scene.faults.write(stream, at, 1) })?;
        for block in [from, to, other] {
            scene.free(&pool.resource, block);
        }
        Ok(())
    },
};

/// A pool over `cuMemAlloc` memory, whose blocks are announced.
struct Announced {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl DeviceContext for Announced {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

impl Announced {
    fn new(scene: &Scene) -> Outcome<Self> {
        let streams = Arc::clone(&scene.streams);
        Ok(Self { resource: Scene::on(Stack::find("pool-direct")?.make(&streams)?), streams })
    }

    /// Allocates a block and writes all of it.
    fn block(&self, scene: &Scene) -> Outcome<DeviceBlock> {
        scene.allocate_written(&self.resource)
    }

    /// Writes a block and frees it; returns its address.
    fn recycle(&self, scene: &Scene) -> Outcome<u64> {
        let block = self.block(scene)?;
        let address = block.ptr();
        self.resource.deallocate(block)?;
        scene.streams.device().synchronize()?;
        self.resource.reap_pending()?;
        Ok(address)
    }

    /// A launch on the stream `a` that declares a read of `from` and a write of `to`.
    fn launch(
        &self,
        scene: &Scene,
        from: &DeviceBlock,
        to: &mut DeviceBlock,
        enqueue: impl FnOnce(&Arc<CudaStream>) -> Result<(), DriverError>,
    ) -> Outcome {
        let mut launch = LaunchRecorder::new_strict(&scene.a);
        launch.read_column(AllocTag::new("from"), from);
        launch.write_column(AllocTag::new("to"), to);
        Ok(launch.launch(self, |stream| enqueue(stream))?)
    }
}
