//! Which check is whose, so that whoever collects verdicts files each with its block.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmr_core::process::LeakedInChild;
use dmr_core::{Corruption, DeviceOps, ResourceResult};

use super::allocation::{Allocation, Phase};
use super::findings::Findings;

/// The checks under way. All guards that are made from one layer share it, because they share its
/// operations: those answer everybody's verdicts to whoever asks.
#[derive(Debug)]
pub(super) struct Verdicts {
    ops: Arc<dyn DeviceOps>,
    /// By key. Never locked across a driver call.
    pending: LeakedInChild<Mutex<HashMap<u64, Pending>>>,
    /// Held while verdicts are on their way from the operations to whom they concern.
    collecting: Mutex<()>,
}

#[derive(Debug)]
struct Pending {
    suspect: Arc<Suspect>,
    /// All of its checks are with the operations, so the next collection decides it.
    submitted: bool,
}

/// A block that is being checked.
#[derive(Debug)]
pub(super) struct Suspect {
    allocation: Arc<Allocation>,
    phase: Phase,
    findings: Arc<Findings>,
    answer: Mutex<Answer>,
}

#[derive(Debug)]
struct Answer {
    /// A call waits for the verdict, and reports it. From the start: another thread may collect
    /// the verdict before that call asks for it.
    awaited: bool,
    found: Option<Corruption>,
}

impl Verdicts {
    pub(super) fn new(ops: Arc<dyn DeviceOps>) -> Self {
        Self { ops, pending: LeakedInChild::default(), collecting: Mutex::new(()) }
    }

    pub(super) fn ops(&self) -> &dyn DeviceOps {
        &*self.ops
    }

    /// How many blocks have checks whose verdicts were not collected.
    pub(super) fn pending(&self) -> usize {
        lock(&self.pending).len()
    }

    /// Submits checks of one block, all under the key that `submit` is given.
    pub(super) fn submit(
        &self,
        suspect: &Arc<Suspect>,
        submit: impl FnOnce(u64) -> ResourceResult<()>,
    ) -> ResourceResult<u64> {
        // Unique in the process: the operations may be somebody else's as well.
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

    /// Waits for all checks, and files what they have found.
    pub(super) fn collect(&self) -> ResourceResult<()> {
        let _alone = lock(&self.collecting);
        self.collect_alone()
    }

    /// Waits for the checks under `key`; answers what they have found, which is the caller's to
    /// report.
    pub(super) fn decide(&self, key: u64, suspect: &Suspect) -> ResourceResult<Option<Corruption>> {
        let collected = {
            let _alone = lock(&self.collecting);
            // Another thread may have decided it meanwhile.
            let is_open = lock(&self.pending).contains_key(&key);
            if is_open { self.collect_alone() } else { Ok(()) }
        };
        let mut answer = suspect.answer();
        // Found later than this, it is for another call to report.
        answer.awaited = false;
        match answer.found.take() {
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
            // One that is not known is not a guard's.
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
    /// One whose verdict is for later calls to report.
    pub(super) fn new(
        allocation: &Arc<Allocation>,
        phase: Phase,
        findings: &Arc<Findings>,
    ) -> Arc<Self> {
        Self::with(allocation, phase, findings, false)
    }

    /// One whose verdict the caller will ask for with [`Verdicts::decide`].
    pub(super) fn awaited(allocation: &Arc<Allocation>, findings: &Arc<Findings>) -> Arc<Self> {
        Self::with(allocation, Phase::Live, findings, true)
    }

    fn with(
        allocation: &Arc<Allocation>,
        phase: Phase,
        findings: &Arc<Findings>,
        awaited: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            allocation: Arc::clone(allocation),
            phase,
            findings: Arc::clone(findings),
            answer: Mutex::new(Answer { awaited, found: None }),
        })
    }

    /// A byte at `offset` of the whole block is wrong.
    fn file(&self, offset: usize) {
        let Some(corruption) = self.allocation.corruption(self.phase, offset) else { return };
        let mut answer = self.answer();
        let answered = answer.awaited && answer.found.is_none();
        if answered {
            answer.found = Some(corruption.clone());
        }
        self.findings.add(corruption, answered);
    }

    fn answer(&self) -> MutexGuard<'_, Answer> {
        lock(&self.answer)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
