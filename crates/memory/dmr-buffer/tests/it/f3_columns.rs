//! F3: a column of another owner is refused until it is adopted, and tracked from then on.

#![allow(unsafe_code, reason = "adopts memory of the driver")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{CudaSlice, DevicePtr};
use dmr_buffer::{AdoptedColumn, AllowedAccess, BufferError, Column, DeviceBuffer, ExternalColumn};
use dmr_core::error::AddressProblem;
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_external::{ForeignMemory, Ready};
use dmr_launch::{LaunchError, LaunchRecorder, PrepareError};
use dmr_streams::{DeviceContext, StreamLease, StreamPool, Tracked};
use dmr_testkit::{HeldStream, Rig};

const TAG: AllocTag = AllocTag::new("theirs");

struct Context {
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

fn context(rig: &Rig) -> Context {
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let tracked = Tracked::new(direct, Arc::clone(rig.streams())).unwrap();
    Context { resource: Arc::new(tracked), streams: Arc::clone(rig.streams()) }
}

/// A slice of cudarc on a stream of its own, which counts its drop.
struct Theirs {
    _slice: CudaSlice<u32>,
    drops: Arc<AtomicUsize>,
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

/// Writes numbers on a stream of the producer, which waits for `held`, and adopts them.
fn adopt(
    rig: &Rig,
    context: &Context,
    home: &StreamLease,
    access: AllowedAccess,
    drops: &Arc<AtomicUsize>,
) -> AdoptedColumn<u32> {
    let producer = rig.device().context().new_stream().unwrap();
    let slice = producer.clone_htod(&[1_u32, 2, 3, 4]).unwrap();
    let ptr = slice.device_ptr(&producer).0;
    let memory = ForeignMemory::new(ptr, 16, Theirs { _slice: slice, drops: Arc::clone(drops) });
    let ready = Ready::Stream(producer.cu_stream().cast());
    // SAFETY: the memory is the slice's, whose work is on its stream.
    unsafe { AdoptedColumn::adopt(context, home, memory, ready, access, TAG) }.unwrap()
}

fn wait_for(drops: &AtomicUsize) {
    let start = std::time::Instant::now();
    while drops.load(Ordering::SeqCst) == 0 {
        assert!(start.elapsed().as_secs() < 20, "it is not dropped");
        std::thread::yield_now();
    }
}

#[test]
fn an_adopted_column_is_used_as_a_buffer_is() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let drops = Arc::default();
    let adopted = adopt(&rig, &context, &home, AllowedAccess::ReadWrite, &drops);
    let mut column = Column::from(adopted);
    assert_eq!(column.to_host(&other).unwrap(), [1, 2, 3, 4]);
    column.view_mut().unwrap().fill(7, &other).unwrap();
    let mut copy = DeviceBuffer::<u32>::zeroed(&context, &home, 4).unwrap();
    copy.copy_from(column.as_buffer().unwrap(), &home).unwrap();
    let held = HeldStream::hold(rig.streams(), &other);
    let mut launch = LaunchRecorder::new_strict(&other);
    launch.read_write(&mut column);
    launch.launch(&context, |_| Ok::<_, ()>(())).unwrap();
    drop(column);
    assert_eq!(drops.load(Ordering::SeqCst), 0, "the launch is not done");
    held.release();
    wait_for(&drops);
    assert_eq!(copy.to_host(&home).unwrap(), [7; 4]);
    drop((copy, held, home, other, context));
    rig.assert_clean();
}

#[test]
fn a_read_only_column_is_read_and_a_declared_write_is_refused_in_both_modes() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let drops = Arc::default();
    let adopted = adopt(&rig, &context, &home, AllowedAccess::ReadOnly, &drops);
    let mut column = Column::from(adopted);
    assert_eq!(column.view_mut().map(drop), Err(BufferError::ReadOnly));
    let recorders = [LaunchRecorder::new_strict(&home), LaunchRecorder::new_permissive(&home)];
    for mut launch in recorders {
        launch.write(&mut column);
        let refused = launch.launch(&context, |_| -> Result<(), ()> { unreachable!("refused") });
        assert!(
            matches!(refused, Err(LaunchError::Prepare(PrepareError::ReadOnly { .. }))),
            "{refused:?}"
        );
    }
    let mut launch = LaunchRecorder::new_strict(&home);
    launch.read(&column);
    launch.launch(&context, |_| Ok::<_, ()>(())).unwrap();
    assert_eq!(column.to_host(&home).unwrap(), [1, 2, 3, 4]);
    drop(column);
    wait_for(&drops);
    drop((home, context));
    rig.assert_clean();
}

#[test]
fn an_external_column_is_refused_and_the_message_says_how_to_adopt_it() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let column = Column::<f32>::from(ExternalColumn::new("price", 0x1000, 7));
    let mut launch = LaunchRecorder::new_strict(&home);
    launch.read(&column);
    let refused = launch.launch(&context, |_| Ok::<_, ResourceError>(())).unwrap_err();
    assert!(refused.to_string().contains("adopt it with its producer's stream or event"));
    assert_eq!(column.to_host(&home), Err(BufferError::NotAdopted));
    drop((home, context));
    rig.assert_clean();
}

#[test]
fn elements_are_aligned_and_no_bytes_need_no_block() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let drops = Arc::<AtomicUsize>::default();
    let slice = home.stream().alloc_zeros::<u32>(4).unwrap();
    let ptr = slice.device_ptr(home.stream()).0;
    let theirs = Theirs { _slice: slice, drops: Arc::clone(&drops) };
    let memory = ForeignMemory::new(ptr + 1, 8, theirs);
    let adopt = |memory| {
        let access = AllowedAccess::ReadWrite;
        // SAFETY: the memory is the slice's, and not in use.
        unsafe { AdoptedColumn::<u32>::adopt(&context, &home, memory, Ready::Done, access, TAG) }
    };
    let refused = adopt(memory).unwrap_err();
    let expected = AddressProblem::misaligned(4);
    assert!(
        matches!(refused.error, ResourceError::NotAdopted { problem, .. } if problem == expected)
    );
    let owner = refused.memory.into_owner();
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert!(adopt(ForeignMemory::new(0, 0, owner)).unwrap().is_empty());
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    drop((home, context));
    rig.assert_clean();
}
