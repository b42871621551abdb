//! The guard: its state, its own methods, and the calls of the traits, each around the same call
//! upstream.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use dmr_core::process::LeakedInChild;
use dmr_core::size::human_bytes;
use dmr_core::sync::{ignore_poison, lock, read, try_write, write};
use dmr_core::{
    AllocTag, BlockId, BlockState, BlockUse, Corruption, DeallocateError, DeviceBlock,
    DeviceMemoryResource, DriverAllocation, Generation, PeerAccess, Process, ResourceError,
    ResourceResult, StreamId, Usage, UseToken, UseTokens, UseTracking, VirtualMemory, forward,
};
use dmr_recorder::Retrying;

use super::allocation::Allocation;
use super::blocks::{Blocks, Kept};
use super::findings::Findings;
use super::quarantine::{NotReleased, Quarantine, Swept};
use super::{DebugGuardLayer, GuardChecks};

/// The number of blocks whose verdicts may wait on the device before a deferred `deallocate` reads
/// them.
const MAX_PENDING: usize = 4096;

/// Finds writes outside of blocks and into deallocated blocks.
///
/// The [module](super) documents what it finds, when, and what that costs.
pub struct DebugGuardResource<R: DeviceMemoryResource> {
    /// `None` only inside of `into_upstream`.
    upstream: Option<R>,
    pub(super) config: DebugGuardLayer,
    pub(super) findings: Arc<Findings>,
    pub(super) blocks: LeakedInChild<Blocks>,
    pub(super) quarantine: LeakedInChild<RwLock<Mutex<Quarantine>>>,
    pub(super) unchecked: AtomicU64,
    /// A deallocation has found the device lost: nothing stays in quarantine.
    pub(super) is_lost: AtomicBool,
    /// Held for reading while a window is opened, for writing while `check_all` checks live blocks:
    /// its own windows conflict with no other then.
    gate: RwLock<()>,
    made_in: Process,
}

impl<R: DeviceMemoryResource> DebugGuardResource<R> {
    pub(super) fn new(upstream: R, layer: &DebugGuardLayer) -> Self {
        Self {
            upstream: Some(upstream),
            config: layer.clone(),
            findings: Arc::default(),
            blocks: LeakedInChild::default(),
            quarantine: LeakedInChild::default(),
            unchecked: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            gate: RwLock::new(()),
            made_in: Process::current(),
        }
    }

    /// Returns the upstream resource. Blocks that are allocated by it directly are not guarded, and
    /// are deallocated by it directly.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only inside `into_upstream`")]
    pub fn upstream(&self) -> &R {
        self.upstream.as_ref().expect("there until `into_upstream`")
    }

    /// Returns the upstream resource. Blocks in quarantine are deallocated there without a check,
    /// as when this is dropped.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only after this")]
    pub fn into_upstream(mut self) -> R {
        self.release_all();
        self.upstream.take().expect("there until now")
    }

    /// Returns what was found and not taken, the oldest first: at most 1024, whether or not a call
    /// has reported it. In a forked child, none.
    #[must_use]
    pub fn violations(&self) -> Vec<Corruption> {
        if self.is_forked() {
            return Vec::new();
        }
        lock(&self.findings).found.iter().map(|finding| finding.corruption.clone()).collect()
    }

    /// Takes what was found: no call reports it after this.
    pub fn take_violations(&self) -> Vec<Corruption> {
        if self.is_forked() {
            return Vec::new();
        }
        lock(&self.findings).found.drain(..).map(|finding| finding.corruption).collect()
    }

    /// Returns how many violations were found beyond those that are kept.
    #[must_use]
    pub fn violations_beyond(&self) -> u64 {
        if self.is_forked() { 0 } else { lock(&self.findings).beyond }
    }

    /// Returns how many blocks were deallocated upstream without a check, because the device was
    /// lost.
    #[must_use]
    pub fn unchecked_blocks(&self) -> u64 {
        self.unchecked.load(Ordering::Relaxed)
    }

    /// Returns where a block was allocated, if backtraces are captured: for any block that is live
    /// or in quarantine, and for the last few thousand after those. Explains a
    /// [`UseAfterFree`](ResourceError::UseAfterFree).
    #[must_use]
    pub fn allocated_at(&self, block: BlockId) -> Option<String> {
        if self.is_forked() { None } else { self.blocks.find(block.generation())?.allocated_at() }
    }

    /// Checks the red zones of all live blocks, and all bytes of blocks in quarantine. Returns what
    /// was found, by this call or before, and not reported yet.
    ///
    /// Waits for the home streams of all those blocks, and the checks come after every use that was
    /// recorded. While a window is open on another stream, what that stream writes may be seen or
    /// not. Delays other threads' calls until the checks are submitted; until they are done for
    /// blocks with an open window, and where uses are not tracked.
    ///
    /// # Errors
    ///
    /// Stream and driver errors, [`StreamCapturing`](ResourceError::StreamCapturing) among them;
    /// all other blocks were checked, and no finding is lost: call again.
    pub fn check_all(&self) -> ResourceResult<Vec<Corruption>> {
        self.refuse_fork()?;
        let mut alone = write(&self.quarantine);
        let quarantine = ignore_poison(alone.get_mut());
        let live = {
            let _alone = write(&self.gate);
            self.blocks.for_each_live(|whole, allocation| self.check_live(whole, allocation))
        };
        let admitted = self.admit(quarantine);
        let held = self.check_held(quarantine);
        let collected = self.config.checks.collect();
        live.and(admitted).and(held).and(collected)?;
        Ok(std::iter::from_fn(|| lock(&self.findings).report_one()).collect())
    }

    /// Returns whether this is a forked child, where another thread may have held any lock.
    fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// Refuses a forked child. Called before any lock, which another thread may have held at the
    /// fork.
    fn refuse_fork(&self) -> ResourceResult<()> {
        self.made_in.check(self.device_ordinal())
    }

    /// Allocates memory with room for red zones. If there is none, empties the quarantine and tries
    /// again.
    fn allocate_upstream(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // Refused, it is asked for again below.
        let retrying = dmr_recorder::is_on().then(Retrying::quietly);
        let allocated = self.upstream().allocate(bytes, stream, tag);
        let again = retrying.is_some();
        drop(retrying);
        let is_full = matches!(
            allocated,
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
        );
        if !is_full {
            return allocated;
        }
        let mut alone = write(&self.quarantine);
        let quarantine = ignore_poison(alone.get_mut());
        if !again && quarantine.is_empty() && !self.blocks.has_deallocated() {
            return allocated;
        }
        // Blocks that upstream refuses are still in quarantine; the second try tells whether that
        // matters.
        drop(self.sweep(quarantine, true));
        drop(alone);
        // The memory of a block is free once its check is done.
        drop(self.collect_unless_lost());
        self.upstream().allocate(bytes, stream, tag)
    }

    fn reap(
        &self,
        all: bool,
        upstream: impl FnOnce(&R) -> ResourceResult<u64>,
    ) -> ResourceResult<u64> {
        self.refuse_fork()?;
        // If another thread sweeps, that is enough, unless this call waits.
        let alone = if all { Some(write(&self.quarantine)) } else { try_write(&self.quarantine) };
        let swept = alone.map_or(Swept { freed: 0, outcome: Ok(()) }, |mut alone| {
            self.sweep(ignore_poison(alone.get_mut()), all)
        });
        let reaped = upstream(self.upstream());
        let freed = swept.freed + self.poll_retired();
        let collected = if all { self.collect_unless_lost() } else { Ok(()) };
        swept.outcome.and(reaped).and(collected)?;
        match lock(&self.findings).report_one() {
            Some(found) => Err(ResourceError::Corrupted(Box::new(found))),
            None => Ok(freed),
        }
    }

    /// Counts what upstream has freed since, and returns the bytes.
    fn poll_retired(&self) -> u64 {
        self.blocks.poll_retired(|block| self.upstream().is_retired(block))
    }

    /// Deallocates upstream, without a check, all that was deallocated here.
    fn release_all(&mut self) {
        if self.is_forked() {
            return;
        }
        let quarantine = std::mem::take(&mut *lock(&write(&self.quarantine)));
        for kept in quarantine.into_blocks().chain(self.blocks.take_deallocated()) {
            // A block that upstream refuses is leaked, as a dropped block is.
            drop(self.release(kept));
        }
    }

    /// Returns what tracks the uses upstream.
    fn tracking(&self, stream: StreamId) -> ResourceResult<&dyn UseTracking> {
        self.upstream().use_tracking().ok_or_else(|| ResourceError::not_tracked(stream))
    }

    /// Closes windows, and counts them as closed, unless upstream has refused that and left them in
    /// the tokens.
    fn close(
        &self,
        tokens: &mut UseTokens,
        close: impl FnOnce(&dyn UseTracking, &mut UseTokens) -> ResourceResult<()>,
    ) -> ResourceResult<()> {
        self.refuse_fork()?;
        let upstream = self.tracking(tokens.stream())?;
        let windows: Vec<_> = tokens.iter().map(UseToken::generation).collect();
        let outcome = close(upstream, tokens);
        if tokens.is_empty() {
            self.blocks.close_windows(&windows);
        }
        outcome
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for DebugGuardResource<R> {
    forward!(
        upstream(): device_ordinal,
        stream_pool,
        // The quarantine stays: `reap_pending` empties it.
        trim_to,
    );

    /// The sizes in upstream's errors include the red zones.
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        self.refuse_fork()?;
        let whole_bytes = Allocation::whole_bytes(bytes, self.config.red_zone)
            .ok_or(ResourceError::size_overflow(bytes))?;
        let whole = self.allocate_upstream(whole_bytes, stream, tag)?;
        let backtrace = self.config.backtraces.then(Backtrace::force_capture);
        let allocation = Arc::new(Allocation::new(&whole, bytes, self.config.red_zone, backtrace));
        // Returned if upstream has allocated less than was asked for.
        let no_room = ResourceError::out_of_bounds(&whole, self.config.red_zone, bytes);
        let narrowed = match self.fill_fresh(&whole, &allocation) {
            Ok(()) => whole.narrow(self.config.red_zone, bytes).map_err(|whole| (no_room, whole)),
            Err(error) => Err((error, whole)),
        };
        match narrowed {
            Ok((block, whole)) => {
                self.blocks.insert(allocation, whole);
                Ok(block)
            }
            Err((error, whole)) => {
                let allocation = Arc::new(Allocation::new(&whole, 0, self.config.red_zone, None));
                let unfilled = Kept { whole, allocation, is_sealed: true };
                if let Err(NotReleased { kept: Some(refused), .. }) = self.release(unfilled) {
                    self.blocks.keep(refused);
                }
                Err(error)
            }
        }
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(error) = self.refuse_fork() {
            return Err(DeallocateError::new(error, block));
        }
        let id = block.id();
        let mut kept = self.blocks.take(block, self.device_ordinal())?;
        let is_sealed = match self.seal(&kept, true) {
            Ok(is_sealed) => is_sealed,
            Err(error) => return Err(DeallocateError::new(error, self.blocks.reinsert(kept))),
        };
        kept.is_sealed = is_sealed;
        self.blocks.keep(kept);
        self.sweep_share();
        if self.config.mode == GuardChecks::Deferred && self.config.checks.pending() >= MAX_PENDING
        {
            // A failed collection leaves the verdicts for the next.
            drop(self.config.checks.collect());
        }
        Ok(match (is_sealed, self.blocks.is_deallocated(id.generation())) {
            (true, true) => BlockState::Quarantined,
            (true, false) if !self.upstream().is_retired(id) => BlockState::Freed,
            _ => BlockState::Retired,
        })
    }

    /// Gives no block away: the driver's allocation begins with a red zone.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let refused = ResourceError::not_given_away(&block, "the debug guard");
        Err(DeallocateError::new(refused, block))
    }

    /// Never grows a block: behind it is its red zone.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.refuse_fork()?;
        self.blocks.check(block, self.device_ordinal())?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        !self.is_forked()
            && (self.blocks.is_deallocated(block.generation()) || self.upstream().is_retired(block))
    }

    fn bytes_outstanding(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        // Upstream counts red zones as well, and so never less.
        let with_red_zones = self.upstream().bytes_outstanding();
        self.poll_retired();
        self.blocks.usage(0).outstanding().min(with_red_zones)
    }

    fn usage(&self) -> Usage {
        if self.is_forked() {
            return Usage::default();
        }
        let reserved = self.upstream().usage().reserved;
        self.poll_retired();
        self.blocks.usage(reserved)
    }

    /// Checks and fills blocks whose windows have closed, and deallocates upstream those that are
    /// beyond the quarantine's bounds. Does not wait, and so reads no verdicts back.
    ///
    /// # Errors
    ///
    /// [`Corrupted`](ResourceError::Corrupted) once for each violation that was found and that no
    /// call has reported, after it has freed what it could.
    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap(false, R::try_reap)
    }

    /// Checks all blocks in quarantine, deallocates them upstream, and reads all verdicts back.
    ///
    /// # Errors
    ///
    /// As [`try_reap`](Self::try_reap).
    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reap(true, R::reap_pending)
    }

    fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
        self.upstream().allow_access(device_ordinal)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        self.upstream().use_tracking().map(|_| self as _)
    }

    /// Returns `None`: pages have no red zones, and are not quarantined.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}

/// Counts the windows of blocks that the guard has.
impl<R: DeviceMemoryResource> UseTracking for DebugGuardResource<R> {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.refuse_fork()?;
        let upstream = self.tracking(tokens.stream())?;
        let _passing = read(&self.gate);
        let windows: Vec<Generation> = uses.iter().map(|used| used.block.generation()).collect();
        self.blocks.open_windows(&windows)?;
        upstream.prepare(uses, tokens).inspect_err(|_| self.blocks.close_windows(&windows))
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.close(tokens, |upstream, tokens| upstream.finish(tokens))
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.close(tokens, |upstream, tokens| upstream.cancel(tokens))
    }
}

impl<R: DeviceMemoryResource> Drop for DebugGuardResource<R> {
    fn drop(&mut self) {
        if self.upstream.is_some() {
            self.release_all();
        }
    }
}

/// `DebugGuard(256 B, Async(device 0))`.
impl<R: DeviceMemoryResource> fmt::Display for DebugGuardResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DebugGuard({}, {:?})", human_bytes(self.config.red_zone as u64), self.upstream())
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for DebugGuardResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
