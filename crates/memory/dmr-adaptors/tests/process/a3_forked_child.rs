//! A3, D4: in a forked child the guard refuses every call, takes no lock that another thread of the
//! parent may have held, and frees nothing.

#![cfg(all(unix, feature = "debug-guard"))]
#![allow(unsafe_code, reason = "forks")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::a3::{Backend, TAG};
use dmr_adaptors::guard::GuardChecks;
use dmr_core::{Access, BlockUse, DeviceMemoryResource, ResourceError, UseTrackingExt};
use dmr_testkit::{Rig, exit_code};

/// Returns the calls that were not refused, as bits.
fn refusals(results: impl IntoIterator<Item = Option<ResourceError>>) -> i32 {
    let refused =
        |error: &Option<ResourceError>| matches!(error, Some(ResourceError::ForkedProcess { .. }));
    let bits = results.into_iter().enumerate();
    bits.map(|(nth, error)| if refused(&error) { 0 } else { 1 << nth }).sum()
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_forked_child_is_refused_everything_and_does_not_hang() {
    let rig = Rig::simulated();
    let guard = Arc::new(Backend::TrackedDirect.guarded(&rig, GuardChecks::Immediate));
    let stream = rig.stream();
    let mut kept = Some(guard.allocate(100, stream.id(), TAG).unwrap());
    let before = guard.usage();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A thread that holds one lock or another at any time.
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                drop(guard.check_all());
                drop(guard.try_reap());
            }
        });
        // Also if the test fails: the scope waits for that thread.
        let _ends = Ends(&is_over);
        for _ in 0..20 {
            // SAFETY: the child makes a few calls and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "fork");
            if child == 0 {
                let mut block = kept.take().unwrap();
                let uses = [BlockUse::new(block.id(), Access::Write)];
                let code = refusals([
                    guard.allocate(100, stream.id(), TAG).err(),
                    guard.try_grow(&mut block, 200).err(),
                    guard.try_reap().err(),
                    guard.reap_pending().err(),
                    guard.check_all().err(),
                    guard.record_block_use(&block, stream.id()).err(),
                    guard.prepare_block_use(block.id(), stream.id(), Access::Read).err(),
                    guard.prepare_uses(&uses, stream.id()).err(),
                    guard.deallocate(block).err().map(|refused| refused.error),
                ]);
                // SAFETY: ends the child, without the parent's handlers.
                unsafe { libc::_exit(code) };
            }
            assert_eq!(exit_code(child), Some(0), "the calls that were not refused, as bits");
        }
    });
    assert_eq!(guard.usage(), before);
    guard.deallocate(kept.take().unwrap()).unwrap();
    guard.reap_pending().unwrap();
    drop((guard, stream));
    rig.assert_clean();
}
