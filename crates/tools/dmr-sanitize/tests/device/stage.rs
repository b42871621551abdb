//! The fixture of a test: a stack, streams and the kernels, and the checks at its end.

#![allow(unsafe_code, reason = "kernel launches")]

use std::sync::Arc;

use cudarc::driver::DriverError;
use dmr_buffer::DeviceBuffer;
use dmr_buffer::pinned::reap_pinned;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, StreamId};
use dmr_launch::LaunchRecorder;
use dmr_sanitize::Outcome;
use dmr_sanitize::machine::Machine;
use dmr_sanitize::stacks::Stack;
use dmr_streams::{DeviceContext, StreamPool};
use dmr_testkit::{Rig, RigConfig};

use crate::kernels::{BLOCK, Kernels};

/// A resource with the streams that it accepts.
pub(crate) struct Context {
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

/// The fixture of a test.
pub(crate) struct Stage {
    pub(crate) ctx: Context,
    pub(crate) kernels: Kernels,
    pub(crate) rig: Rig,
}

impl Stage {
    /// Makes the fixture on a fresh resource of this stack.
    pub(crate) fn new(stack: Stack) -> Outcome<Self> {
        Self::with(stack, |resource, _| resource)
    }

    /// Makes the fixture on a fresh resource of this stack, wrapped by `wrap`.
    pub(crate) fn with(
        stack: Stack,
        wrap: impl FnOnce(Arc<dyn DeviceMemoryResource>, &Rig) -> Arc<dyn DeviceMemoryResource>,
    ) -> Outcome<Self> {
        let rig = rig(&Machine::select()?);
        let streams = Arc::clone(rig.streams());
        let resource = wrap(stack.make(&streams)?, &rig);
        let kernels = Kernels::load(rig.device())?;
        Ok(Self { ctx: Context { resource, streams }, kernels, rig })
    }

    pub(crate) fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.ctx.resource
    }

    pub(crate) fn allocate(&self, bytes: usize, stream: StreamId) -> Outcome<DeviceBlock> {
        Ok(self.resource().allocate(bytes, stream, AllocTag::new("sanitize"))?)
    }

    pub(crate) fn free(&self, block: DeviceBlock) -> Outcome {
        match self.resource().deallocate(block) {
            Ok(_) => Ok(()),
            Err(refused) => Err(refused.error.into()),
        }
    }

    /// Launches on this stream: each byte of `to` becomes that of `from` plus `number`.
    pub(crate) fn add(
        &self,
        stream: impl Into<StreamId>,
        from: &DeviceBuffer<u8>,
        to: &mut DeviceBuffer<u8>,
        number: u8,
    ) -> Outcome {
        let bytes = from.len().min(to.len());
        let mut launch = LaunchRecorder::new_strict(stream);
        let memory = (launch.read(from), launch.write(to));
        launch.launch(&self.ctx, |stream| -> Result<(), DriverError> {
            // SAFETY: both buffers are at least this long; the recorder orders the work.
            unsafe { self.kernels.add(stream, memory, bytes, number) }
        })?;
        Ok(())
    }

    /// Launches on this stream; returns the sums of each [`BLOCK`] words of `from`.
    pub(crate) fn sums(
        &self,
        stream: impl Into<StreamId>,
        from: &DeviceBuffer<u32>,
    ) -> Outcome<DeviceBuffer<u32>> {
        let stream = stream.into();
        let sums = from.len().div_ceil(BLOCK as usize);
        let mut to = DeviceBuffer::<u32>::uninit(&self.ctx, stream, sums)?;
        let mut launch = LaunchRecorder::new_strict(stream);
        let memory = (launch.read(from), launch.write(&mut to));
        launch.launch(&self.ctx, |stream| -> Result<(), DriverError> {
            // SAFETY: `to` has a word for each block of `from`; the recorder orders the work.
            unsafe { self.kernels.sum(stream, memory, from.len()) }
        })?;
        Ok(to)
    }

    /// Checks that every block was freed, that no check has failed, and that the race detector has
    /// found nothing.
    pub(crate) fn finish(self) -> Outcome {
        let Self { ctx, kernels, rig } = self;
        reap_pinned(&ctx)?;
        ctx.resource.reap_pending()?;
        assert_eq!(ctx.resource.bytes_outstanding(), 0, "all blocks were deallocated");
        drop((ctx, kernels));
        rig.assert_clean();
        Ok(())
    }
}

/// A rig on this machine.
pub(crate) fn rig(machine: &Machine) -> Rig {
    Rig::with(RigConfig { universe: machine.universe().cloned(), ..RigConfig::default() })
}
