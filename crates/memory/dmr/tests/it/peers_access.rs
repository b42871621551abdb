//! D10: kernels of one device access the memory of another once that is allowed, and copies need no
//! permission. On two GPUs, or on two simulated devices.

#![cfg(all(feature = "async", feature = "direct", feature = "pool", feature = "nvrtc"))]
#![allow(unsafe_code, reason = "kernel launches")]

use crate::peers::{BACKENDS, CopyWords, runtime};
use dmr::dmr_streams::TrackedMemory;
use dmr::prelude::*;
use dmr_testkit::Rig;

const WORDS: u32 = 1 << 18;
const LEN: usize = WORDS as usize;

fn synchronize(rigs: &[Rig; 2]) {
    rigs.iter().for_each(|rig| rig.device().synchronize().unwrap());
}

#[test]
fn a_kernel_reads_and_writes_memory_of_a_peer_also_what_is_allocated_later() {
    for backend in BACKENDS {
        let rigs = Rig::pair();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let kernel = CopyWords::load(&rigs[0]);
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let before = DeviceBuffer::from_host(&there, &b, &vec![1u32; LEN]).unwrap();
        for _ in 0..2 {
            here.enable_peer_access(&there).unwrap();
        }
        let mut later: Vec<_> = (2..40u32)
            .map(|value| DeviceBuffer::from_host(&there, &b, &vec![value; LEN]).unwrap())
            .collect();
        let mut mine = DeviceBuffer::<u32>::zeroed(&here, &a, LEN).unwrap();
        for (value, theirs) in (1..).zip([&before].into_iter().chain(&later)) {
            synchronize(&rigs);
            // SAFETY: both buffers have that many words. All earlier work is done, and the copy
            // below waits.
            unsafe { kernel.launch(&a, mine.device_ptr(), theirs.device_ptr(), WORDS) };
            assert_eq!(mine.to_host(&a).unwrap(), vec![value; LEN], "{backend:?}");
        }
        mine.fill(99, &a).unwrap();
        let last = later.last_mut().unwrap();
        // SAFETY: as above; the device is synchronised below.
        unsafe { kernel.launch(&a, last.device_ptr(), mine.device_ptr(), WORDS) };
        synchronize(&rigs);
        assert_eq!(last.to_host(&b).unwrap(), vec![99; LEN], "{backend:?}");
        // Pages that are returned and mapped again.
        drop(later);
        there.resource().reap_pending().unwrap();
        there.trim_to(0).unwrap();
        let again = DeviceBuffer::from_host(&there, &b, &vec![7u32; 4 * LEN]).unwrap();
        synchronize(&rigs);
        // SAFETY: as above.
        unsafe { kernel.launch(&a, mine.device_ptr(), again.device_ptr(), WORDS) };
        assert_eq!(mine.to_host(&a).unwrap(), vec![7; LEN], "{backend:?}");
        drop((before, again, mine, a, b, here, there, kernel));
        Rig::assert_all_clean(rigs);
    }
}

#[test]
fn copies_are_right_with_and_without_peer_access_on_every_backend() {
    for backend in BACKENDS {
        let rigs = Rig::pair();
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], backend));
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let mut source = DeviceBuffer::<u32>::zeroed(&here, &a, LEN).unwrap();
        let mut target = DeviceBuffer::<u32>::zeroed(&there, &b, LEN).unwrap();
        for round in 0..6 {
            match round {
                2 => there.enable_peer_access(&here).unwrap(),
                4 => here.enable_peer_access(&there).unwrap(),
                _ => {}
            }
            rigs[0].delay(&a);
            source.fill(round, &a).unwrap();
            target.copy_from_peer(&source, &a, &b).unwrap();
            source.fill(100, &a).unwrap();
            rigs[1].delay(&b);
            source.copy_from_peer(&target, &b, &a).unwrap();
            target.fill(200, &b).unwrap();
            assert_eq!(source.to_host(&a).unwrap(), vec![round; LEN], "{backend:?}");
        }
        drop((source, target, a, b, here, there));
        Rig::assert_all_clean(rigs);
    }
}

#[test]
fn a_runtime_needs_no_peer_access_to_itself() {
    let rigs = Rig::pair();
    let here = runtime(&rigs[0], Backend::Pool);
    here.enable_peer_access(&here).unwrap();
    drop(here);
    Rig::assert_all_clean(rigs);
}
