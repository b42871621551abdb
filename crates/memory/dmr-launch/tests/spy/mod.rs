//! A resource that tracks uses, or does not, and writes down what it is asked.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unsafe_code, reason = "makes blocks, which stand for no memory")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dmr_core::{
    Access, AllocTag, BlockId, BlockParts, BlockSlot, BlockState, BlockUse, DeallocateError,
    DeviceBlock, DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage, UseTokens, UseTracking,
};
use dmr_pinned::PinnedMemory;
use dmr_streams::{DeviceContext, MemoryOrigin, StreamPool, TrackedMemory};
use dmr_testkit::Rig;

/// A call to the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Prepare(Vec<BlockUse>, StreamId),
    Finish(usize),
    Cancel(usize),
}

#[derive(Debug)]
pub(crate) struct Spy {
    streams: Arc<StreamPool>,
    tracks: bool,
    calls: Mutex<Vec<Call>>,
    /// Off while host allocations are counted: writing down allocates.
    pub(crate) writes_down: AtomicBool,
    pub(crate) fails_prepare: AtomicBool,
    pub(crate) panics_in_prepare: AtomicBool,
    pub(crate) fails_finish: AtomicBool,
    pub(crate) panics_in_finish: AtomicBool,
}

/// The payload of a panic whose drop panics, too.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        std::panic::panic_any(Self);
    }
}

/// A resource and streams for launches, on a rig.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) spy: Arc<Spy>,
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
    pub(crate) rig: Rig,
}

impl Context {
    pub(crate) fn tracking() -> Self {
        Self::new(true)
    }

    pub(crate) fn untracking() -> Self {
        Self::new(false)
    }

    fn new(tracks: bool) -> Self {
        let rig = Rig::new();
        let streams = Arc::clone(rig.streams());
        let spy = Arc::new(Spy {
            streams: Arc::clone(&streams),
            tracks,
            calls: Mutex::default(),
            writes_down: AtomicBool::new(true),
            fails_prepare: AtomicBool::new(false),
            panics_in_prepare: AtomicBool::new(false),
            fails_finish: AtomicBool::new(false),
            panics_in_finish: AtomicBool::new(false),
        });
        let resource: Arc<dyn DeviceMemoryResource> = Arc::clone(&spy) as _;
        Self { spy, resource, streams, rig }
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.streams.default_stream()
    }

    /// A block of its own generation at this address.
    pub(crate) fn block_at(&self, ptr: u64) -> DeviceBlock {
        block(ptr, self.stream())
    }

    pub(crate) fn block(&self) -> DeviceBlock {
        self.block_at(0x1000)
    }

    /// Returns the calls of the resource since the last time.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.spy.calls.lock().unwrap())
    }

    pub(crate) fn prepared(&self, uses: &[(&DeviceBlock, Access)]) -> Call {
        let uses = uses.iter().map(|(block, access)| BlockUse::new(block.id(), *access)).collect();
        Call::Prepare(uses, self.stream())
    }
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

pub(crate) fn block(ptr: u64, home: StreamId) -> DeviceBlock {
    // SAFETY: nothing reads or writes its memory; the generation is new.
    unsafe {
        DeviceBlock::from_parts(BlockParts {
            ptr,
            bytes: 256,
            reserved_bytes: 256,
            alignment: 256,
            device_ordinal: 0,
            alloc_stream: home,
            tag: AllocTag::UNTAGGED,
            generation: Generation::next(),
            slot: BlockSlot::NONE,
            state: BlockState::Live,
            part_depth: 0,
        })
    }
}

impl Spy {
    fn note(&self, call: impl FnOnce() -> Call) {
        if self.writes_down.load(Ordering::Relaxed) {
            self.calls.lock().unwrap().push(call());
        }
    }
}

fn broken(call: &'static str) -> ResourceError {
    ResourceError::driver(call, 999, "CUDA_ERROR_UNKNOWN", 0)
}

impl DeviceMemoryResource for Spy {
    fn allocate(&self, _: usize, stream: StreamId, _: AllocTag) -> ResourceResult<DeviceBlock> {
        Ok(block(0x1000, stream))
    }

    fn deallocate(&self, _: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        Ok(BlockState::Freed)
    }

    fn is_retired(&self, _: BlockId) -> bool {
        false
    }

    fn device_ordinal(&self) -> usize {
        self.streams.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        Ok(0)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        Ok(0)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.tracks.then_some(self as _)
    }
}

impl UseTracking for Spy {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        let stream = tokens.stream();
        let noted = || uses.to_vec();
        self.note(|| Call::Prepare(noted(), stream));
        assert!(!self.panics_in_prepare.load(Ordering::Relaxed), "a resource that panics");
        if self.fails_prepare.load(Ordering::Relaxed) {
            return Err(broken("cuStreamWaitEvent"));
        }
        for (ticket, used) in uses.iter().enumerate() {
            // SAFETY: no memory stands behind the blocks.
            unsafe { tokens.push(used.block, used.access, ticket as u32) };
        }
        Ok(())
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.note(|| Call::Finish(tokens.len()));
        if self.panics_in_finish.load(Ordering::Relaxed) {
            std::panic::panic_any(PanicsWhenDropped);
        }
        if self.fails_finish.load(Ordering::Relaxed) {
            return Err(broken("cuEventRecord"));
        }
        Ok(())
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.note(|| Call::Cancel(tokens.len()));
        Ok(())
    }
}

/// Memory of another owner.
#[derive(Debug)]
pub(crate) struct External(pub(crate) &'static str, pub(crate) u64);

impl TrackedMemory for External {
    fn device_ptr(&self) -> u64 {
        self.1
    }

    fn size_in_bytes(&self) -> usize {
        4
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        MemoryOrigin::External { name: self.0 }
    }
}

/// No bytes.
#[derive(Debug)]
pub(crate) struct Nothing;

impl TrackedMemory for Nothing {
    fn device_ptr(&self) -> u64 {
        0
    }

    fn size_in_bytes(&self) -> usize {
        0
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        MemoryOrigin::Empty
    }
}

/// Pinned memory.
#[derive(Debug)]
pub(crate) struct Pinned(pub(crate) PinnedMemory);

impl TrackedMemory for Pinned {
    fn device_ptr(&self) -> u64 {
        self.0.block().ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.0.block().bytes()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        MemoryOrigin::Pinned(self.0.block().id())
    }
}
