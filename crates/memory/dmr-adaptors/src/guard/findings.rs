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

/// Device operations, and the checks that they have under way. Shared by all guards that are made
/// from one layer, because a call that collects from the operations gets the verdicts of all.
#[derive(Debug)]
pub(super) struct Checks {
    ops: Arc<dyn DeviceOps>,
    /// By key. Never locked across a driver call.
    pending: LeakedInChild<Mutex<HashMap<u64, Check>>>,
    /// Held while verdicts are collected and filed. Locked before `pending`.
    collecting: Mutex<()>,
}

/// Checks of one block under one key.
#[derive(Debug)]
pub(super) struct Check {
    allocation: Arc<Allocation>,
    phase: Phase,
    /// The findings of the guard that has the block.
    findings: Arc<Findings>,
    is_submitted: bool,
}

impl Check {
    pub(super) fn new(
        allocation: &Arc<Allocation>,
        phase: Phase,
        findings: &Arc<Findings>,
    ) -> Self {
        let allocation = Arc::clone(allocation);
        let findings = Arc::clone(findings);
        Self { allocation, phase, findings, is_submitted: false }
    }
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

    /// Calls `submit` with a new key, under which it submits checks of one block. Returns the key.
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

    /// Submits checks as [`submit`](Self::submit), waits for all checks, and returns what these
    /// have found, for the caller to report.
    pub(super) fn submit_and_collect(
        &self,
        check: Check,
        submit: impl FnOnce(u64) -> ResourceResult<()>,
    ) -> ResourceResult<Option<Corruption>> {
        // From before the submission: no other call collects this verdict.
        let _alone = lock(&self.collecting);
        let key = self.submit(check, submit)?;
        self.collect_alone(Some(key))
    }

    /// Waits for all checks, and files what they have found.
    pub(super) fn collect(&self) -> ResourceResult<()> {
        let _alone = lock(&self.collecting);
        self.collect_alone(None).map(drop)
    }

    /// Returns what the checks under the key `own` have found first, filed as reported.
    fn collect_alone(&self, own: Option<u64>) -> ResourceResult<Option<Corruption>> {
        // Before the verdicts are collected: a check that is submitted meanwhile has none yet.
        let submitted: Vec<u64> = {
            let pending = lock(&self.pending);
            pending.iter().filter(|(_, check)| check.is_submitted).map(|(&key, _)| key).collect()
        };
        let wrong = self.ops.collect()?;
        let mut pending = lock(&self.pending);
        let mut found_by_own = None;
        for mismatch in wrong {
            // An unknown key is one of another caller.
            let Some(check) = pending.get(&mismatch.key) else { continue };
            let corruption = check.allocation.corruption(check.phase, mismatch.offset);
            let Some(corruption) = corruption else { continue };
            let reported = own == Some(mismatch.key) && found_by_own.is_none();
            if reported {
                found_by_own = Some(corruption.clone());
            }
            lock(&check.findings).add(corruption, reported);
        }
        for key in submitted {
            pending.remove(&key);
        }
        Ok(found_by_own)
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
