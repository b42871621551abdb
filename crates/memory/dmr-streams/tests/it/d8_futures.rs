//! D8: a future of a stream's work is ready when that work is done, and not before.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use dmr_core::error::StreamProblem;
use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamPool, StreamPoolConfig};
use dmr_testkit::{CountedWakes, HeldStream, Rig, RigConfig, block_on};

const BYTES: usize = 1 << 20;
/// For what must not happen, and for what happens soon.
const A_MOMENT: Duration = Duration::from_millis(5);

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn is_send_and_static<T: Send + Sync + 'static>(_: &T) {}

#[test]
fn it_is_ready_when_the_work_is_done_and_not_before() {
    let rig = Rig::new();
    let stream = rig.stream();
    for _ in 0..3 {
        let held = HeldStream::hold(rig.streams(), &stream);
        let mut completed = rig.streams().completed(&stream);
        is_send_and_static(&completed);
        let wakes = Arc::new(CountedWakes::default());
        assert_eq!(wakes.poll(&mut completed), Poll::Pending);
        std::thread::sleep(A_MOMENT);
        assert_eq!((wakes.poll(&mut completed), wakes.count()), (Poll::Pending, 0));
        held.release();
        wait_until("no wake", || wakes.count() == 1);
        assert_eq!(wakes.poll(&mut completed), Poll::Ready(Ok(())));
        assert_eq!(wakes.poll(&mut completed), Poll::Ready(Ok(())), "also afterwards");
        assert_eq!(wakes.count(), 1, "woken once");
    }
    drop(stream);
    rig.assert_clean();
}

#[test]
fn it_covers_what_was_submitted_before_and_nothing_later() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let stream = rig.stream();
    let block = resource.allocate(BYTES, stream.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(&stream);
    rig.ops().fill_pattern(&block, 0..BYTES, 7, stream.id()).unwrap();
    rig.ops().check_pattern(&block, 0..BYTES, 7, stream.id(), 0).unwrap();
    let completed = rig.streams().completed(&stream);
    let held = HeldStream::hold(rig.streams(), &stream);
    let mut later = rig.streams().completed(&stream);
    block_on(completed).unwrap();
    let wakes = Arc::new(CountedWakes::default());
    assert!(wakes.poll(&mut later).is_pending());
    drop((later, held));
    assert!(rig.ops().collect().unwrap().is_empty());
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn a_stream_that_is_held_up_does_not_delay_the_future_of_another() {
    let rig = Rig::new();
    let [slow, fast] = [rig.stream(), rig.stream()];
    let held = HeldStream::hold(rig.streams(), &slow);
    let wakes = Arc::new(CountedWakes::default());
    let mut waits: Vec<_> = (0..100).map(|_| rig.streams().completed(&slow)).collect();
    for wait in &mut waits {
        assert_eq!(wakes.poll(wait), Poll::Pending);
    }
    for _ in 0..20 {
        block_on(rig.streams().completed(&fast)).unwrap();
    }
    assert!(waits.iter_mut().all(|wait| wakes.poll(wait).is_pending()));
    held.release();
    for wait in waits {
        block_on(wait).unwrap();
    }
    drop((held, slow, fast));
    rig.assert_clean();
}

#[test]
fn a_future_that_is_dropped_frees_its_waker_at_once() {
    let rig = Rig::new();
    let stream = rig.stream();
    let held = HeldStream::hold(rig.streams(), &stream);
    let wakes = Arc::new(CountedWakes::default());
    for _ in 0..500 {
        let mut completed = rig.streams().completed(&stream);
        assert_eq!(wakes.poll(&mut completed), Poll::Pending);
        drop(completed);
        assert_eq!(Arc::strong_count(&wakes), 1);
    }
    let last = rig.streams().completed(&stream);
    held.release();
    block_on(last).unwrap();
    assert_eq!(wakes.count(), 0);
    drop((held, stream));
    rig.assert_clean();
}

#[test]
fn the_last_task_that_has_polled_is_woken() {
    let rig = Rig::new();
    let stream = rig.stream();
    let held = HeldStream::hold(rig.streams(), &stream);
    let [first, second] = [(); 2].map(|()| Arc::new(CountedWakes::default()));
    let mut completed = rig.streams().completed(&stream);
    assert!(first.poll(&mut completed).is_pending() && second.poll(&mut completed).is_pending());
    held.release();
    wait_until("no wake", || second.count() == 1);
    assert_eq!(first.count(), 0);
    assert_eq!(block_on(completed), Ok(()));
    drop((held, stream));
    rig.assert_clean();
}

#[test]
fn a_waker_that_panics_harms_no_other_future() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("as planned"));
        }
    }
    let rig = Rig::new();
    let stream = rig.stream();
    let held = HeldStream::hold(rig.streams(), &stream);
    let mut waits = [(); 3].map(|()| rig.streams().completed(&stream));
    let waker = Arc::new(Panics).into();
    let mut context = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut waits[1]).poll(&mut context).is_pending());
    held.release();
    for wait in waits {
        block_on(wait).unwrap();
    }
    block_on(rig.streams().completed(&stream)).unwrap();
    drop((held, stream));
    rig.assert_clean();
}

#[test]
fn it_outlives_the_lease_and_the_pool() {
    let rig = Rig::new();
    let pool = StreamPool::new(rig.device().clone(), StreamPoolConfig::new()).unwrap();
    let stream = pool.acquire().unwrap();
    let held = HeldStream::hold(&pool, &stream);
    let mut completed = pool.completed(&stream);
    let wakes = Arc::new(CountedWakes::default());
    assert!(wakes.poll(&mut completed).is_pending());
    let weak = Arc::downgrade(&pool);
    drop((stream, pool));
    assert!(weak.upgrade().is_none(), "the future keeps the pool");
    std::thread::sleep(A_MOMENT);
    assert!(wakes.poll(&mut completed).is_pending());
    held.release();
    assert_eq!(block_on(completed), Ok(()));
    drop(held);
    rig.assert_clean();
}

#[test]
fn the_only_stream_of_a_pool_stays_the_only_one() {
    let streams = StreamPoolConfig::new().with_max_streams(1).with_max_adopted(0);
    let rig = Rig::with(RigConfig { streams, ..RigConfig::default() });
    let stream = rig.stream();
    rig.delay(&stream);
    block_on(rig.streams().completed(&stream)).unwrap();
    block_on(rig.streams().completed(dmr_core::StreamId::DEFAULT)).unwrap();
    drop(stream);
    rig.assert_clean();
}

#[test]
fn an_id_that_names_no_stream_is_the_futures_error() {
    let rig = Rig::new();
    let other = StreamPool::new(rig.device().clone(), StreamPoolConfig::new()).unwrap();
    let lease = rig.stream();
    let returned = lease.id();
    let foreign = other.acquire().unwrap();
    drop(lease);
    for (id, problem) in
        [(returned, StreamProblem::ReturnedLease), (foreign.id(), StreamProblem::OtherPool)]
    {
        let mut completed = rig.streams().completed(id);
        let wakes = Arc::new(CountedWakes::default());
        let outcome = wakes.poll(&mut completed);
        let Poll::Ready(Err(ResourceError::StreamMisuse { problem: found, .. })) = &outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(*found, problem);
        assert_eq!(wakes.poll(&mut completed), outcome);
    }
    drop((foreign, other));
    rig.assert_clean();
}
