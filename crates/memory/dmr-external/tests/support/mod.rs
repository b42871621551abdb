//! Shared by the tests: owners that count their drops, and a producer that is slow.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaStream, result};
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, UseTrackingExt,
};
use dmr_external::{ForeignBlocks, ForeignMemory};
use dmr_streams::{Device, DeviceContext, StreamLease, StreamPool};
use dmr_testkit::Rig;

pub(crate) const BYTES: usize = 1 << 12;
pub(crate) const TAG: AllocTag = AllocTag::new("theirs");

/// The streams are all that adopted memory needs of a context.
pub(crate) struct Streams(pub(crate) Arc<StreamPool>);

impl DeviceContext for Streams {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        unreachable!("adopted memory has a resource of its own")
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.0
    }
}

pub(crate) fn blocks(rig: &Rig) -> ForeignBlocks {
    ForeignBlocks::of(&Streams(Arc::clone(rig.streams())))
}

/// Memory of the driver, which is freed when this is dropped.
pub(crate) struct Theirs {
    ptr: u64,
    device: Device,
    drops: Arc<AtomicUsize>,
}

impl Theirs {
    pub(crate) fn new(rig: &Rig, bytes: usize, drops: &Arc<AtomicUsize>) -> Self {
        rig.device().bind().expect("the context");
        let legacy = std::ptr::null_mut();
        // SAFETY: the context is current; null is the legacy default stream.
        let ptr = unsafe { result::malloc_async(legacy, bytes) }.expect("memory");
        // SAFETY: as above.
        unsafe { result::stream::synchronize(legacy) }.expect("the allocation");
        Self { ptr, device: rig.device().clone(), drops: Arc::clone(drops) }
    }

    pub(crate) fn ptr(&self) -> u64 {
        self.ptr
    }

    pub(crate) fn memory(self, bytes: usize) -> ForeignMemory {
        ForeignMemory::new(self.ptr, bytes, self)
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
        // Fails on a lost device.
        if self.device.bind().is_ok() {
            // Does not wait: a free in the middle of a use is a finding, and no deadlock.
            // SAFETY: allocated by `new`, and freed once: a second drop is a finding.
            let freed = unsafe { result::free_async(self.ptr, std::ptr::null_mut()) };
            // A test may make it fail.
            let _ = freed;
        }
    }
}

pub(crate) fn drops() -> Arc<AtomicUsize> {
    Arc::default()
}

/// Memory of `BYTES` bytes.
pub(crate) fn memory(rig: &Rig, drops: &Arc<AtomicUsize>) -> ForeignMemory {
    Theirs::new(rig, BYTES, drops).memory(BYTES)
}

/// Returns a stream of the producer, which is none of the pool's.
pub(crate) fn producer(rig: &Rig) -> Arc<CudaStream> {
    rig.device().context().new_stream().expect("a stream")
}

pub(crate) fn handle(stream: &CudaStream) -> *mut c_void {
    stream.cu_stream().cast()
}

/// Overwrites memory on a stream of the producer.
pub(crate) fn write(on: &CudaStream, ptr: u64, byte: u8, bytes: usize) {
    // SAFETY: the memory has these bytes, and the stream is alive.
    unsafe { result::memset_d8_async(ptr, byte, bytes, on.cu_stream()) }.expect("a memset");
}

pub(crate) fn word(byte: u8) -> u32 {
    u32::from_le_bytes([byte; 4])
}

/// Overwrites a block in a recorded use on a stream.
pub(crate) fn fill(
    rig: &Rig,
    blocks: &ForeignBlocks,
    block: &DeviceBlock,
    byte: u8,
    on: &StreamLease,
) {
    try_fill(rig, blocks, block, byte, on).expect("a use");
}

/// Does what [`fill`] does, and returns errors: then the use may have been recorded.
pub(crate) fn try_fill(
    rig: &Rig,
    blocks: &ForeignBlocks,
    block: &DeviceBlock,
    byte: u8,
    on: &StreamLease,
) -> Result<(), dmr_core::ResourceError> {
    let used = [BlockUse::new(block.id(), Access::Write)];
    let open = blocks.resource().prepare_uses(&used, on.id())?;
    let filled = rig.ops().fill_pattern(block, 0..block.bytes(), word(byte), on.id());
    filled.and(blocks.resource().finish_uses(open))
}

/// Checks the bytes of a block in a recorded use on a stream; the rig has the verdict.
pub(crate) fn check(
    rig: &Rig,
    blocks: &ForeignBlocks,
    block: &DeviceBlock,
    byte: u8,
    on: &StreamLease,
) {
    let used = [BlockUse::new(block.id(), Access::Read)];
    let open = blocks.resource().prepare_uses(&used, on.id()).expect("a use");
    rig.ops().check_pattern(block, 0..block.bytes(), word(byte), on.id(), 0).expect("a check");
    blocks.resource().finish_uses(open).expect("the end of a use");
}

/// Waits until owners were dropped this often, and then a moment longer, for one drop too many.
pub(crate) fn wait_for_drops(drops: &AtomicUsize, count: usize) {
    let start = Instant::now();
    while drops.load(Ordering::SeqCst) < count {
        assert!(start.elapsed() < Duration::from_secs(20), "{drops:?} drops of {count}");
        std::thread::sleep(Duration::from_micros(100));
    }
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(drops.load(Ordering::SeqCst), count);
}
