//! F2: whichever driver call fails, the owner is dropped once, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use cudarc::driver::sys;
use dmr_core::{Access, BlockState, BlockUse, ResourceError, UseTrackingExt};
use dmr_external::Ready;
use dmr_streams::DeviceContext;
use dmr_testkit::{HeldStream, Rig, exit_code, for_each_driver_call};

use crate::support::{
    TAG, blocks, drops, fill, handle, memory, producer, try_fill, wait_for_drops,
};

const UNKNOWN: i32 = 999;
const ILLEGAL_ADDRESS: i32 = 700;

#[test]
fn a_driver_call_that_fails_loses_no_memory_and_releases_none_twice() {
    let prepare = |rig: &Rig| {
        let drops = drops();
        let memory = memory(rig, &drops);
        (blocks(rig), rig.stream(), rig.stream(), producer(rig), drops, memory)
    };
    let failed = for_each_driver_call(
        UNKNOWN,
        prepare,
        |rig, (blocks, home, other, theirs, drops, memory)| {
            let ready = Ready::Stream(handle(&theirs));
            // SAFETY: the memory is the owner's, and not in use.
            let adopt = |memory| unsafe { blocks.adopt(memory, home.id(), ready, TAG) };
            let block = adopt(memory).or_else(|refused| adopt(refused.memory));
            let block = block.expect("only one driver call fails");
            let fill = || try_fill(rig, &blocks, &block, 3, &other);
            fill().or_else(|_| fill()).expect("only one driver call fails");
            assert_eq!(drops.load(Ordering::SeqCst), 0);
            let resource = blocks.resource();
            if let Err(refused) = resource.deallocate(block) {
                assert_eq!(drops.load(Ordering::SeqCst), 0);
                resource.deallocate(refused.block).expect("only one driver call fails");
            }
            wait_for_drops(&drops, 1);
            assert_eq!(resource.usage().outstanding(), 0);
            rig.universe().clear_faults();
            drop((blocks, home, other, theirs));
            rig.verdict().unwrap();
        },
    );
    assert!(failed >= 10, "{failed} calls were failed");
}

#[test]
fn on_a_lost_device_the_owner_is_dropped_at_once() {
    for is_pending in [false, true] {
        let rig = Rig::simulated();
        let blocks = blocks(&rig);
        let home = rig.stream();
        let drops = drops();
        // SAFETY: the memory is the owner's, and not in use.
        let adopt = unsafe { blocks.adopt(memory(&rig, &drops), home.id(), Ready::Done, TAG) };
        let block = adopt.unwrap();
        let resource = blocks.resource();
        if is_pending {
            let used = [BlockUse::new(block.id(), Access::Write)];
            let open = resource.prepare_uses(&used, home.id()).unwrap();
            assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
            rig.universe().lose_device(0, ILLEGAL_ADDRESS);
            assert!(rig.device().synchronize().is_err());
            let _ = resource.finish_uses(open);
            resource.reap_pending().unwrap();
        } else {
            rig.universe().lose_device(0, ILLEGAL_ADDRESS);
            assert!(rig.device().synchronize().is_err());
            assert_eq!(resource.deallocate(block).unwrap(), BlockState::Freed);
        }
        wait_for_drops(&drops, 1);
        assert_eq!(resource.usage().outstanding(), 0);
    }
}

#[test]
fn while_a_stream_captures_nothing_is_adopted_and_nothing_released_and_the_capture_goes_on() {
    let rig = Rig::simulated();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let theirs = producer(&rig);
    let drops = drops();
    // SAFETY: the memory is the owner's, and not in use.
    let adopt = |memory, ready| unsafe { blocks.adopt(memory, home.id(), ready, TAG) };
    let block = adopt(memory(&rig, &drops), Ready::Done).unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let is_refused = |error: &ResourceError| matches!(error, ResourceError::StreamCapturing { .. });

    // The producer's stream.
    let other = memory(&rig, &drops);
    theirs.begin_capture(mode).unwrap();
    let refused = adopt(other, Ready::Stream(handle(&theirs))).unwrap_err();
    assert!(is_refused(&refused.error), "{refused}");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    theirs.end_capture(flags).unwrap();

    // The home stream.
    let stream = Arc::clone(rig.streams().enter(home.id()).unwrap().stream());
    stream.begin_capture(mode).unwrap();
    let refused = adopt(refused.memory, Ready::Done).unwrap_err();
    assert!(is_refused(&refused.error), "{refused}");
    let kept = blocks.resource().deallocate(block).unwrap_err();
    assert!(is_refused(&kept.error), "{kept}");
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    stream.end_capture(flags).unwrap();
    blocks.resource().deallocate(kept.block).unwrap();
    drop(refused);
    wait_for_drops(&drops, 2);
    drop((blocks, home, theirs, stream));
    rig.assert_clean();
}

#[test]
fn a_forked_child_releases_nothing() {
    let rig = Rig::simulated();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let drops = drops();
    // SAFETY: the memory is the owner's, and not in use.
    let adopt = |memory| unsafe { blocks.adopt(memory, home.id(), Ready::Done, TAG) };
    let live = adopt(memory(&rig, &drops)).unwrap();
    let pending = adopt(memory(&rig, &drops)).unwrap();
    let resource = blocks.resource();
    let used = [BlockUse::new(pending.id(), Access::Write)];
    let open = resource.prepare_uses(&used, home.id()).unwrap();
    resource.deallocate(pending).unwrap();
    // SAFETY: the child calls functions that refuse it, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let is_refused = matches!(
            resource.deallocate(live).map_err(|refused| refused.error),
            Err(ResourceError::ForkedProcess { .. })
        );
        let is_silent = resource.try_reap().is_err() && resource.usage().live == 0;
        let none = drops.load(Ordering::SeqCst) == 0;
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(i32::from(!(is_refused && is_silent && none))) };
    }
    assert_eq!(exit_code(child), Some(0));
    resource.finish_uses(open).unwrap();
    resource.deallocate(live).unwrap();
    wait_for_drops(&drops, 2);
    drop((blocks, home));
    rig.assert_clean();
}

#[test]
fn a_stream_pool_that_ends_first_leaves_the_release_to_the_device() {
    let rig = Rig::simulated();
    let drops = drops();
    let blocks = blocks(&rig);
    let home = rig.stream();
    let device = rig.device().clone();
    let held = HeldStream::hold(rig.streams(), &home);
    // SAFETY: the memory is the owner's, and not in use.
    let adopt = unsafe { blocks.adopt(memory(&rig, &drops), home.id(), Ready::Done, TAG) };
    let block = adopt.unwrap();
    fill(&rig, &blocks, &block, 1, &home);
    assert_eq!(blocks.resource().deallocate(block).unwrap(), BlockState::Retired);
    let universe = rig.universe().clone();
    drop((blocks, home, rig));
    thread::sleep(Duration::from_millis(5));
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    held.release();
    wait_for_drops(&drops, 1);
    drop((held, device));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}
