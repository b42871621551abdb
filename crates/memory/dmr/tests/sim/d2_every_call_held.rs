//! D2: while one thread is inside any driver call of a block's life, others allocate, use and free
//! on streams of their own.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use dmr::dmr_core::{Access, BlockUse, ResourceResult};
use dmr::dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr::dmr_cuda_direct::DirectCudaResource;
use dmr::dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr::dmr_pool::PoolResource;
use dmr::prelude::*;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 1 << 20;
const TAG: AllocTag = AllocTag::new("held");
/// A call that takes longer waits for the thread that is held.
const PATIENCE: Duration = Duration::from_secs(20);

type Resource = Arc<dyn DeviceMemoryResource>;

fn asynchronous(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

fn direct(rig: &Rig) -> DirectCudaResource {
    DirectCudaResource::new(Arc::clone(rig.streams()))
}

fn virtual_memory(rig: &Rig) -> VirtualCudaResource {
    VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap()
}

/// Allocates on one stream, uses on the other, frees.
fn live(resource: &Resource, home: &StreamLease, other: &StreamLease) -> ResourceResult<()> {
    let block = resource.allocate(BYTES, home.id(), TAG)?;
    if resource.supports_block_use_tracking() {
        for stream in [other, home, other] {
            let uses = [BlockUse::new(block.id(), Access::Write)];
            resource.finish_uses(resource.prepare_uses(&uses, stream.id())?)?;
        }
    }
    resource.deallocate(block).unwrap();
    Ok(())
}

/// The lives of two blocks, and the calls that free what is retired.
fn live_and_reap(resource: &Resource, [home, other]: &[StreamLease; 2]) -> ResourceResult<()> {
    live(resource, home, other)?;
    resource.try_reap()?;
    resource.usage();
    live(resource, home, other)?;
    resource.reap_pending()?;
    Ok(())
}

/// Calls `live_and_reap`, and then returns all free memory to the driver.
fn live_and_trim(resource: &Resource, streams: &[StreamLease; 2]) -> ResourceResult<()> {
    live_and_reap(resource, streams)?;
    resource.trim_to(0)?;
    Ok(())
}

struct Stage {
    rig: Rig,
    resource: Resource,
    held: [StreamLease; 2],
    free: [StreamLease; 2],
}

impl Stage {
    fn new(make: fn(&Rig) -> Resource) -> Self {
        let rig = Rig::simulated();
        let resource = make(&rig);
        let held = [rig.stream(), rig.stream()];
        let free = [rig.stream(), rig.stream()];
        // Each stream has had work, and there are events to be used again.
        for [home, other] in [&held, &free] {
            live(&resource, home, other).unwrap();
        }
        Self { rig, resource, held, free }
    }

    fn end(self) {
        let Self { rig, resource, held, free } = self;
        resource.reap_pending().unwrap();
        drop((resource, held, free));
        rig.assert_clean();
    }
}

type Scenario = fn(&Resource, &[StreamLease; 2]) -> ResourceResult<()>;

/// Holds each call that a scenario makes, one in each run, except those named.
fn hold_each_call(make: fn(&Rig) -> Resource, scenario: Scenario, except: &[&str]) {
    let stage = Stage::new(make);
    stage.rig.universe().reset_calls();
    scenario(&stage.resource, &stage.held).unwrap();
    let calls = stage.rig.universe().calls();
    stage.end();
    for (call, count) in calls.iter().filter(|(call, _)| !except.contains(call)) {
        for nth in 1..=count {
            hold_one(Stage::new(make), scenario, call, nth);
        }
    }
}

fn hold_one(stage: Stage, scenario: Scenario, call: &str, nth: u64) {
    let resource = &stage.resource;
    let [home, other] = &stage.free;
    let is_held = AtomicBool::new(false);
    let (sent, received) = channel();
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = stage.rig.universe().hold_nth(call, nth);
        let held = scope.spawn(|| {
            // A loop that asks the driver until work is done may ask less often than before.
            while !is_held.load(Ordering::Relaxed) {
                scenario(resource, &stage.held).unwrap();
            }
        });
        hold.wait_until_held();
        is_held.store(true, Ordering::Relaxed);
        scope.spawn(move || {
            for _ in 0..3 {
                live(resource, home, other).unwrap();
            }
            let _ = sent.send(());
        });
        let in_time = received.recv_timeout(PATIENCE);
        let is_still_held = !held.is_finished();
        hold.release();
        assert!(in_time.is_ok(), "{resource:?}: others wait while {call} number {nth} is held");
        assert!(is_still_held, "{call} number {nth}");
    });
    stage.end();
}

/// `cuMemFree` stops the whole device, and an allocation waits for the frees that have begun.
const STOPS_THE_DEVICE: &[&str] = &["cuMemFree_v2"];

#[test]
fn a_driver_call_of_an_async_resource_holds_no_other_thread_up() {
    hold_each_call(|rig| Arc::new(asynchronous(rig)), live_and_trim, &[]);
}

#[test]
fn a_driver_call_of_a_virtual_resource_holds_no_other_thread_up() {
    hold_each_call(|rig| Arc::new(virtual_memory(rig)), live_and_trim, &[]);
}

#[test]
fn a_driver_call_of_a_direct_resource_holds_no_other_thread_up() {
    hold_each_call(|rig| Arc::new(direct(rig)), live_and_trim, STOPS_THE_DEVICE);
}

#[test]
fn a_driver_call_of_a_tracked_resource_holds_no_other_thread_up() {
    let make = |rig: &Rig| -> Resource {
        Arc::new(Tracked::new(direct(rig), Arc::clone(rig.streams())).unwrap())
    };
    hold_each_call(make, live_and_trim, STOPS_THE_DEVICE);
}

/// Each stream finds its memory in the pool.
#[test]
fn a_driver_call_of_a_pool_that_has_memory_holds_no_other_thread_up() {
    let over_blocks = |rig: &Rig| -> Resource {
        let streams = Arc::clone(rig.streams());
        Arc::new(PoolResource::new(asynchronous(rig), streams, PoolConfig::fast()).unwrap())
    };
    hold_each_call(over_blocks, live_and_reap, &[]);
    let over_pages = |rig: &Rig| -> Resource {
        let config = PoolConfig::fast().with_page_size(2 << 20);
        let streams = Arc::clone(rig.streams());
        Arc::new(PoolResource::new(virtual_memory(rig), streams, config).unwrap())
    };
    hold_each_call(over_pages, live_and_reap, &[]);
}
