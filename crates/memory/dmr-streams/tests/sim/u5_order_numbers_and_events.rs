//! U5: the order number of a use is taken after its work was enqueued and before its event is
//! recorded; and no event is recorded again that a thread is about to wait for.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use dmr_core::{
    Access, AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, StreamId, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_streams::uses::Dependencies;
use dmr_testkit::Rig;

const BYTES: usize = 1024;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn block(resource: &dyn DeviceMemoryResource, home: StreamId) -> DeviceBlock {
    resource.allocate(BYTES, home, AllocTag::UNTAGGED).unwrap()
}

fn write(rig: &Rig, resource: &dyn DeviceMemoryResource, on: StreamId, block: &DeviceBlock) {
    let window = resource.prepare_block_use(block.id(), on, Access::Write).unwrap();
    rig.ops().fill_pattern(block, 0..BYTES, 7, on).unwrap();
    resource.finish_uses(window).unwrap();
}

fn read(rig: &Rig, resource: &dyn DeviceMemoryResource, on: StreamId, block: &DeviceBlock) {
    let window = resource.prepare_block_use(block.id(), on, Access::Read).unwrap();
    rig.ops().check_pattern(block, 0..BYTES, 7, on, 0).unwrap();
    resource.finish_uses(window).unwrap();
}

/// Writes `early` on `on`, and runs `meanwhile` when its event has been recorded and not been
/// marked as recorded.
fn write_and_meanwhile(
    rig: &Rig,
    resource: &Tracked<DirectCudaResource>,
    on: StreamId,
    early: &DeviceBlock,
    meanwhile: impl FnOnce(),
) {
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = rig.universe().hold_after_nth("cuEventRecord", 1);
        let writer = scope.spawn(|| write(rig, resource, on, early));
        hold.wait_until_held();
        meanwhile();
        hold.release();
        writer.join().unwrap();
    });
}

#[test]
fn an_event_does_not_stand_for_a_use_that_was_enqueued_after_it_was_recorded() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let [early, late] = [block(&resource, a.id()), block(&resource, a.id())];
    write_and_meanwhile(&rig, &resource, a.id(), &early, || {
        write(&rig, &resource, a.id(), &late);
    });
    read(&rig, &resource, b.id(), &early);
    read(&rig, &resource, b.id(), &late);
    for block in [early, late] {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn an_event_does_not_stand_for_what_its_stream_waited_for_after_it_was_recorded() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let [early, of_c] = [block(&resource, a.id()), block(&resource, c.id())];
    write(&rig, &resource, c.id(), &of_c);
    write_and_meanwhile(&rig, &resource, a.id(), &early, || {
        read(&rig, &resource, a.id(), &of_c);
    });
    read(&rig, &resource, b.id(), &early);
    read(&rig, &resource, b.id(), &of_c);
    for block in [early, of_c] {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b, c));
    rig.assert_clean();
}

#[test]
fn an_event_that_a_thread_is_about_to_wait_for_is_not_recorded_again() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let [first, other] = [block(&resource, a.id()), block(&resource, a.id())];
    // All events that will be needed are there, and idle.
    for _ in 0..4 {
        write(&rig, &resource, a.id(), &other);
        write(&rig, &resource, b.id(), &other);
    }
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let start = a.stream().record_event(timed).unwrap();
    write(&rig, &resource, a.id(), &first);
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = rig.universe().hold_nth("cuStreamWaitEvent", 1);
        let reader = scope.spawn(|| read(&rig, &resource, b.id(), &first));
        hold.wait_until_held();
        // The event is done, and the pool has found that: nothing but the held thread needs it.
        rig.ops().synchronize(a.id()).unwrap();
        let uses = rig.streams().uses();
        assert_eq!(uses.poll(&Dependencies::on(a.id(), uses.submitted(a.id()))), Ok(true));
        rig.delay(a.id());
        // These would record it again: there are fewer events.
        for _ in 0..20 {
            write(&rig, &resource, a.id(), &other);
        }
        hold.release();
        reader.join().unwrap();
    });
    let end = b.stream().record_event(timed).unwrap();
    assert!(start.elapsed_ms(&end).unwrap() < 10.0, "the reader waited for the delay");
    for block in [first, other] {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    drop((start, end, resource, a, b));
    rig.assert_clean();
}
