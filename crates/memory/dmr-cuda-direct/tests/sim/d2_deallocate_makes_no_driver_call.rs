//! D2: `deallocate` makes no driver call and waits for none that another thread is in.

use std::sync::Arc;
use std::sync::mpsc::channel;

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

const TAG: AllocTag = AllocTag::new("d2");

#[test]
fn deallocate_only_retires_the_block() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let block = resource.allocate(1000, StreamId::DEFAULT, TAG).unwrap();
    rig.universe().reset_calls();
    resource.deallocate(block).unwrap();
    assert_eq!(rig.universe().calls().total(), 0);
    assert_eq!((resource.usage().live, resource.usage().retired), (0, 1000));
    assert_eq!(resource.reap_pending().unwrap(), 1000);
    assert_eq!(rig.universe().calls().count("cuMemFree_v2"), 1);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn while_one_thread_waits_in_a_free_others_allocate_is_all_that_waits() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let allocate = || resource.allocate(64, StreamId::DEFAULT, TAG).unwrap();
    let first = allocate();
    let second = allocate();
    resource.deallocate(first).unwrap();
    let hold = rig.universe().hold_nth("cuMemFree_v2", 1);
    std::thread::scope(|scope| {
        let reaping = scope.spawn(|| resource.reap_pending().unwrap());
        hold.wait_until_held();
        // No lock is held: deallocation and accounting go on.
        resource.deallocate(second).unwrap();
        assert_eq!(resource.usage().retired, 128);
        let (sender, receiver) = channel();
        let allocating = scope.spawn(move || {
            let block = allocate();
            sender.send(()).unwrap();
            block
        });
        assert!(receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err());
        hold.release();
        assert_eq!(reaping.join().unwrap(), 64);
        resource.deallocate(allocating.join().unwrap()).unwrap();
    });
    resource.reap_pending().unwrap();
    assert_eq!((resource.usage().outstanding(), resource.usage().total_freed), (0, 192));
    drop(resource);
    rig.assert_clean();
}
