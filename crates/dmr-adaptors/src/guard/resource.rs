//! The adaptor: what it holds, what it can be asked, and the steps of which its calls are made.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use dmr_core::process::LeakedInChild;
use dmr_core::size::human_bytes;
use dmr_core::{
    AllocTag, BlockId, BlockState, BlockUse, Corruption, DeviceBlock, DeviceMemoryResource,
    Process, ResourceError, ResourceResult, StreamId, UseToken,
};

use super::accounts::Accounts;
use super::findings::Findings;
use super::quarantine::Quarantine;
use super::strays::Strays;
use super::table::{Kept, Table};
use super::verdicts::Verdicts;
use super::{DebugGuardLayer, GuardChecks};

/// Finds writes outside of blocks and into blocks that were given back.
///
/// See the [module](super) for what it finds, when, and what that costs.
pub struct DebugGuardResource<R: DeviceMemoryResource> {
    inner: Option<R>,
    pub(super) red_zone: usize,
    pub(super) backtraces: bool,
    pub(super) checks: GuardChecks,
    pub(super) verdicts: Arc<Verdicts>,
    pub(super) findings: Arc<Findings>,
    pub(super) table: LeakedInChild<Table>,
    pub(super) quarantine: LeakedInChild<Quarantine>,
    pub(super) strays: LeakedInChild<Strays>,
    pub(super) accounts: LeakedInChild<Accounts>,
    pub(super) unchecked: AtomicU64,
    /// Held for reading while a window is opened or a block taken back, for writing while a check
    /// of everything has live blocks in hand: so that its own windows are in nobody's way.
    gate: RwLock<()>,
    /// Held while quarantined blocks are in somebody's hand, so that a reap that waits also waits
    /// for those.
    sweeping: Mutex<()>,
    made_in: Process,
}

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    pub(super) fn new(inner: R, layer: &DebugGuardLayer) -> Self {
        Self {
            inner: Some(inner),
            red_zone: layer.red_zone,
            backtraces: layer.backtraces,
            checks: layer.checks,
            verdicts: Arc::clone(&layer.verdicts),
            findings: Arc::default(),
            table: LeakedInChild::new(Table::new()),
            quarantine: LeakedInChild::new(Quarantine::new(
                layer.quarantine_bytes,
                layer.quarantine_blocks,
            )),
            strays: LeakedInChild::default(),
            accounts: LeakedInChild::default(),
            unchecked: AtomicU64::new(0),
            gate: RwLock::new(()),
            sweeping: Mutex::new(()),
            made_in: Process::current(),
        }
    }

    /// The resource that the memory comes from. Blocks that come from it directly are not guarded,
    /// and go back to it directly.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only inside `into_inner`")]
    pub fn get_ref(&self) -> &R {
        self.inner.as_ref().expect("there until `into_inner`")
    }

    /// The resource that the memory comes from. What is in quarantine goes to it unchecked, as
    /// when this is dropped.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only after this")]
    pub fn into_inner(mut self) -> R {
        self.surrender();
        self.inner.take().expect("there until now")
    }

    /// What has been found and not taken, the oldest first: at most 1024, whether or not a call
    /// has reported it. In a forked child, none.
    #[must_use]
    pub fn violations(&self) -> Vec<Corruption> {
        if self.is_forked() { Vec::new() } else { self.findings.all() }
    }

    /// The same, and forgets them: no call reports them after this.
    pub fn take_violations(&self) -> Vec<Corruption> {
        if self.is_forked() { Vec::new() } else { self.findings.take() }
    }

    /// How many were found beyond those that are kept.
    #[must_use]
    pub fn violations_beyond(&self) -> u64 {
        if self.is_forked() { 0 } else { self.findings.beyond() }
    }

    /// How many blocks went back without a check: their home streams were taken back by their
    /// owners, or the device was lost.
    #[must_use]
    pub fn unchecked_blocks(&self) -> u64 {
        self.unchecked.load(Ordering::Relaxed)
    }

    /// Where a block was allocated, if backtraces are captured: any block that is handed out or in
    /// quarantine, and the last few thousand after those. What a
    /// [`UseAfterFree`](ResourceError::UseAfterFree) is about.
    #[must_use]
    pub fn allocated_at(&self, block: BlockId) -> Option<String> {
        if self.is_forked() {
            return None;
        }
        self.table.find(block.generation())?.allocated_at()
    }

    /// Checks everything now: the red zones of all blocks handed out, and all of what is in
    /// quarantine. Answers what was found, by this call or before, and not reported yet.
    ///
    /// Waits for the home streams of all those blocks, and the checks come after every use that
    /// was recorded. While a window is open on another stream, what that stream does may be seen
    /// or not. Holds up other threads' preparations and deallocations until the checks are
    /// submitted.
    ///
    /// # Errors
    ///
    /// Stream and driver errors, [`StreamCapturing`](ResourceError::StreamCapturing) among them;
    /// all other blocks were checked, and nothing that was found is lost: call again.
    pub fn check_all(&self) -> ResourceResult<Vec<Corruption>> {
        self.refuse_fork()?;
        let _alone = self.sweeping();
        let live = {
            let _nobody_else = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            self.check_live()
        };
        let held = self.check_held();
        let collected = self.verdicts.collect();
        live.and(held).and(collected)?;
        Ok(self.findings.report_all())
    }

    pub(super) fn sweeping(&self) -> MutexGuard<'_, ()> {
        self.sweeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_sweeping(&self) -> Option<MutexGuard<'_, ()>> {
        match self.sweeping.try_lock() {
            Ok(alone) => Some(alone),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn inner(&self) -> &R {
        self.get_ref()
    }

    pub(super) fn passing(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a forked child, where another thread may have held any lock.
    pub(super) fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// Before any lock: in a forked child another thread may have held it.
    pub(super) fn refuse_fork(&self) -> ResourceResult<()> {
        self.made_in.check(self.device_ordinal())
    }

    /// Memory with room for red zones. If there is none, what is in quarantine goes first.
    pub(super) fn take(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let answer = self.get_ref().allocate(bytes, stream, tag);
        let is_full = matches!(
            answer,
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
        );
        if !is_full || self.quarantine.is_empty() {
            return answer;
        }
        let (_, outcome) = {
            let _alone = self.sweeping();
            self.sweep(true)
        };
        // What could not go is still in quarantine; the retry says whether that matters.
        drop(outcome);
        self.get_ref().allocate(bytes, stream, tag)
    }

    /// Keeps a block until the windows that are open on it have closed.
    pub(super) fn keep_waiting(&self, kept: Kept) -> BlockState {
        self.quarantine.wait(kept);
        BlockState::Retired
    }

    /// What has become of a block that was given back just now.
    pub(super) fn state_of(&self, block: BlockId) -> BlockState {
        if self.table.is_given_back(block.generation()) {
            BlockState::Quarantined
        } else if self.get_ref().is_retired(block) {
            BlockState::Retired
        } else {
            BlockState::Freed
        }
    }

    /// Takes care of blocks whose windows have closed, and of those that are too many. Errors
    /// leave a block where it is, and a reap will say why.
    pub(super) fn tidy(&self) {
        while self.quarantine.has_waiting() || self.quarantine.is_over_bound() {
            let Some(_alone) = self.try_sweeping() else { return };
            let (_, outcome) = self.sweep(false);
            // One that came while the lock was held would otherwise be nobody's business.
            if outcome.is_err() || !self.quarantine.is_over_bound() {
                return;
            }
        }
    }

    pub(super) fn reap(
        &self,
        all: bool,
        inner: impl FnOnce(&R) -> ResourceResult<u64>,
    ) -> ResourceResult<u64> {
        self.refuse_fork()?;
        let (passed_on, outcome) = if all {
            let _alone = self.sweeping();
            self.sweep(true)
        } else {
            match self.try_sweeping() {
                Some(_alone) => self.sweep(false),
                // Somebody is at it.
                None => (0, Ok(())),
            }
        };
        let strays = self.strays.give_back(self.get_ref());
        let reaped = inner(self.get_ref());
        let freed = passed_on + self.accounts.settle(|block| self.get_ref().is_retired(block));
        let collected = if all { self.collect_unless_lost() } else { Ok(()) };
        outcome.and(strays).and(reaped)?;
        collected?;
        match self.findings.report_one() {
            Some(found) => Err(ResourceError::Corrupted(Box::new(found))),
            None => Ok(freed),
        }
    }

    /// Everything that was given back goes to the inner resource, unchecked.
    fn surrender(&mut self) {
        if self.refuse_fork().is_err() {
            return;
        }
        let blocks = self.quarantine.take_waiting().into_iter().chain(self.quarantine.take_held());
        for kept in blocks {
            // What the inner resource refuses is leaked, as what is dropped is.
            drop(self.pass_on(kept));
        }
        drop(self.strays.give_back(self.get_ref()));
    }

    /// Whether a use may be prepared: not of a block that was given back.
    pub(super) fn admit(&self, uses: &[BlockUse]) -> ResourceResult<()> {
        for (index, used) in uses.iter().enumerate() {
            let generation = used.block.generation();
            if !self.table.open_window(generation) {
                self.dismiss(&uses[..index]);
                return Err(ResourceError::use_after_free(generation));
            }
        }
        Ok(())
    }

    pub(super) fn dismiss(&self, uses: &[BlockUse]) {
        uses.iter().for_each(|used| self.table.close_window(used.block.generation()));
    }

    pub(super) fn closing<'a>(
        &self,
        tokens: impl IntoIterator<Item = &'a UseToken>,
    ) -> Vec<BlockUse> {
        let use_of = |token: &UseToken| BlockUse::new(token.block(), token.access());
        tokens.into_iter().map(use_of).collect()
    }
}

impl<R: DeviceMemoryResource> Drop for DebugGuardResource<R> {
    fn drop(&mut self) {
        if self.inner.is_some() {
            self.surrender();
        }
    }
}

/// `DebugGuard(256 B, Async(device 0))`.
impl<R: DeviceMemoryResource> fmt::Display for DebugGuardResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DebugGuard({}, {:?})", human_bytes(self.red_zone as u64), self.get_ref())
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for DebugGuardResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
