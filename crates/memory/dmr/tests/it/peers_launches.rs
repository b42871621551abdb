//! D10: a launch that accesses memory of another device is ordered on both. On two GPUs, or on two
//! simulated devices.

#![cfg(all(feature = "async", feature = "direct", feature = "pool", feature = "nvrtc"))]
#![allow(unsafe_code, reason = "kernel launches")]

use crate::peers::{CopyWords, TRACKING, runtime};
use dmr::prelude::*;
use dmr_testkit::Rig;

const WORDS: u32 = 1 << 18;
const LEN: usize = WORDS as usize;

#[test]
fn a_launch_comes_after_a_slow_producer_of_the_peer_and_before_its_next_writer() {
    for backend in TRACKING {
        let rigs = Rig::pair();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let kernel = CopyWords::load(&rigs[0]);
        here.enable_peer_access(&there).unwrap();
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let b2 = rigs[1].stream();
        let mut theirs = DeviceBuffer::<u32>::zeroed(&there, &b2, LEN).unwrap();
        let mut mine = DeviceBuffer::<u32>::zeroed(&here, &a, LEN).unwrap();
        // On a stream that the launch does not name.
        rigs[1].delay(&b2);
        theirs.fill(7, &b2).unwrap();
        rigs[0].delay(&a);
        kernel.launch_peer(&here, &a, &mut mine, (&there, &b), &theirs, WORDS);
        theirs.fill(8, &b2).unwrap();
        assert_eq!(mine.to_host(&a).unwrap(), vec![7; LEN], "{backend:?}");
        assert_eq!(theirs.to_host(&b).unwrap(), vec![8; LEN], "{backend:?}");
        drop((mine, theirs, a, b, b2, here, there, kernel));
        Rig::assert_all_clean(rigs);
    }
}

#[test]
fn memory_of_the_peer_that_is_freed_behind_a_launch_is_not_overwritten_before_it() {
    for backend in TRACKING {
        let rigs = Rig::pair();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let kernel = CopyWords::load(&rigs[0]);
        here.enable_peer_access(&there).unwrap();
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let theirs = DeviceBuffer::from_host(&there, &b, &vec![5u32; LEN]).unwrap();
        let mut mine = DeviceBuffer::<u32>::zeroed(&here, &a, LEN).unwrap();
        rigs[0].delay(&a);
        kernel.launch_peer(&here, &a, &mut mine, (&there, &b), &theirs, WORDS);
        drop(theirs);
        let mut next = DeviceBuffer::<u32>::uninit(&there, &b, LEN).unwrap();
        next.fill(9, &b).unwrap();
        assert_eq!(mine.to_host(&a).unwrap(), vec![5; LEN], "{backend:?}");
        drop((mine, next, a, b, here, there, kernel));
        Rig::assert_all_clean(rigs);
    }
}

#[test]
fn a_launch_that_writes_memory_of_the_peer_is_waited_for_there() {
    for backend in TRACKING {
        let rigs = Rig::pair();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let kernel = CopyWords::load(&rigs[0]);
        here.enable_peer_access(&there).unwrap();
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let b2 = rigs[1].stream();
        let mine = DeviceBuffer::from_host(&here, &a, &vec![3u32; LEN]).unwrap();
        let mut theirs = DeviceBuffer::<u32>::zeroed(&there, &b2, LEN).unwrap();
        let mut launch = LaunchRecorder::new_strict(&a);
        let from = launch.read(&mine);
        let to = launch.write_peer(&mut theirs, &there, &b);
        assert_eq!(launch.recorded_count(), 2);
        let prepared = launch.prepare(&here).unwrap();
        rigs[0].delay(&a);
        // SAFETY: both buffers have that many words, and the device has access.
        unsafe { kernel.launch(&a, to.device_ptr(), from.device_ptr(), WORDS) };
        prepared.finish().unwrap();
        assert_eq!(theirs.to_host(&b2).unwrap(), vec![3; LEN], "{backend:?}");
        drop((mine, theirs, a, b, b2, here, there, kernel));
        Rig::assert_all_clean(rigs);
    }
}
