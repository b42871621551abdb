//! The checks under way, by key: a collected verdict is filed with the block of its check.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::process::LeakedInChild;
use dmr_core::sync::lock;
use dmr_core::{Corruption, DeviceOps, ResourceResult};

use super::allocation::{Allocation, Phase};
use super::findings::Findings;

/// The checks under way. All guards that are made from one layer share it, because they share its
/// operations, whose verdicts are all returned to the one call that collects them.
#[derive(Debug)]
pub(super) struct Verdicts {
    ops: Arc<dyn DeviceOps>,
    /// By key. Never locked across a driver call.
    pending: LeakedInChild<Mutex<HashMap<u64, Pending>>>,
    /// Held while verdicts are collected and filed.
    collecting: Mutex<()>,
}

#[derive(Debug)]
struct Pending {
    suspect: Arc<Suspect>,
    /// All of its checks were submitted, so the next collection has its verdict.
    submitted: bool,
}

/// A block that is being checked.
#[derive(Debug)]
pub(super) struct Suspect {
    allocation: Arc<Allocation>,
    phase: Phase,
    findings: Arc<Findings>,
    verdict: Mutex<Verdict>,
}

#[derive(Debug)]
struct Verdict {
    /// A call waits for the verdict, and reports it.
    is_awaited: bool,
    found: Option<Corruption>,
}

impl Verdicts {
    pub(super) fn new(ops: Arc<dyn DeviceOps>) -> Self {
        Self { ops, pending: LeakedInChild::default(), collecting: Mutex::new(()) }
    }

    pub(super) fn ops(&self) -> &dyn DeviceOps {
        &*self.ops
    }

    /// Returns the number of blocks with checks whose verdicts were not collected.
    pub(super) fn pending(&self) -> usize {
        lock(&self.pending).len()
    }

    /// Calls `submit` with a new key, under which it submits checks of one block.
    pub(super) fn submit(
        &self,
        suspect: &Arc<Suspect>,
        submit: impl FnOnce(u64) -> ResourceResult<()>,
    ) -> ResourceResult<u64> {
        // Unique in the process: other callers may use the operations as well.
        static KEYS: AtomicU64 = AtomicU64::new(1 << 63);
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        // Before its checks: another thread may collect their verdicts at once.
        let pending = Pending { suspect: Arc::clone(suspect), submitted: false };
        lock(&self.pending).insert(key, pending);
        let outcome = submit(key);
        let mut pending = lock(&self.pending);
        match (outcome, pending.get_mut(&key)) {
            (Ok(()), Some(known)) => known.submitted = true,
            (Ok(()), None) => {}
            (Err(error), _) => {
                pending.remove(&key);
                return Err(error);
            }
        }
        Ok(key)
    }

    /// Waits for all checks, and files what they found.
    pub(super) fn collect(&self) -> ResourceResult<()> {
        let _alone = lock(&self.collecting);
        self.collect_alone()
    }

    /// Waits for the checks under `key`; returns what they found, which the caller reports.
    pub(super) fn decide(&self, key: u64, suspect: &Suspect) -> ResourceResult<Option<Corruption>> {
        let collected = {
            let _alone = lock(&self.collecting);
            // Another thread may have decided it meanwhile.
            let is_open = lock(&self.pending).contains_key(&key);
            if is_open { self.collect_alone() } else { Ok(()) }
        };
        let mut verdict = suspect.verdict();
        // What is found from now on is reported by another call.
        verdict.is_awaited = false;
        match verdict.found.take() {
            Some(found) => Ok(Some(found)),
            None => collected.map(|()| None),
        }
    }

    fn collect_alone(&self) -> ResourceResult<()> {
        let decided: Vec<u64> = {
            let pending = lock(&self.pending);
            pending.iter().filter(|(_, check)| check.submitted).map(|(&key, _)| key).collect()
        };
        let wrong = self.ops.collect()?;
        let mut pending = lock(&self.pending);
        for mismatch in wrong {
            // A key that is not known is that of another caller.
            if let Some(check) = pending.get(&mismatch.key) {
                check.suspect.file(mismatch.offset);
            }
        }
        for key in decided {
            pending.remove(&key);
        }
        Ok(())
    }
}

impl Suspect {
    /// Makes a suspect whose verdict a later call reports.
    pub(super) fn new(
        allocation: &Arc<Allocation>,
        phase: Phase,
        findings: &Arc<Findings>,
    ) -> Arc<Self> {
        Self::with(allocation, phase, findings, false)
    }

    /// Makes a suspect for whose verdict the caller waits, with [`Verdicts::decide`].
    pub(super) fn awaited(allocation: &Arc<Allocation>, findings: &Arc<Findings>) -> Arc<Self> {
        Self::with(allocation, Phase::Live, findings, true)
    }

    fn with(
        allocation: &Arc<Allocation>,
        phase: Phase,
        findings: &Arc<Findings>,
        is_awaited: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            allocation: Arc::clone(allocation),
            phase,
            findings: Arc::clone(findings),
            verdict: Mutex::new(Verdict { is_awaited, found: None }),
        })
    }

    /// Files that the byte at `offset` of the whole block is wrong.
    fn file(&self, offset: usize) {
        let Some(corruption) = self.allocation.corruption(self.phase, offset) else { return };
        let mut verdict = self.verdict();
        let is_reported = verdict.is_awaited && verdict.found.is_none();
        if is_reported {
            verdict.found = Some(corruption.clone());
        }
        self.findings.add(corruption, is_reported);
    }

    fn verdict(&self) -> MutexGuard<'_, Verdict> {
        lock(&self.verdict)
    }
}
