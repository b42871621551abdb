//! The conformance suite over memory that is adopted as soon as it is allocated.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

use std::fmt;
use std::sync::Arc;

use dmr_core::conformance::{Report, run_all};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceResult, StreamId, StreamPoolId, Usage, UseTracking,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_external::{ForeignBlocks, ForeignMemory, Ready};
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

use crate::support::blocks;

/// Adopts each block that it allocates upstream.
struct Adopting {
    blocks: ForeignBlocks,
    upstream: Arc<DirectCudaResource>,
}

/// A block of upstream, as the owner of adopted memory.
struct Upstream {
    block: Option<DeviceBlock>,
    resource: Arc<DirectCudaResource>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.resource.deallocate(block).expect("it is not used");
        }
    }
}

impl DeviceMemoryResource for Adopting {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let streams = self.blocks.streams();
        streams.enter(stream)?.refuse_capture()?;
        let block = match self.upstream.allocate(bytes, stream, tag) {
            Err(error) if error.is_out_of_memory() => {
                self.reap_pending()?;
                self.upstream.allocate(bytes, stream, tag)
            }
            allocated => allocated,
        }?;
        let ptr = block.ptr();
        let owner = Upstream { block: Some(block), resource: Arc::clone(&self.upstream) };
        let memory = ForeignMemory::new(ptr, bytes, owner);
        // SAFETY: just allocated, and freed with its owner.
        let adopted = unsafe { self.blocks.adopt(memory, stream, Ready::Done, tag) };
        adopted.map_err(|refused| refused.error)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.blocks.resource().deallocate(block)
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.blocks.resource().try_grow(block, bytes)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.blocks.resource().is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.blocks.resource().device_ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.blocks.resource().stream_pool()
    }

    fn usage(&self) -> Usage {
        self.blocks.resource().usage()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.blocks.resource().try_reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.blocks.resource().reap_pending()
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        self.blocks.resource().trim_to(keep_bytes)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.blocks.resource().use_tracking()
    }
}

impl fmt::Debug for Adopting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Adopting")
    }
}

#[test]
fn adopted_memory_keeps_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| Adopting {
        blocks: blocks(rig),
        upstream: Arc::new(DirectCudaResource::new(Arc::clone(rig.streams()))),
    };
    run_all(|| Rig::new().harness(resource)).into_result()
}
