//! S2, U13: an adopted stream is retired when no call and no launch uses it, and never touched
//! again.

#![allow(unsafe_code, reason = "adopts raw streams, which is unsafe")]

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pinned::{PinnedMemory, PinnedPool};
use dmr_streams::{StreamLease, StreamPoolConfig, Tracked};
use dmr_testkit::Rig;
use dmr_testkit::rig::RigConfig;

const BYTES: usize = 1 << 20;
const TAG: AllocTag = AllocTag::UNTAGGED;
const PATIENCE: Duration = Duration::from_secs(20);

type Resource = Arc<dyn DeviceMemoryResource>;

fn tracked(rig: &Rig) -> Resource {
    let streams = Arc::clone(rig.streams());
    Arc::new(Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap())
}

fn driver_pool(rig: &Rig) -> Resource {
    Arc::new(AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap())
}

const RESOURCES: [fn(&Rig) -> Resource; 2] = [tracked, driver_pool];

/// A stream that the test destroys, by dropping it.
fn foreign(rig: &Rig) -> (Arc<CudaStream>, StreamLease) {
    let stream = rig.device().context().new_stream().unwrap();
    // SAFETY: the tests drop the stream when it is retired.
    let lease = unsafe { rig.streams().adopt_raw(stream.cu_stream().cast(), ()) }.unwrap();
    (stream, lease)
}

fn problem<T>(outcome: ResourceResult<T>) -> StreamProblem {
    match outcome.map(drop).unwrap_err() {
        ResourceError::StreamMisuse { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

fn launch(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    on: StreamId,
    access: Access,
    block: &DeviceBlock,
) {
    let tokens = resource.prepare_uses(&[BlockUse::new(block.id(), access)], on).unwrap();
    if access.writes() {
        rig.ops().fill_pattern(block, 0..BYTES, 7, on).unwrap();
    } else {
        rig.ops().check_pattern(block, 0..BYTES, 7, on, 0).unwrap();
    }
    resource.finish_uses(tokens).unwrap();
}

#[test]
fn a_stream_with_an_open_window_is_not_retired_and_the_error_names_the_block() {
    for make in RESOURCES {
        let rig = Rig::simulated();
        let resource = make(&rig);
        let own = rig.stream();
        let (stream, adopted) = foreign(&rig);
        let block = resource.allocate(BYTES, own.id(), TAG).unwrap();
        let uses = [BlockUse::new(block.id(), Access::Write)];
        let tokens = resource.prepare_uses(&uses, adopted.id()).unwrap();
        let id = block.generation().get();
        let retire = || rig.streams().retire_stream(&adopted);
        assert_eq!(problem(retire()), StreamProblem::open_window(id));
        // The launch goes on, and its work is ordered before that of other streams.
        rig.delay(adopted.id());
        rig.ops().fill_pattern(&block, 0..BYTES, 7, adopted.id()).unwrap();
        assert_eq!(problem(retire()), StreamProblem::open_window(id));
        resource.finish_uses(tokens).unwrap();
        retire().unwrap();
        drop(stream);
        launch(&rig, &*resource, own.id(), Access::Read, &block);
        resource.deallocate(block).unwrap();
        resource.reap_pending().unwrap();
        drop((resource, own, adopted));
        rig.assert_clean();
    }
}

#[test]
fn each_window_counts_until_it_is_closed_by_any_thread_and_in_any_way() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    let blocks: Vec<_> = (0..3).map(|_| resource.allocate(BYTES, own.id(), TAG).unwrap()).collect();
    let uses: Vec<_> = blocks.iter().map(|block| BlockUse::new(block.id(), Access::Read)).collect();
    let is_refused = || rig.streams().retire_stream(&adopted).is_err();
    let prepare = |used: &BlockUse| resource.prepare_uses(&[*used], adopted.id()).unwrap();
    let tokens = uses.iter().map(prepare).collect::<Vec<_>>();
    let window = resource.prepare_block_use(blocks[0].id(), adopted.id(), Access::Read).unwrap();
    // One that cannot be prepared leaves nothing open.
    let conflict =
        resource.prepare_uses(&[uses[0], BlockUse::new(blocks[1].id(), Access::Write)], own.id());
    assert!(conflict.is_err());
    for token in tokens {
        assert!(is_refused());
        std::thread::scope(|scope| {
            scope.spawn(|| resource.finish_uses(token).unwrap());
        });
    }
    assert!(is_refused());
    resource.cancel_uses(window).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

#[test]
fn a_launch_that_cannot_be_prepared_does_not_keep_its_stream() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    let [free, used] = [(); 2].map(|()| resource.allocate(BYTES, own.id(), TAG).unwrap());
    let held = resource.prepare_block_use(used.id(), own.id(), Access::Write).unwrap();
    let uses = [&free, &used].map(|block| BlockUse::new(block.id(), Access::Write));
    assert!(resource.prepare_uses(&uses, adopted.id()).is_err());
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    resource.finish_uses(held).unwrap();
    for block in [free, used] {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

#[test]
fn a_forgotten_launch_keeps_its_stream() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let (stream, adopted) = foreign(&rig);
    let block = resource.allocate(BYTES, rig.streams().default_stream(), TAG).unwrap();
    let uses = [BlockUse::new(block.id(), Access::Read)];
    std::mem::forget(resource.prepare_uses(&uses, adopted.id()).unwrap());
    let start = Instant::now();
    let timeout = Duration::from_millis(20);
    let refused = rig.streams().retire_stream_timeout(&adopted, timeout);
    assert!(start.elapsed() >= timeout);
    let message = refused.as_ref().unwrap_err().to_string();
    assert!(message.contains("`retire_stream_timeout`"), "{message}");
    assert_eq!(problem(refused), StreamProblem::open_window(block.generation().get()));
    // Nothing has changed.
    drop(rig.streams().enter(adopted.id()).unwrap());
    drop((block, resource, adopted, stream));
}

#[test]
fn retiring_with_a_timeout_waits_for_a_launch_that_another_thread_finishes() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    let block = resource.allocate(BYTES, own.id(), TAG).unwrap();
    let window = resource.prepare_block_use(block.id(), adopted.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, adopted.id()).unwrap();
    std::thread::scope(|scope| {
        let retired = scope.spawn(|| rig.streams().retire_stream_timeout(&adopted, PATIENCE));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!retired.is_finished());
        resource.finish_uses(window).unwrap();
        retired.join().unwrap().unwrap();
    });
    drop(stream);
    launch(&rig, &*resource, own.id(), Access::Read, &block);
    resource.deallocate(block).unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

/// A thread's calls with blocks of the resource, whose home is the stream.
type Scenario = fn(&Rig, &Resource, StreamId, StreamId) -> ResourceResult<()>;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("allocate and free", |_, resource, adopted, _| {
        let block = resource.allocate(BYTES, adopted, TAG)?;
        resource.deallocate(block).map(drop).map_err(|refused| refused.error)
    }),
    ("free what another stream uses", |rig, resource, adopted, own| {
        let block = resource.allocate(BYTES, adopted, TAG)?;
        launch(rig, &**resource, own, Access::Write, &block);
        resource.deallocate(block).map_err(|refused| refused.error)?;
        resource.try_reap()?;
        resource.reap_pending().map(drop)
    }),
    ("launch", |rig, resource, adopted, own| {
        let block = resource.allocate(BYTES, own, TAG)?;
        let uses = [BlockUse::new(block.id(), Access::Write)];
        let tokens = match resource.prepare_uses(&uses, adopted) {
            Ok(tokens) => tokens,
            Err(error) => {
                resource.deallocate(block).map_err(|refused| refused.error)?;
                return Err(error);
            }
        };
        rig.ops().fill_pattern(&block, 0..BYTES, 7, adopted)?;
        resource.finish_uses(tokens)?;
        launch(rig, &**resource, own, Access::Read, &block);
        resource.deallocate(block).map(drop).map_err(|refused| refused.error)
    }),
    ("trim", |_, resource, adopted, _| {
        let block = resource.allocate(BYTES, adopted, TAG)?;
        resource.deallocate(block).map_err(|refused| refused.error)?;
        resource.trim_to(0).map(drop)
    }),
    ("wait for all", |rig, _, _, _| {
        rig.streams().synchronize_until(Instant::now() + PATIENCE).map(drop)
    }),
    ("pinned memory", |rig, _, adopted, _| {
        drop(PinnedMemory::new(rig.streams(), BYTES, adopted)?);
        PinnedPool::of(rig.streams()).try_reap()?;
        PinnedPool::of(rig.streams()).reap_pending().map(drop)
    }),
];

/// A thread is held in each driver call of a scenario, and the stream is retired and destroyed
/// meanwhile, or else afterwards: no call of the driver may fail, because none is made with the
/// handle of a destroyed stream.
#[test]
fn no_call_touches_a_stream_that_was_retired() {
    for make in RESOURCES {
        let mut retired_meanwhile = 0;
        for (name, scenario) in SCENARIOS {
            for nth in 1.. {
                match hold_one(make, name, scenario, nth) {
                    Some(at_once) => retired_meanwhile += u32::from(at_once),
                    None => break,
                }
            }
        }
        assert!(retired_meanwhile > 0);
    }
}

/// Returns whether the stream was retired while the call was held; `None` if there is no such call.
fn hold_one(make: fn(&Rig) -> Resource, name: &str, run: Scenario, nth: u64) -> Option<bool> {
    let rig = Rig::simulated();
    let resource = make(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    run(&rig, &resource, adopted.id(), own.id()).unwrap();
    let (sent, received) = channel();
    let at_once = std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = rig.universe().hold_call_number(nth);
        let rig = &rig;
        let resource = &resource;
        let own = &own;
        let adopted = &adopted;
        let held = scope.spawn(move || {
            let outcome = run(rig, resource, adopted.id(), own.id());
            let _ = sent.send(());
            outcome
        });
        while !hold.is_held() {
            if received.try_recv().is_ok() {
                held.join().unwrap().unwrap();
                rig.universe().clear_faults();
                rig.streams().retire_stream(adopted).unwrap();
                return None;
            }
            std::thread::yield_now();
        }
        let was_retired = rig.streams().retire_stream(adopted).is_ok();
        let stream = (!was_retired).then_some(stream);
        hold.release();
        match held.join().unwrap() {
            Ok(()) => {}
            // Only because the stream's id is refused: the driver has seen no wrong handle.
            Err(ResourceError::StreamMisuse { .. }) if was_retired => {}
            Err(error) => panic!("{name}, call {nth}: {error}"),
        }
        if !was_retired {
            rig.streams().retire_stream(adopted).unwrap();
        }
        drop(stream);
        Some(was_retired)
    });
    resource.reap_pending().unwrap();
    PinnedPool::of(rig.streams()).reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0, "{name}, call {nth}");
    drop((resource, own, adopted));
    rig.assert_clean();
    at_once
}

#[test]
fn dropping_a_resource_does_not_touch_the_retired_home_of_what_is_pending() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    let block = resource.allocate(BYTES, adopted.id(), TAG).unwrap();
    rig.delay(own.id());
    launch(&rig, &*resource, own.id(), Access::Write, &block);
    resource.deallocate(block).unwrap();
    assert_eq!(resource.usage().retired, BYTES as u64);
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    rig.universe().reset_calls();
    drop(resource);
    assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 0);
    drop((own, adopted));
}

#[test]
fn dropping_a_resource_frees_what_is_done_with_and_has_a_retired_home() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    let block = resource.allocate(BYTES, adopted.id(), TAG).unwrap();
    rig.delay(own.id());
    launch(&rig, &*resource, own.id(), Access::Write, &block);
    resource.deallocate(block).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    rig.streams().synchronize_all().unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

#[test]
fn a_retirement_that_fails_changes_nothing() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    let block = resource.allocate(BYTES, adopted.id(), TAG).unwrap();
    rig.universe().fail_nth("cuEventRecord", 1, 999);
    let failed = rig.streams().retire_stream(&adopted).unwrap_err();
    assert!(matches!(failed, ResourceError::Driver { call: "cuEventRecord", .. }), "{failed}");
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let capturing = rig.streams().retire_stream(&adopted).unwrap_err();
    assert_eq!(capturing, ResourceError::stream_capturing(adopted.id()));
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    stream.end_capture(flags).map(drop).unwrap_or_default();
    // Work of now is not stood for by the events of then.
    rig.delay(adopted.id());
    rig.ops().fill_pattern(&block, 0..BYTES, 7, adopted.id()).unwrap();
    launch(&rig, &*resource, own.id(), Access::Read, &block);
    resource.deallocate(block).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    resource.reap_pending().unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

/// The retirement is refused, not the call.
#[test]
fn a_call_that_begins_while_its_stream_is_being_retired_succeeds() {
    let rig = Rig::simulated();
    let resource = driver_pool(&rig);
    let own = rig.stream();
    let (stream, adopted) = foreign(&rig);
    let block = resource.allocate(BYTES, own.id(), TAG).unwrap();
    std::thread::scope(|scope| {
        let hold = rig.universe().hold_after_nth("cuEventRecord", 1);
        let retired = scope.spawn(|| rig.streams().retire_stream(&adopted));
        hold.wait_until_held();
        launch(&rig, &*resource, adopted.id(), Access::Write, &block);
        hold.release();
        assert_eq!(problem(retired.join().unwrap()), StreamProblem::InCall);
    });
    launch(&rig, &*resource, own.id(), Access::Read, &block);
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    resource.deallocate(block).unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

#[test]
fn one_stream_is_adopted_by_one_of_two_threads() {
    let config = StreamPoolConfig::new().with_max_adopted(2);
    let rig = Rig::with(RigConfig { streams: config, simulated: true, ..RigConfig::default() });
    let stream = rig.device().context().new_stream().unwrap();
    let adopt = || rig.streams().adopt(Arc::clone(&stream));
    std::thread::scope(|scope| {
        let hold = rig.universe().hold_nth("cuEventRecord", 1);
        let first = scope.spawn(adopt);
        hold.wait_until_held();
        assert_eq!(problem(adopt()), StreamProblem::AlreadyAdopted);
        hold.release();
        drop(first.join().unwrap().unwrap());
    });
    // One that could not be adopted can be later, and has not lost a slot.
    let other = rig.device().context().new_stream().unwrap();
    let [a, b] = [adopt().unwrap(), rig.streams().adopt(other).unwrap()];
    drop((a, b));
    drop(stream);
    rig.assert_clean();
}
