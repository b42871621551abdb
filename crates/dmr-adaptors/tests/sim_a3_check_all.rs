//! A3: a check of everything does not disturb the uses that other threads prepare meanwhile.

#![cfg(feature = "debug-guard")]

mod a3;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use a3::{TAG, TRACKING, guarded};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_core::{
    Access, DeviceBlock, DeviceMemoryResource, DeviceOps, PatternMismatch, ResourceResult,
    StreamId, UseTrackingExt,
};
use dmr_streams::PatternOps;
use dmr_testkit::Rig;

/// Lets another thread begin its call while a check is submitted.
#[derive(Debug)]
struct ChecksSlowly {
    ops: PatternOps,
    is_slow: AtomicBool,
    checking: Barrier,
}

impl DeviceOps for ChecksSlowly {
    fn fill_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
    ) -> ResourceResult<()> {
        self.ops.fill_pattern(block, range, pattern, stream)
    }

    fn check_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
        key: u64,
    ) -> ResourceResult<()> {
        if self.is_slow.swap(false, SeqCst) {
            self.checking.wait();
            thread::sleep(Duration::from_millis(200));
        }
        self.ops.check_pattern(block, range, pattern, stream, key)
    }

    fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
        self.ops.collect()
    }

    fn library_stream(&self, block: &DeviceBlock) -> ResourceResult<StreamId> {
        self.ops.library_stream(block)
    }

    fn count_as_allocation(&self, block: &DeviceBlock) -> bool {
        self.ops.count_as_allocation(block)
    }

    fn join_home_stream(&self, block: &DeviceBlock) -> ResourceResult<bool> {
        self.ops.join_home_stream(block)
    }

    fn synchronize(&self, stream: StreamId) -> ResourceResult<()> {
        self.ops.synchronize(stream)
    }
}

#[test]
fn a_use_that_is_prepared_while_live_blocks_are_checked_is_not_refused() {
    for backend in TRACKING {
        let rig = Rig::simulated();
        let [home, other] = [rig.stream(), rig.stream()];
        let ops = Arc::new(ChecksSlowly {
            ops: PatternOps::new(Arc::clone(rig.streams())).unwrap(),
            is_slow: AtomicBool::new(true),
            checking: Barrier::new(2),
        });
        let guard = guarded(backend.make(&rig), DebugGuardLayer::new(Arc::clone(&ops) as _));
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        thread::scope(|scope| {
            let user = scope.spawn(|| {
                ops.checking.wait();
                let token = guard.prepare_block_use(block.id(), other.id(), Access::Write)?;
                rig.ops().fill_pattern(&block, 0..1000, 2, other.id())?;
                guard.finish_uses(token)
            });
            assert_eq!(guard.check_all(), Ok(Vec::new()));
            assert_eq!(user.join().unwrap(), Ok(()));
        });
        guard.deallocate(block).unwrap();
        guard.reap_pending().unwrap();
        assert_eq!(guard.violations(), []);
        drop((guard, ops, home, other));
        rig.assert_clean();
    }
}
