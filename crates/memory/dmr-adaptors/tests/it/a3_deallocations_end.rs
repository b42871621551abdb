//! A3, T8: a deallocation does its own share of the quarantine's work, however many other threads
//! deallocate.

#![cfg(feature = "debug-guard")]

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::a3::{BOTH, Backend, Inner, TAG, guarded, layer};
use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult,
    StreamId, forward,
};
use dmr_testkit::Rig;

const THREADS: usize = 4;

thread_local! {
    /// The deallocations upstream of this thread.
    static DEALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// Counts the deallocations of each thread. Each of them takes a while, in which other threads go
/// on.
#[derive(Debug)]
struct Counting {
    upstream: Inner,
}

impl DeviceMemoryResource for Counting {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.upstream.allocate(bytes, stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        DEALLOCATED.set(DEALLOCATED.get() + 1);
        std::thread::yield_now();
        self.upstream.deallocate(block)
    }

    forward!(
        upstream: is_retired, device_ordinal, stream_pool, bytes_outstanding, usage, try_reap, reap_pending, trim_to,
        allow_access, use_tracking, virtual_memory
    );
}

#[test]
fn no_deallocation_sweeps_for_all_threads() {
    for checks in BOTH {
        let rig = Rig::new();
        let config = layer(&rig).with_checks(checks).with_quarantine(0, 0);
        let guard = guarded(Counting { upstream: Backend::Async.make(&rig) }, config);
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let guard = &guard;
                let most = &most;
                let home = rig.stream();
                scope.spawn(move || {
                    for _ in 0..500 {
                        let block = guard.allocate(1000, home.id(), TAG).unwrap();
                        let before = DEALLOCATED.get();
                        guard.deallocate(block).unwrap();
                        most.fetch_max(DEALLOCATED.get() - before, Ordering::Relaxed);
                    }
                });
            }
        });
        let most = most.into_inner();
        // A share of each thread at most: those of others may be in the quarantine.
        assert!(most <= 4 * THREADS, "one call has deallocated {most} blocks");
        guard.reap_pending().unwrap();
        assert_eq!(guard.bytes_outstanding(), 0);
        drop(guard);
        rig.assert_clean();
    }
}
