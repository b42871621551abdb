//! F1: without the producer's stream, a slow producer is a race, which the simulator reports.

use dmr_external::Ready;
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

use crate::support::{
    BYTES, TAG, Theirs, blocks, check, drops, fill, handle, producer, wait_for_drops, write,
};

#[test]
fn only_the_wait_orders_the_first_use_after_the_producer() {
    for waits in [true, false] {
        let rig = Rig::simulated();
        let blocks = blocks(&rig);
        let home = rig.stream();
        let drops = drops();
        let theirs_on = producer(&rig);
        let theirs = Theirs::new(&rig, BYTES, &drops);
        write(&theirs_on, theirs.ptr(), 7, BYTES);
        let ready = if waits { Ready::Stream(handle(&theirs_on)) } else { Ready::Done };
        // SAFETY: without the wait this is the mistake that the simulator is to find.
        let block = unsafe { blocks.adopt(theirs.memory(BYTES), home.id(), ready, TAG) }.unwrap();
        check(&rig, &blocks, &block, 7, &home);
        fill(&rig, &blocks, &block, 8, &home);
        assert_eq!(rig.verdict().is_ok(), waits, "{:?}", rig.verdict());
        rig.device().synchronize().unwrap();
        blocks.resource().deallocate(block).unwrap();
        wait_for_drops(&drops, 1);
    }
}
