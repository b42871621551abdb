//! D5: pinned memory is ordered with the device's work, on a machine that works as late as it may.

use std::sync::Arc;

use crate::context::Context;
use cudarc::driver::CudaStream;
use cudarc::driver::result::{self, DriverError};
use dmr_buffer::pinned::{reap_pinned, try_reap_pinned};
use dmr_buffer::{BufferError, DeviceBuffer, PinnedBuffer};
use dmr_core::{
    AllocTag, BlockId, BlockState, BlockUse, DeallocateError, DeviceBlock, DeviceMemoryResource,
    ResourceError, ResourceResult, StreamId, StreamPoolId, Usage, UseTokens, UseTracking,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::LaunchRecorder;
use dmr_sim::{Policy, Universe};
use dmr_streams::{KernelArg, StreamGuard, Tracked};
use dmr_testkit::Rig;

const LEN: usize = 4096;

fn lazy() -> Rig {
    Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().expect("the simulator"))
}

#[test]
fn the_host_gets_the_memory_only_when_the_device_has_read_it() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    for stream in [&home, &away] {
        let mut pinned = PinnedBuffer::from_slice(&ctx, &home, &[1u8; LEN]).unwrap();
        let mut buffer = DeviceBuffer::<u8>::uninit(&ctx, stream, LEN).unwrap();
        pinned.copy_to_device(&mut buffer, stream).unwrap();
        pinned.as_mut_slice().unwrap().fill(2);
        assert_eq!(buffer.to_host(stream).unwrap(), [1; LEN], "{stream:?}");
    }
    drop((home, away));
    ctx.assert_clean(rig);
}

#[test]
fn the_host_gets_the_memory_only_when_the_device_has_written_it() {
    let rig = lazy();
    for context in [Context::direct, Context::tracked] {
        let ctx = context(&rig);
        let home = rig.stream();
        let away = rig.stream();
        let buffer = DeviceBuffer::from_host(&ctx, &away, &[3u8; LEN]).unwrap();
        let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
        pinned.copy_from_device(&buffer, &away).unwrap();
        assert_eq!(pinned.as_slice().unwrap(), [3; LEN]);
        drop((buffer, pinned));
        reap_pinned(&ctx).unwrap();
    }
    rig.assert_clean();
}

#[test]
fn a_read_of_another_stream_waits_for_the_write() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let a = rig.stream();
    let b = rig.stream();
    let source = DeviceBuffer::from_host(&ctx, &a, &[7u8; LEN]).unwrap();
    let mut target = DeviceBuffer::<u8>::zeroed(&ctx, &b, LEN).unwrap();
    let mut between = PinnedBuffer::<u8>::zeroed(&ctx, &b, LEN).unwrap();
    between.copy_from_device(&source, &a).unwrap();
    between.copy_to_device(&mut target, &b).unwrap();
    assert_eq!(target.to_host(&b).unwrap(), [7; LEN]);
    drop((source, target, between, a, b));
    ctx.assert_clean(rig);
}

#[test]
fn a_poll_frees_nothing_that_the_device_has_yet_to_read() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    for stream in [&home, &away] {
        let pinned = PinnedBuffer::from_slice(&ctx, &home, &[5u8; LEN]).unwrap();
        let mut buffer = DeviceBuffer::<u8>::uninit(&ctx, stream, LEN).unwrap();
        pinned.copy_to_device(&mut buffer, stream).unwrap();
        drop(pinned);
        assert_eq!(try_reap_pinned(&ctx).unwrap(), 0, "{stream:?}");
        assert_eq!(buffer.to_host(stream).unwrap(), [5; LEN]);
        assert_eq!(reap_pinned(&ctx).unwrap(), LEN as u64);
    }
    drop((home, away));
    ctx.assert_clean(rig);
}

/// With safe calls only: the host must not see bytes change in a slice that it has.
#[test]
fn a_copy_on_a_stream_that_is_being_retired_is_waited_for() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let own = rig.stream();
    let stream = rig.device().context().new_stream().unwrap();
    let adopted = rig.streams().adopt(stream).unwrap();
    let source = DeviceBuffer::from_host(&ctx, &own, &[7u8; LEN]).unwrap();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &own, LEN).unwrap();
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = rig.universe().hold_nth("cuMemcpyDtoHAsync_v2", 1);
        let copied = scope.spawn(|| pinned.copy_from_device(&source, &adopted));
        hold.wait_until_held();
        let refused = rig.streams().retire_stream(&adopted);
        hold.release();
        copied.join().unwrap().unwrap();
        assert!(refused.is_err());
    });
    assert_eq!(pinned.as_slice().unwrap(), [7; LEN]);
    rig.streams().retire_stream(&adopted).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [7; LEN]);
    drop((source, pinned, own, adopted));
    reap_pinned(&ctx).unwrap();
    ctx.assert_clean(rig);
}

/// A resource that does not do what it says. It needs no `unsafe`.
#[derive(Debug)]
struct Lying {
    upstream: Tracked<DirectCudaResource>,
    lie: Lie,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    OpensNoWindow,
    ClosesNoWindow,
    AllocatesHalf,
    /// It replaces a block that is to grow by a smaller one.
    Exchanges,
}

impl Lying {
    fn context(rig: &Rig, lie: Lie) -> Context {
        let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
        let upstream = Tracked::new(direct, Arc::clone(rig.streams())).unwrap();
        Context::with(rig, Arc::new(Self { upstream, lie }))
    }
}

impl DeviceMemoryResource for Lying {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let divisor = if self.lie == Lie::AllocatesHalf { 2 } else { 1 };
        self.upstream.allocate(bytes / divisor, stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.upstream.deallocate(block)
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        if self.lie != Lie::Exchanges {
            return self.upstream.try_grow(block, bytes);
        }
        let smaller =
            self.upstream.allocate(block.bytes() / 2, block.alloc_stream(), block.tag())?;
        let larger = std::mem::replace(block, smaller);
        self.upstream.deallocate(larger).map_err(|refused| refused.error)?;
        Ok(true)
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.upstream.is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.upstream.device_ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.upstream.stream_pool()
    }

    fn usage(&self) -> Usage {
        self.upstream.usage()
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.upstream.try_reap()
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.upstream.reap_pending()
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(self)
    }
}

impl UseTracking for Lying {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        match self.lie {
            Lie::OpensNoWindow => Ok(()),
            _ => self.upstream.use_tracking().unwrap().prepare(uses, tokens),
        }
    }

    fn finish(&self, _: &mut UseTokens) -> ResourceResult<()> {
        Ok(())
    }

    fn cancel(&self, _: &mut UseTokens) -> ResourceResult<()> {
        Ok(())
    }
}

#[test]
fn the_host_waits_for_a_copy_whatever_the_resource_does_with_its_uses() {
    let rig = lazy();
    let ctx = Lying::context(&rig, Lie::OpensNoWindow);
    let home = rig.stream();
    let away = rig.stream();
    let buffer = DeviceBuffer::from_host(&ctx, &away, &[3u8; LEN]).unwrap();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
    pinned.copy_from_device(&buffer, &away).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [3; LEN]);
    drop((buffer, pinned, home, away));
    ctx.assert_clean(rig);
}

/// Writes the memory that a launch has declared, as a kernel would.
#[allow(unsafe_code, reason = "stands for a kernel")]
fn write(target: KernelArg, byte: u8, stream: &CudaStream) -> Result<(), DriverError> {
    // SAFETY: the address is that of `LEN` bytes that the launch on this stream has declared.
    unsafe { result::memset_d8_async(target.device_ptr(), byte, LEN, stream.cu_stream()) }
}

#[test]
fn the_host_waits_for_a_launch_whatever_the_resource_does_with_its_uses() {
    let rig = lazy();
    let ctx = Lying::context(&rig, Lie::OpensNoWindow);
    let home = rig.stream();
    let away = rig.stream();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
    let mut launch = LaunchRecorder::new_strict(&away);
    let target = launch.write(&mut pinned);
    launch.launch(&ctx, |stream| write(target, 3, stream)).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [3; LEN]);
    drop((pinned, home, away));
    ctx.assert_clean(rig);
}

/// The event of the block would cover the pinned memory, too, and is not recorded.
#[test]
fn the_host_waits_for_a_launch_whose_blocks_are_never_finished() {
    let rig = lazy();
    let ctx = Lying::context(&rig, Lie::ClosesNoWindow);
    let home = rig.stream();
    let away = rig.stream();
    let buffer = DeviceBuffer::<u8>::uninit(&ctx, &home, LEN).unwrap();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
    let mut launch = LaunchRecorder::new_strict(&away);
    launch.read(&buffer);
    let target = launch.write(&mut pinned);
    launch.launch(&ctx, |stream| write(target, 3, stream)).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [3; LEN]);
}

#[test]
fn a_prepared_launch_keeps_the_host_out() {
    let rig = lazy();
    for ctx in [Lying::context(&rig, Lie::OpensNoWindow), Context::direct(&rig)] {
        let home = rig.stream();
        let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
        let mut launch = LaunchRecorder::new_strict(&home);
        launch.read(&pinned);
        let launch = launch.prepare(&ctx).unwrap();
        assert_eq!(pinned.as_slice().unwrap_err(), BufferError::InUse);
        launch.cancel().unwrap();
        assert_eq!(pinned.as_slice().unwrap(), [0; LEN]);
    }
}

#[test]
fn a_launch_that_is_refused_for_a_block_has_no_window_on_pinned_memory() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
    let buffer = DeviceBuffer::<u8>::uninit(&ctx, &home, LEN).unwrap();
    let mut first = LaunchRecorder::new_strict(&home);
    first.read(&buffer);
    let first = first.prepare(&ctx).unwrap();
    let mut second = LaunchRecorder::new_strict(&away);
    second.read(&pinned);
    second.read_write(&mut &buffer);
    second.prepare(&ctx).unwrap_err();
    assert_eq!(pinned.as_slice().unwrap(), [0; LEN]);
    first.cancel().unwrap();
    drop((buffer, pinned, home, away));
    ctx.assert_clean(rig);
}

#[test]
fn a_launch_and_a_copy_of_pinned_memory_and_a_block_record_one_event() {
    let rig = lazy();
    let ctx = Context::tracked(&rig);
    let home = rig.stream();
    let away = rig.stream();
    let mut pinned = PinnedBuffer::<u8>::zeroed(&ctx, &home, LEN).unwrap();
    let mut buffer = DeviceBuffer::from_host(&ctx, &home, &[3u8; LEN]).unwrap();
    rig.universe().reset_calls();
    pinned.copy_from_device(&buffer, &away).unwrap();
    assert_eq!(rig.universe().calls().count("cuEventRecord"), 1, "a copy");
    assert_eq!(pinned.as_slice().unwrap(), [3; LEN]);
    rig.universe().reset_calls();
    let mut launch = LaunchRecorder::new_strict(&away);
    let from = launch.read_write(&mut buffer);
    let to = launch.write(&mut pinned);
    let enqueue = |stream: &StreamGuard<'_>| {
        write(from, 4, stream)?;
        write(to, 5, stream)
    };
    launch.launch(&ctx, enqueue).unwrap();
    assert_eq!(rig.universe().calls().count("cuEventRecord"), 1, "a launch");
    // Another stream waits for the event of the launch, for both.
    rig.universe().reset_calls();
    pinned.copy_to_device(&mut buffer, &home).unwrap();
    assert_eq!(rig.universe().calls().count("cuEventRecord"), 1, "a copy on another stream");
    assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 1);
    assert_eq!(buffer.to_host(&home).unwrap(), [5; LEN]);
    drop((buffer, pinned, home, away));
    ctx.assert_clean(rig);
}

/// A copy into such a buffer would write over the memory behind it.
#[test]
fn a_block_with_fewer_bytes_than_asked_for_becomes_no_buffer() {
    let rig = lazy();
    let ctx = Lying::context(&rig, Lie::AllocatesHalf);
    let refused = DeviceBuffer::<u8>::uninit(&ctx, ctx.home(), LEN).unwrap_err();
    let BufferError::Resource(ResourceError::OutOfBounds { len, bytes, .. }) = refused else {
        panic!("{refused}");
    };
    assert_eq!((len, bytes), (LEN, LEN / 2));
    ctx.assert_clean(rig);
}

/// A copy of the elements would read and write the memory behind the block.
#[test]
fn a_buffer_whose_block_is_exchanged_for_a_smaller_one_has_fewer_elements() {
    let rig = lazy();
    let ctx = Lying::context(&rig, Lie::Exchanges);
    let mut buffer = DeviceBuffer::from_host(&ctx, ctx.home(), &[1u8; LEN]).unwrap();
    let _ = buffer.try_grow(2 * LEN);
    let bytes = buffer.block().unwrap().bytes();
    assert!(bytes < LEN && buffer.len() <= bytes, "{} elements in {bytes} bytes", buffer.len());
}
