//! D2: while one thread reserves memory from upstream, or returns some, the others go on; and an
//! upstream may call the pool.

use crate::support;
use std::cell::Cell;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use crate::support::stage::{ALL, Stage, tight};
use crate::support::{MIB, UNKNOWN, Upstream};
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::callbacks::{FailureCallbackLayer, FailureCallbackResource, Response};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

/// Longer than any allocation takes.
const LONG: Duration = Duration::from_secs(8);

/// Holds the first stream's allocation inside `call`; meanwhile the second one's has to return.
fn growth_does_not_wait_for(upstream: Upstream, call: &str) {
    let stage = Stage::new(upstream, PoolConfig::fast().with_growth(2 * MIB));
    // Neither has memory or addresses yet.
    let [_, a, b] = stage.streams();
    let (sent, received) = channel();
    thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = stage.universe().hold_nth(call, 1);
        let first = scope.spawn(|| stage.allocate(a, ALL));
        hold.wait_until_held();
        let second = scope.spawn(|| {
            let block = stage.allocate(b, ALL);
            sent.send(()).unwrap();
            block
        });
        let in_time = received.recv_timeout(LONG);
        hold.release();
        stage.free(first.join().unwrap());
        stage.free(second.join().unwrap());
        assert!(in_time.is_ok(), "{upstream:?}: waited for {call} of another stream");
    });
    stage.end();
}

#[test]
fn a_stream_grows_while_another_one_is_inside_an_allocation_of_upstream() {
    growth_does_not_wait_for(Upstream::Direct, "cuMemAlloc_v2");
    growth_does_not_wait_for(Upstream::Async, "cuMemAllocFromPoolAsync");
}

#[test]
fn a_stream_grows_while_another_one_reserves_addresses_and_creates_and_maps_pages() {
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        growth_does_not_wait_for(Upstream::Virtual, call);
    }
}

#[test]
fn a_free_that_takes_the_driver_seconds_is_waited_for() {
    for (upstream, call) in [(Upstream::Async, "cuMemFreeAsync"), (Upstream::Virtual, "cuMemUnmap")]
    {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        stage.pass(a, ALL, 1);
        stage.rig.device().synchronize().unwrap();
        thread::scope(|scope| {
            let hold = stage.universe().hold_nth(call, 1);
            let trims = scope.spawn(|| stage.pool.trim_to(0));
            hold.wait_until_held();
            let allocates = scope.spawn(|| stage.try_allocate(b, ALL));
            thread::sleep(Duration::from_millis(1500));
            hold.release();
            trims.join().unwrap().unwrap();
            stage
                .free(allocates.join().unwrap().expect("the memory was in another thread's hands"));
        });
        stage.end();
    }
}

/// An observed pool queries whether the device is done with deallocated blocks.
#[test]
fn a_question_about_freed_blocks_does_not_hold_other_streams_up() {
    let stage = Stage::observed(Upstream::Direct, PoolConfig::fast().with_growth(2 * MIB));
    let [_, a, b] = stage.streams();
    let block = stage.allocate(a, ALL);
    stage.fill(a, &block, 1);
    let (sent, received) = channel();
    thread::scope(|scope| {
        let hold = stage.universe().hold_nth("cuEventQuery", 1);
        let frees = scope.spawn(|| stage.free(block));
        hold.wait_until_held();
        let allocates = scope.spawn(|| {
            let block = stage.allocate(b, ALL);
            sent.send(()).unwrap();
            block
        });
        let in_time = received.recv_timeout(LONG);
        hold.release();
        frees.join().unwrap();
        stage.free(allocates.join().unwrap());
        assert!(in_time.is_ok(), "waited for a question about another stream");
    });
    stage.end();
}

/// Of eight pages four are free, scattered, and each thread needs three of them in one piece. The
/// first one has three in its hands when the driver fails; the second one searches by then.
#[test]
fn pages_that_one_thread_returns_are_not_refused_to_another() {
    let config = PoolConfig::compact().with_page_size(2 * MIB).with_maximum_size(16 * MIB);
    let stage = Stage::new(Upstream::Virtual, config);
    let [a, b, c] = stage.streams();
    let mut held: Vec<_> = (0..8).map(|_| stage.allocate(c, ALL)).collect();
    held.sort_by_key(DeviceBlock::ptr);
    for nth in [6, 4, 2, 0] {
        stage.free(held.remove(nth));
    }
    thread::scope(|scope| {
        let hold = stage.universe().hold_nth("cuMemMap", 1);
        stage.universe().fail_nth("cuMemMap", 1, UNKNOWN);
        let first = scope.spawn(|| stage.try_allocate(a, 3 * ALL));
        hold.wait_until_held();
        let second = scope.spawn(|| stage.try_allocate(b, 3 * ALL));
        // Long enough to be refused.
        thread::sleep(Duration::from_millis(200));
        hold.release();
        let refused = first.join().unwrap();
        assert!(matches!(refused, Err(ResourceError::Driver { code: UNKNOWN, .. })), "{refused:?}");
        held.push(second.join().unwrap().expect("the pages were in another thread's hands"));
    });
    held.into_iter().for_each(|block| stage.free(block));
    stage.end();
}

thread_local! {
    /// `true` if this thread has been in a callback that allocates.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

type Called = PoolResource<FailureCallbackResource<DirectCudaResource>>;

/// A pool over a resource whose callback calls the pool, when the device is full.
fn pool_that_is_called(
    rig: &Rig,
    callback: impl Fn(&Called) -> Response + Send + Sync + 'static,
) -> Arc<Called> {
    let at = Arc::new(OnceLock::<Weak<Called>>::new());
    let layer = FailureCallbackLayer::new().with_callback({
        let at = Arc::clone(&at);
        move |_| callback(&at.get().and_then(Weak::upgrade).expect("the pool"))
    });
    let upstream = layer.layer(DirectCudaResource::new(Arc::clone(rig.streams())));
    let config = PoolConfig::fast().with_growth(2 * MIB);
    let pool = PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap();
    let pool = Arc::new(pool);
    at.set(Arc::downgrade(&pool)).unwrap();
    pool
}

/// Runs on a thread of its own, which is left behind if it hangs.
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sent, received): (_, Receiver<T>) = channel();
    thread::spawn(move || sent.send(run()));
    received.recv_timeout(LONG).expect("it waits for itself")
}

#[test]
fn a_callback_of_upstream_may_allocate_from_the_pool() {
    let rig = support::rig(dmr_sim::Policy::Eager, 0, 64 * MIB);
    let home = rig.streams().default_stream();
    let allocate = move |pool: &Called, bytes| -> ResourceResult<_> {
        pool.allocate(bytes, home, AllocTag::UNTAGGED)
    };
    let pool = pool_that_is_called(&rig, move |pool| {
        // From what the pool has, and where neither it nor upstream has any.
        let small = allocate(pool, 256).expect("the pool has that");
        pool.deallocate(small).unwrap();
        allocate(pool, 48 << 20).unwrap_err();
        Response::Decline
    });
    let held = in_time({
        let pool = Arc::clone(&pool);
        move || {
            let held = allocate(&pool, 40 << 20).unwrap();
            let small = allocate(&pool, 256).unwrap();
            allocate(&pool, 40 << 20).unwrap_err();
            [held, small]
        }
    });
    for block in held {
        pool.deallocate(block).unwrap();
    }
    drop(pool);
    rig.assert_clean();
}

/// A thread of each pool is in a callback of its upstream, and allocates there from the other pool.
#[test]
fn callbacks_of_two_pools_may_allocate_from_each_other() {
    let rig = support::rig(dmr_sim::Policy::Eager, 0, 64 * MIB);
    let home = rig.streams().default_stream();
    // Of 64 MiB, 24 are left.
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let held = direct.allocate(40 << 20, home, AllocTag::UNTAGGED).unwrap();
    let pools = Arc::new(OnceLock::<[Weak<Called>; 2]>::new());
    let both_are_inside = Arc::new(Barrier::new(2));
    let make = |other: usize| {
        let pools = Arc::clone(&pools);
        let both_are_inside = Arc::clone(&both_are_inside);
        pool_that_is_called(&rig, move |_| {
            if !IS_INSIDE.replace(true) {
                both_are_inside.wait();
                let pool = pools.get().and_then(|pools| pools[other].upgrade()).expect("a pool");
                pool.allocate(48 << 20, home, AllocTag::UNTAGGED).unwrap_err();
            }
            Response::Decline
        })
    };
    let made = [make(1), make(0)];
    pools.set(made.each_ref().map(Arc::downgrade)).unwrap();
    let (sent, received) = channel();
    for pool in made {
        let sent = sent.clone();
        thread::spawn(move || {
            pool.allocate(48 << 20, home, AllocTag::UNTAGGED).unwrap_err();
            drop(pool);
            sent.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        received.recv_timeout(LONG).expect("they wait for each other");
    }
    direct.deallocate(held).unwrap();
    drop(direct);
    rig.assert_clean();
}

#[test]
fn a_callback_of_upstream_may_free_and_trim_what_the_pool_has() {
    let rig = support::rig(dmr_sim::Policy::Eager, 0, 64 * MIB);
    let home = rig.streams().default_stream();
    let spare = Arc::new(std::sync::Mutex::new(None));
    let pool = pool_that_is_called(&rig, {
        let spare = Arc::clone(&spare);
        move |pool| {
            let Some(block) = spare.lock().unwrap().take() else { return Response::Decline };
            pool.deallocate(block).unwrap();
            pool.trim_to(0).unwrap();
            Response::Retry
        }
    });
    let held = pool.allocate(40 << 20, home, AllocTag::UNTAGGED).unwrap();
    *spare.lock().unwrap() = Some(held);
    let block = in_time({
        let pool = Arc::clone(&pool);
        move || pool.allocate(48 << 20, home, AllocTag::UNTAGGED)
    });
    pool.deallocate(block.expect("the callback has made room")).unwrap();
    drop(pool);
    rig.assert_clean();
}
