//! T1: `StreamId::DEFAULT` is the pool's own first stream, and is never stored.

use dmr_core::StreamId;
use dmr_testkit::Rig;

#[test]
fn the_default_resolves_to_an_id_of_this_pool() {
    let rig = Rig::new();
    let streams = rig.streams();
    let resolved = streams.resolve_id(StreamId::DEFAULT).unwrap();
    assert!(!resolved.is_default());
    assert_eq!(resolved, streams.default_stream());
    assert_eq!(resolved.pool(), Some(streams.id()));
    assert_eq!(streams.resolve_id(resolved).unwrap(), resolved);
}

#[test]
fn the_default_is_not_cudas_legacy_null_stream() {
    let rig = Rig::new();
    let stream = rig.streams().resolve(StreamId::DEFAULT).unwrap();
    assert!(!stream.cu_stream().is_null());
}

#[test]
fn the_default_outlives_the_lease_that_shares_its_stream() {
    let rig = Rig::new();
    let streams = rig.streams();
    let stored = streams.resolve_id(StreamId::DEFAULT).unwrap();
    let lease = rig.stream();
    let leased = lease.id();
    assert!(streams.same_stream(leased, stored).unwrap());
    assert_ne!(leased, stored);
    drop(lease);
    assert!(streams.resolve(leased).is_err());
    assert!(streams.resolve(stored).is_ok());
    assert!(streams.resolve(StreamId::DEFAULT).is_ok());
}
