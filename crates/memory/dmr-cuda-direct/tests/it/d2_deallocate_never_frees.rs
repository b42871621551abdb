//! D2: `deallocate` waits for nothing; frees happen in reaping and at the start of `allocate`.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::{HeldStream, Rig};

const TAG: AllocTag = AllocTag::new("d2");

#[test]
fn deallocate_does_not_wait_for_device_work() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let stream = rig.stream();
    let block = resource.allocate(1000, stream.id(), TAG).unwrap();
    let held = HeldStream::hold(rig.streams(), &stream);
    let (sent, received) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sent.send(resource.deallocate(block)));
        let freed = received.recv_timeout(Duration::from_secs(20));
        // Before an assertion: the other thread may wait for the stream.
        held.release();
        freed.expect("it waits for the device").unwrap();
    });
    drop((held, resource, stream));
    rig.assert_clean();
}

#[test]
fn what_was_retired_is_freed_before_more_is_taken() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    // More than half of what is free: two of them never fit.
    let (free, _) = rig.device().memory_info().unwrap();
    let bytes = usize::try_from(free / 3 * 2).unwrap();
    for _ in 0..3 {
        let block = resource.allocate(bytes, StreamId::DEFAULT, TAG).unwrap();
        resource.deallocate(block).unwrap();
    }
    drop(resource);
    rig.assert_clean();
}
