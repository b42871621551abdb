//! Checks under way, and the corruptions that they have found.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dmr_core::process::LeakedInChild;
use dmr_core::sync::lock;
use dmr_core::{Corruption, DeviceOps, ResourceResult};

use super::allocation::{Allocation, Phase};

/// The maximum number of findings that are kept.
const KEPT: usize = 1024;

/// Device operations, and the checks that they have under way. Shared by all guards that are made from one
/// layer, because a call that collects from the operations gets the verdicts of all.
#[derive(Debug)]
pub(super) struct Checks {
    ops: Arc<dyn DeviceOps>,
    /// By key. Never locked across a driver call.
    pending: LeakedInChild<Mutex<HashMap<u64, Check>>>,
    /// Held while verdicts are collected and filed.
    collecting: Mutex<()>,
}

/// Checks of one block under one key.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) allocation: Arc<Allocation>,
    phase: Phase,
    findings: Arc<Findings>,
    /// A call waits for the verdict with [`decide`](Checks::decide), and returns it.
    pub(super) is_awaited: bool,
    is_submitted: bool,
    /// The verdict was collected, and a call waits for it.
    is_decided: bool,
    /// Found for the call that waits.
    found: Option<Corruption>,
}

impl Checks {
    pub(super) fn new(ops: Arc<dyn DeviceOps>) -> Self {
        Self { ops, pending: LeakedInChild::default(), collecting: Mutex::new(()) }
    }

    pub(super) fn ops(&self) -> &dyn DeviceOps {
        &*self.ops
    }

    /// Returns the number of blocks whose verdicts were not collected.
    pub(super) fn pending(&self) -> usize {
        lock(&self.pending).len()
    }

    /// Calls `submit` with a new key, under which it submits checks of one block.
    pub(super) fn submit(
        &self,
        check: Check,
        submit: impl FnOnce(u64) -> ResourceResult<()>,
    ) -> ResourceResult<u64> {
        // Unique in the process: other callers may use the operations as well.
        static KEYS: AtomicU64 = AtomicU64::new(1 << 63);
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        // Before the submission: another thread may collect the verdict at once.
        lock(&self.pending).insert(key, check);
        let outcome = submit(key);
        let mut pending = lock(&self.pending);
        if outcome.is_err() {
            pending.remove(&key);
        } else if let Some(check) = pending.get_mut(&key) {
            check.is_submitted = true;
        }
        outcome.map(|()| key)
    }

    /// Waits for all checks, and files what they found.
    pub(super) fn collect(&self) -> ResourceResult<()> {
        let _alone = lock(&self.collecting);
        self.collect_alone()
    }

    /// Waits for an awaited check; returns what it found, which the caller reports.
    pub(super) fn decide(&self, key: u64) -> ResourceResult<Option<Corruption>> {
        let collected = {
            let _alone = lock(&self.collecting);
            // Another thread may have collected it.
            let is_decided = lock(&self.pending).get(&key).is_some_and(|check| check.is_decided);
            if is_decided { Ok(()) } else { self.collect_alone() }
        };
        let mut pending = lock(&self.pending);
        let Some(check) = pending.get_mut(&key) else { return collected.map(|()| None) };
        // What is found from now on is reported by another call.
        check.is_awaited = false;
        let found = check.found.take();
        if check.is_decided {
            pending.remove(&key);
        }
        if found.is_some() { Ok(found) } else { collected.map(|()| None) }
    }

    fn collect_alone(&self) -> ResourceResult<()> {
        let submitted: Vec<u64> = {
            let pending = lock(&self.pending);
            pending.iter().filter(|(_, check)| check.is_submitted).map(|(&key, _)| key).collect()
        };
        let wrong = self.ops.collect()?;
        let mut pending = lock(&self.pending);
        for mismatch in wrong {
            // An unknown key is one of another caller.
            if let Some(check) = pending.get_mut(&mismatch.key) {
                check.file(mismatch.offset);
            }
        }
        for key in submitted {
            match pending.get_mut(&key) {
                Some(check) if check.is_awaited => check.is_decided = true,
                _ => _ = pending.remove(&key),
            }
        }
        Ok(())
    }
}

impl Check {
    /// Makes a check whose verdict a later call reports.
    pub(super) fn new(
        allocation: &Arc<Allocation>,
        phase: Phase,
        findings: &Arc<Findings>,
    ) -> Self {
        Self {
            allocation: Arc::clone(allocation),
            phase,
            findings: Arc::clone(findings),
            is_awaited: false,
            is_submitted: false,
            is_decided: false,
            found: None,
        }
    }

    /// Files that the byte at `offset` of the whole block is wrong.
    fn file(&mut self, offset: usize) {
        let Some(corruption) = self.allocation.corruption(self.phase, offset) else { return };
        let is_reported = self.is_awaited && self.found.is_none();
        if is_reported {
            self.found = Some(corruption.clone());
        }
        lock(&self.findings).add(corruption, is_reported);
    }
}

/// Corruptions that were found, and whether a call has reported them.
pub(super) type Findings = LeakedInChild<Mutex<FindingList>>;

#[derive(Debug, Default)]
pub(super) struct FindingList {
    pub(super) found: VecDeque<Finding>,
    /// The number of findings beyond those that are kept.
    pub(super) beyond: u64,
}

#[derive(Debug)]
pub(super) struct Finding {
    pub(super) corruption: Corruption,
    reported: bool,
}

impl FindingList {
    fn add(&mut self, corruption: Corruption, reported: bool) {
        if self.found.len() < KEPT {
            self.found.push_back(Finding { corruption, reported });
        } else {
            self.beyond += 1;
        }
    }

    /// Returns the oldest that no call has reported, and counts it as reported.
    pub(super) fn report_one(&mut self) -> Option<Corruption> {
        let finding = self.found.iter_mut().find(|finding| !finding.reported)?;
        finding.reported = true;
        Some(finding.corruption.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::AtomicU8;

    use dmr_core::{AllocTag, DeviceBlock, Generation, PatternMismatch, StreamId};

    use super::*;

    /// Device operations whose checks find nothing.
    #[derive(Debug)]
    struct FindsNothing;

    impl DeviceOps for FindsNothing {
        fn fill_pattern(
            &self,
            _: &DeviceBlock,
            _: Range<usize>,
            _: u32,
            _: StreamId,
        ) -> ResourceResult<()> {
            Ok(())
        }

        fn check_pattern(
            &self,
            _: &DeviceBlock,
            _: Range<usize>,
            _: u32,
            _: StreamId,
            _: u64,
        ) -> ResourceResult<()> {
            Ok(())
        }

        fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
            Ok(Vec::new())
        }

        fn synchronize(&self, _: StreamId) -> ResourceResult<()> {
            Ok(())
        }
    }

    fn check() -> Check {
        let allocation = Arc::new(Allocation {
            generation: Generation::next(),
            bytes: 512,
            tag: AllocTag::UNTAGGED,
            alloc_stream: StreamId::DEFAULT,
            red_zone: 256,
            allocated_at: None,
            reported: AtomicU8::new(0),
        });
        Check::new(&allocation, Phase::Live, &Arc::default())
    }

    #[test]
    fn a_check_is_pending_until_a_collection_that_begins_after_its_submission() {
        let checks = Checks::new(Arc::new(FindsNothing));
        // A collection of another thread, between two checks of one block.
        checks.submit(check(), |_| checks.collect()).unwrap();
        assert_eq!(checks.pending(), 1, "its verdict is yet to come");
        checks.collect().unwrap();
        assert_eq!(checks.pending(), 0);
    }

    #[test]
    fn an_awaited_check_is_pending_until_it_is_decided() {
        let checks = Checks::new(Arc::new(FindsNothing));
        for collects in [false, true] {
            let awaited = Check { is_awaited: true, ..check() };
            let key = checks.submit(awaited, |_| Ok(())).unwrap();
            if collects {
                checks.collect().unwrap();
            }
            assert_eq!(checks.pending(), 1);
            assert_eq!(checks.decide(key), Ok(None));
            assert_eq!(checks.pending(), 0);
        }
    }
}
