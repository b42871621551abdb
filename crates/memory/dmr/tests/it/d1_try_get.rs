//! D1: one runtime per ordinal per process, whichever driver it runs on.

#![cfg(feature = "direct")]

use dmr::prelude::*;
use dmr_testkit::Rig;

#[test]
fn threads_share_the_processs_runtime_and_allocate_from_it() {
    let rig = Rig::new();
    let ordinal = rig.ordinal();
    let runtimes: Vec<_> = std::thread::scope(|scope| {
        let allocate = || {
            let runtime = DeviceRuntime::try_get(ordinal).unwrap();
            let memory = runtime.resource();
            let block = memory.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
            memory.deallocate(block).unwrap();
            runtime
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(allocate)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(runtimes.iter().all(|runtime| std::ptr::eq(*runtime, runtimes[0])));
    runtimes[0].resource().reap_pending().unwrap();
    assert_eq!(runtimes[0].resource().bytes_outstanding(), 0);
}
