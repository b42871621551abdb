//! S3: device, pool, leases, streams and operations are dropped in any order.

use std::sync::Arc;

use dmr_core::DeviceOps;
use dmr_streams::PatternOps;
use dmr_testkit::Rig;

#[test]
fn a_lease_keeps_its_pool_and_context_alive() {
    let rig = Rig::new();
    let lease = rig.stream();
    let universe = rig.simulator().cloned();
    drop(rig);
    lease.stream().synchronize().unwrap();
    assert!(lease.pool().resolve(lease.id()).is_ok());
    drop(lease);
    assert!(universe.is_none_or(|universe| universe.finish().is_clean()));
}

#[test]
fn cudarcs_stream_outlives_lease_and_pool() {
    let rig = Rig::new();
    let lease = rig.stream();
    let stream = Arc::clone(lease.stream());
    let universe = rig.simulator().cloned();
    drop(lease);
    drop(rig);
    stream.synchronize().unwrap();
    let data = stream.clone_htod(&[1_u32, 2, 3]).unwrap();
    assert_eq!(stream.clone_dtoh(&data).unwrap(), [1, 2, 3]);
    drop((data, stream));
    assert!(universe.is_none_or(|universe| universe.finish().is_clean()));
}

#[test]
fn operations_outlive_the_lease_whose_stream_they_used() {
    let rig = Rig::new();
    let lease = rig.stream();
    let ops = PatternOps::new(Arc::clone(rig.streams())).unwrap();
    ops.delay(lease.id(), 1_000_000).unwrap();
    drop(lease);
    assert_eq!(ops.collect().unwrap(), []);
    drop(ops);
    rig.assert_clean();
}

#[test]
fn operations_dropped_while_their_kernels_run_wait_for_them() {
    let rig = Rig::new();
    let lease = rig.stream();
    let ops = PatternOps::new(Arc::clone(rig.streams())).unwrap();
    ops.delay(lease.id(), 20_000_000).unwrap();
    drop(ops);
    lease.stream().synchronize().unwrap();
    drop(lease);
    rig.assert_clean();
}
