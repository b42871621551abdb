//! The guard's state, its own methods, and the steps that its calls share.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};

use dmr_core::process::LeakedInChild;
use dmr_core::size::human_bytes;
use dmr_core::sync::{lock, read, try_lock, write};
use dmr_core::{
    AllocTag, BlockId, BlockState, Corruption, DeviceBlock, DeviceMemoryResource, Generation,
    Process, ResourceError, ResourceResult, StreamId, UseToken, UseTokens, UseTracking,
};

use super::accounts::Accounts;
use super::findings::Findings;
use super::quarantine::Quarantine;
use super::strays::Strays;
use super::table::{Kept, Table};
use super::verdicts::Verdicts;
use super::{DebugGuardLayer, GuardChecks};

/// Finds writes outside of blocks and into deallocated blocks.
///
/// The [module](super) documents what it finds, when, and what that costs.
pub struct DebugGuardResource<R: DeviceMemoryResource> {
    /// `None` only inside of `into_inner`.
    upstream: Option<R>,
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
    /// Held for reading while a window is opened or a block deallocated, for writing while `check_all`
    /// has live blocks out of the table: its own windows conflict with no other then.
    gate: RwLock<()>,
    /// Held while a thread has quarantined blocks in hand: a reap that waits also waits for those.
    sweeping: Mutex<()>,
    made_in: Process,
}

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    pub(super) fn new(upstream: R, layer: &DebugGuardLayer) -> Self {
        Self {
            upstream: Some(upstream),
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

    /// Returns the upstream resource. Blocks that are allocated by it directly are not guarded, and are
    /// deallocated by it directly.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only inside `into_inner`")]
    pub fn get_ref(&self) -> &R {
        self.upstream.as_ref().expect("there until `into_inner`")
    }

    /// Returns the upstream resource. Blocks in quarantine are deallocated there without a check, as when
    /// this is dropped.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only after this")]
    pub fn into_inner(mut self) -> R {
        self.deallocate_all();
        self.upstream.take().expect("there until now")
    }

    /// Returns what was found and not taken, the oldest first: at most 1024, whether or not a call
    /// has reported it. In a forked child, none.
    #[must_use]
    pub fn violations(&self) -> Vec<Corruption> {
        if self.is_forked() { Vec::new() } else { self.findings.all() }
    }

    /// Takes what was found: no call reports it after this.
    pub fn take_violations(&self) -> Vec<Corruption> {
        if self.is_forked() { Vec::new() } else { self.findings.take() }
    }

    /// Returns how many violations were found beyond those that are kept.
    #[must_use]
    pub fn violations_beyond(&self) -> u64 {
        if self.is_forked() { 0 } else { self.findings.beyond() }
    }

    /// Returns how many blocks were deallocated without a check, because the device was lost.
    #[must_use]
    pub fn unchecked_blocks(&self) -> u64 {
        self.unchecked.load(Ordering::Relaxed)
    }

    /// Returns where a block was allocated, if backtraces are captured: for any block that is live or in
    /// quarantine, and for the last few thousand after those. Explains a
    /// [`UseAfterFree`](ResourceError::UseAfterFree).
    #[must_use]
    pub fn allocated_at(&self, block: BlockId) -> Option<String> {
        if self.is_forked() {
            return None;
        }
        self.table.find(block.generation())?.allocated_at()
    }

    /// Checks the red zones of all live blocks, and all bytes of blocks in quarantine. Returns what was
    /// found, by this call or before, and not reported yet.
    ///
    /// Waits for the home streams of all those blocks, and the checks come after every use that
    /// was recorded. While a window is open on another stream, what that stream writes may be seen
    /// or not. Delays other threads' preparations and deallocations until the checks are submitted;
    /// until they are done for blocks with an open window.
    ///
    /// # Errors
    ///
    /// Stream and driver errors, [`StreamCapturing`](ResourceError::StreamCapturing) among them;
    /// all other blocks were checked, and no finding is lost: call again.
    pub fn check_all(&self) -> ResourceResult<Vec<Corruption>> {
        self.refuse_fork()?;
        let _alone = self.sweeping();
        let live = {
            let _alone = write(&self.gate);
            self.check_live()
        };
        let held = self.check_held();
        let collected = self.verdicts.collect();
        live.and(held).and(collected)?;
        Ok(self.findings.report_all())
    }

    pub(super) fn sweeping(&self) -> MutexGuard<'_, ()> {
        lock(&self.sweeping)
    }

    fn try_sweeping(&self) -> Option<MutexGuard<'_, ()>> {
        try_lock(&self.sweeping)
    }

    pub(super) fn passing(&self) -> RwLockReadGuard<'_, ()> {
        read(&self.gate)
    }

    /// Returns whether this is a forked child, where another thread may have held any lock.
    pub(super) fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// Refuses a forked child. Called before any lock, which another thread may have held at the fork.
    pub(super) fn refuse_fork(&self) -> ResourceResult<()> {
        self.made_in.check(self.device_ordinal())
    }

    /// Allocates memory with room for red zones. If there is none, empties the quarantine and tries again.
    pub(super) fn allocate_upstream(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let allocated = self.get_ref().allocate(bytes, stream, tag);
        let is_full = matches!(
            allocated,
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
        );
        if !is_full || self.quarantine.is_empty() {
            return allocated;
        }
        let (_, outcome) = {
            let _alone = self.sweeping();
            self.sweep(true)
        };
        // What could not be deallocated is still in quarantine; the second try tells whether that matters.
        drop(outcome);
        // The memory of a block is free once its check is done.
        drop(self.collect_unless_lost());
        self.get_ref().allocate(bytes, stream, tag)
    }

    /// Keeps a block until the windows that are open on it have closed.
    pub(super) fn keep_waiting(&self, kept: Kept) -> BlockState {
        self.quarantine.wait(kept);
        BlockState::Retired
    }

    /// Returns the state of a block that was deallocated just now.
    pub(super) fn state_of(&self, block: BlockId) -> BlockState {
        if self.table.is_deallocated(block.generation()) {
            BlockState::Quarantined
        } else if self.get_ref().is_retired(block) {
            BlockState::Retired
        } else {
            BlockState::Freed
        }
    }

    /// Checks blocks whose windows have closed, and deallocates upstream those beyond the quarantine's
    /// bounds. After an error a block stays where it is, and a reap returns the error.
    pub(super) fn tidy(&self) {
        while self.quarantine.has_waiting() || self.quarantine.is_over_bound() {
            let Some(_alone) = self.try_sweeping() else { return };
            let (_, outcome) = self.sweep(false);
            // Again for a block that another thread added while this one had the lock.
            if outcome.is_err() || !self.quarantine.is_over_bound() {
                return;
            }
        }
    }

    pub(super) fn reap(
        &self,
        all: bool,
        upstream: impl FnOnce(&R) -> ResourceResult<u64>,
    ) -> ResourceResult<u64> {
        self.refuse_fork()?;
        let (swept, outcome) = if all {
            let _alone = self.sweeping();
            self.sweep(true)
        } else {
            match self.try_sweeping() {
                Some(_alone) => self.sweep(false),
                // Another thread does it.
                None => (0, Ok(())),
            }
        };
        let strays = self.strays.deallocate(self.get_ref());
        let reaped = upstream(self.get_ref());
        let freed = swept + self.accounts.settle(|block| self.get_ref().is_retired(block));
        let collected = if all { self.collect_unless_lost() } else { Ok(()) };
        outcome.and(strays).and(reaped)?;
        collected?;
        match self.findings.report_one() {
            Some(found) => Err(ResourceError::Corrupted(Box::new(found))),
            None => Ok(freed),
        }
    }

    /// Deallocates upstream, without a check, all that was deallocated here.
    fn deallocate_all(&mut self) {
        if self.refuse_fork().is_err() {
            return;
        }
        let blocks = self.quarantine.take_waiting().into_iter().chain(self.quarantine.take_held());
        for kept in blocks {
            // A block that upstream refuses is leaked, as a dropped block is.
            drop(self.deallocate_upstream(kept));
        }
        drop(self.strays.deallocate(self.get_ref()));
    }

    /// Returns what tracks the uses upstream.
    pub(super) fn tracking(&self, stream: StreamId) -> ResourceResult<&dyn UseTracking> {
        self.get_ref().use_tracking().ok_or_else(|| ResourceError::not_tracked(stream))
    }

    /// Counts windows that are about to be opened: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a deallocated block.
    pub(super) fn open_windows(&self, windows: &[Generation]) -> ResourceResult<()> {
        for (index, &generation) in windows.iter().enumerate() {
            if !self.table.open_window(generation) {
                self.forget_windows(&windows[..index]);
                return Err(ResourceError::use_after_free(generation));
            }
        }
        Ok(())
    }

    /// Closes windows, and counts them as closed, unless upstream has refused that and left them in the
    /// tokens.
    pub(super) fn close_windows(
        &self,
        tokens: &mut UseTokens,
        close: impl FnOnce(&dyn UseTracking, &mut UseTokens) -> ResourceResult<()>,
    ) -> ResourceResult<()> {
        self.refuse_fork()?;
        let upstream = self.tracking(tokens.stream())?;
        let windows: Vec<_> = tokens.iter().map(UseToken::generation).collect();
        let outcome = close(upstream, tokens);
        if tokens.is_empty() {
            self.forget_windows(&windows);
        }
        outcome
    }

    /// Counts windows as closed.
    pub(super) fn forget_windows(&self, windows: &[Generation]) {
        windows.iter().for_each(|&generation| self.table.close_window(generation));
    }
}

impl<R: DeviceMemoryResource> Drop for DebugGuardResource<R> {
    fn drop(&mut self) {
        if self.upstream.is_some() {
            self.deallocate_all();
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
