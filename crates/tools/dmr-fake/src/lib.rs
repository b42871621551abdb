//! A device in host memory, whose streams run work as late as they may, and a resource on it.
//!
//! Work runs only when it is waited for, so a missing order shows in the bytes. There is no driver,
//! not even a simulated one: this crate depends on dmr-core only, and so the tests of dmr-core and
//! of the adaptors build without CUDA.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `device` | streams of operations over a byte array |
//! | `resource` | [`FakeResource`]: blocks of that array |
//! | `sizes`, `growing`, `tracking`, `trim` | parts of it |
//! | `fault` | [`Fault`]: what a broken [`FakeResource`] does wrong, to test the conformance suite |
//! | `ops` | [`FakeOps`]: fills and checks on the streams |
//!
//! For `tests/` and unpublished crates only: it panics where a test would.

mod device;
mod fault;
mod growing;
mod ops;
mod resource;
mod sizes;
mod tracking;
mod trim;

use std::sync::{Arc, Mutex};

use dmr_core::conformance::Harness;
use dmr_core::sync::lock;
use dmr_core::{
    DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError, ResourceResult, StreamId,
    StreamPoolId,
};

use device::{Device, Op, Pattern};
pub use fault::Fault;
pub use ops::FakeOps;
pub use resource::FakeResource;

/// Bytes of the device.
pub const DEVICE_BYTES: usize = 16 << 20;

/// The first address of the device's memory.
const BASE: u64 = 0x7000_0000;

/// The number of stream slots of the pool: the default stream and two others.
const STREAMS: usize = 3;

type SharedDevice = Arc<Mutex<Device>>;

/// A fake device of its own, and a resource on it: a [`FakeResource`], or a stack on one.
#[derive(Debug)]
pub struct FakeHarness<R = Arc<FakeResource>> {
    device: SharedDevice,
    resource: R,
    fake: Arc<FakeResource>,
    ops: Arc<FakeOps>,
    pool: StreamPoolId,
    other_pool: StreamPoolId,
}

impl FakeHarness {
    /// Makes a correct resource. `tracks`: whether it tracks uses.
    #[must_use]
    pub fn new(tracks: bool) -> Self {
        Self::broken(tracks, None)
    }

    /// Makes a resource with at most one fault.
    #[must_use]
    pub fn broken(tracks: bool, fault: Option<Fault>) -> Self {
        Self::make(tracks, fault, |fake, _| fake)
    }
}

impl<R: DeviceMemoryResource> FakeHarness<R> {
    /// Makes a correct resource, and the stack that `wrap` builds on it with operations on its
    /// device.
    pub fn wrapped(
        tracks: bool,
        wrap: impl FnOnce(Arc<FakeResource>, Arc<dyn DeviceOps>) -> R,
    ) -> Self {
        Self::make(tracks, None, wrap)
    }

    /// Returns the innermost resource.
    pub fn fake(&self) -> &Arc<FakeResource> {
        &self.fake
    }

    /// Returns the operations on the device, the ones that `wrap` got.
    pub fn ops(&self) -> &Arc<FakeOps> {
        &self.ops
    }

    /// Returns the outermost resource: like [`Harness::resource`], with its type.
    pub fn outermost(&self) -> &R {
        &self.resource
    }

    fn make(
        tracks: bool,
        fault: Option<Fault>,
        wrap: impl FnOnce(Arc<FakeResource>, Arc<dyn DeviceOps>) -> R,
    ) -> Self {
        let device = Arc::new(Mutex::new(Device::new(DEVICE_BYTES, STREAMS)));
        let pool = StreamPoolId::next().expect("a stream pool's id");
        let other_pool = StreamPoolId::next().expect("a stream pool's id");
        let fake = Arc::new(FakeResource::new(Arc::clone(&device), pool, tracks, fault));
        let ops = Arc::new(FakeOps::new(Arc::clone(&device), pool));
        let resource = wrap(Arc::clone(&fake), Arc::<FakeOps>::clone(&ops));
        Self { device, resource, fake, ops, pool, other_pool }
    }
}

/// Returns the id of a stream. Each slot is leased once, with number 1; lease 0 was returned.
fn leased(pool: StreamPoolId, slot: usize) -> StreamId {
    StreamId::from_parts(pool, slot, 1).expect("a stream's id")
}

impl<R: DeviceMemoryResource> Harness for FakeHarness<R> {
    fn resource(&self) -> &dyn DeviceMemoryResource {
        &self.resource
    }

    fn streams(&self) -> [StreamId; 2] {
        [leased(self.pool, 1), leased(self.pool, 2)]
    }

    fn foreign_stream(&self) -> StreamId {
        leased(self.other_pool, 1)
    }

    fn returned_stream(&self) -> StreamId {
        StreamId::from_parts(self.pool, 1, 0).expect("a stream's id")
    }

    fn device_bytes(&self) -> u64 {
        DEVICE_BYTES as u64
    }

    fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()> {
        let fill = Op::Fill(Pattern::of_byte(offset(block)?, block.bytes(), byte));
        lock(&self.device).submit(stream.slot(), fill);
        Ok(())
    }

    fn check(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<Option<usize>> {
        let expected = Pattern::of_byte(offset(block)?, block.bytes(), byte);
        let mut device = lock(&self.device);
        let now = device.record(stream.slot());
        device.run_until(now);
        Ok(expected.first_wrong(device.memory()))
    }

    fn delay(&self, stream: StreamId) -> ResourceResult<()> {
        lock(&self.device).submit(stream.slot(), Op::Delay);
        Ok(())
    }

    fn synchronize(&self) -> ResourceResult<()> {
        lock(&self.device).run_all();
        Ok(())
    }

    /// Returns `Ok`: streams run as late as they may, so a missing order shows in the bytes.
    fn verdict(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Returns the offset of the block on the device, if all of it is inside.
fn offset(block: &DeviceBlock) -> ResourceResult<usize> {
    let at = block.ptr().wrapping_sub(BASE) as usize;
    let inside = at.checked_add(block.bytes()).is_some_and(|end| end <= DEVICE_BYTES);
    if inside { Ok(at) } else { Err(ResourceError::out_of_bounds(block, 0, block.bytes())) }
}
