//! A3: a check of everything does not disturb the uses that other threads prepare meanwhile.

#![cfg(feature = "debug-guard")]

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::a3::{Hooked, Moment, TAG, TRACKING, guarded};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_core::{Access, DeviceMemoryResource, DeviceOps, UseTrackingExt};
use dmr_testkit::Rig;

#[test]
fn a_use_that_is_prepared_while_live_blocks_are_checked_is_not_refused() {
    for backend in TRACKING {
        let rig = Rig::simulated();
        let [home, other] = [rig.stream(), rig.stream()];
        let is_slow = AtomicBool::new(true);
        let checking = Arc::new(Barrier::new(2));
        let begins = Arc::clone(&checking);
        // Lets another thread begin its call while the first check is submitted.
        let ops = Hooked::new(&rig, move |moment| {
            if moment == Moment::BeforeCheck && is_slow.swap(false, SeqCst) {
                begins.wait();
                thread::sleep(Duration::from_millis(200));
            }
            Ok(())
        });
        let guard = guarded(backend.make(&rig), DebugGuardLayer::new(ops));
        let block = guard.allocate(1000, home.id(), TAG).unwrap();
        thread::scope(|scope| {
            let user = scope.spawn(|| {
                checking.wait();
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
        drop((guard, home, other));
        rig.assert_clean();
    }
}
