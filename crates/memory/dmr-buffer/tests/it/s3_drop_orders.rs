//! S3: buffers, context, leases and rig are dropped in any order.

use crate::context::Context;
use dmr_buffer::DeviceBuffer;
use dmr_testkit::Rig;

#[test]
fn a_buffer_outlives_its_context_and_the_lease_it_was_made_on() {
    let rig = Rig::new();
    let universe = rig.simulator().cloned();
    let ctx = Context::direct(&rig);
    let lease = rig.stream();
    let buffer = DeviceBuffer::from_host(&ctx, &lease, &[1u32, 2, 3]).unwrap();
    drop((ctx, lease, rig));
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert!(universe.is_none_or(|universe| universe.finish().is_clean()));
}

#[test]
fn the_stream_of_a_returned_lease_is_still_the_home_stream() {
    let rig = Rig::new();
    let ctx = Context::direct(&rig);
    let lease = rig.stream();
    let buffer = DeviceBuffer::from_host(&ctx, &lease, &[1u32, 2, 3]).unwrap();
    drop(lease);
    let again = rig.stream();
    assert_eq!(buffer.to_host(&again).unwrap(), [1, 2, 3]);
    drop((buffer, again));
    ctx.assert_clean(rig);
}
