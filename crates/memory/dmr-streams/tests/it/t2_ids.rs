//! T2: an id of another pool, or of a returned lease, is refused; never another stream.

use dmr_core::error::StreamProblem;
use dmr_core::{ResourceError, ResourceResult, StreamId};
use dmr_streams::{StreamPool, StreamPoolConfig};
use dmr_testkit::{Rig, block_on};

fn problem<T>(result: ResourceResult<T>) -> (StreamId, StreamProblem) {
    match result.err().expect("a refused stream") {
        ResourceError::StreamMisuse { stream, problem, .. } => (stream, problem),
        other => panic!("{other}"),
    }
}

#[test]
fn an_id_of_another_pool_is_refused_even_on_the_same_device() {
    let rig = Rig::new();
    let other = StreamPool::new(rig.device().clone(), StreamPoolConfig::new()).unwrap();
    let lease = other.acquire().unwrap();
    for id in [lease.id(), other.default_stream(), other.next().unwrap()] {
        let refused = (id, StreamProblem::OtherPool);
        assert_eq!(problem(rig.streams().resolve(id)), refused);
        assert_eq!(problem(rig.streams().resolve_id(id)), refused);
        assert_eq!(problem(rig.streams().synchronize(id)), refused);
        assert_eq!(problem(rig.streams().same_stream(StreamId::DEFAULT, id)), refused);
    }
}

#[test]
fn an_id_of_a_returned_lease_is_refused() {
    let rig = Rig::new();
    let lease = rig.stream();
    let id = lease.id();
    assert!(rig.streams().resolve(id).is_ok());
    drop(lease);
    assert_eq!(problem(rig.streams().resolve(id)), (id, StreamProblem::ReturnedLease));
}

#[test]
fn a_stale_id_does_not_come_back_to_life_with_the_slots_next_lease() {
    let rig = Rig::new();
    let stale: Vec<_> = (0..3).map(|_| rig.stream().id()).collect();
    let now = rig.stream();
    for id in stale {
        assert_eq!(id.slot(), now.id().slot(), "the slot was used again");
        assert_eq!(problem(rig.streams().resolve(id)), (id, StreamProblem::ReturnedLease));
    }
    assert!(rig.streams().resolve(now.id()).is_ok());
}

#[test]
fn an_id_that_was_never_issued_is_refused() {
    let rig = Rig::new();
    let pool = rig.streams().id();
    for (slot, lease) in [(0, 7), (1, 0), (1, 1), (StreamId::MAX_SLOTS - 1, 0)] {
        let id = StreamId::from_parts(pool, slot, lease).unwrap();
        assert_eq!(problem(rig.streams().resolve(id)), (id, StreamProblem::ReturnedLease));
    }
}

#[test]
fn a_lease_that_ends_while_its_id_is_being_used_leaves_no_other_stream_behind() {
    let rig = Rig::new();
    let first = rig.stream();
    let id = first.id();
    let handle = first.stream().cu_stream() as usize;
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            loop {
                match rig.streams().resolve(id) {
                    Ok(stream) => assert_eq!(stream.cu_stream() as usize, handle),
                    Err(error) => return error,
                }
            }
        });
        std::thread::yield_now();
        drop(first);
        // The slot has another user next.
        let next = rig.stream();
        assert_eq!(problem::<()>(Err(user.join().unwrap())), (id, StreamProblem::ReturnedLease));
        assert_eq!(next.id().slot(), id.slot());
    });
}

/// `synchronize` takes what `completed` takes: a lease, or an id.
#[test]
fn a_lease_names_its_stream_where_the_host_waits_and_where_a_future_does() {
    let rig = Rig::new();
    let lease = rig.stream();
    rig.streams().synchronize(&lease).unwrap();
    rig.streams().synchronize(lease.id()).unwrap();
    assert_eq!(block_on(rig.streams().completed(&lease)), Ok(()));
}
