//! The open windows of one launch. `finish`, `cancel` or a drop, which finishes, closes them.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, StreamId, panics};
use dmr_streams::{LaunchTokens, StreamGuard, StreamPool};

use crate::peer_uses::{PeerUses, PeerWindows};
use crate::uses::LaunchUses;

static UNFINISHED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of launches of this process that were prepared and neither finished nor
/// cancelled, and of recorders with uses that were neither launched nor prepared.
///
/// The uses of a prepared launch were recorded when it was dropped, as if finished. Each is a
/// mistake, or a panic before finish.
#[must_use]
pub fn unfinished_launches() -> u64 {
    UNFINISHED.load(Ordering::Relaxed)
}

/// Counts and reports a recorder with uses that is dropped before it was launched or prepared.
#[cold]
pub(crate) fn count_unlaunched(stream: StreamId, uses: usize) {
    UNFINISHED.fetch_add(1, Ordering::Relaxed);
    report_unlaunched(stream, uses);
}

/// The windows of a launch on these streams, with blocks of this resource. They are closed in any
/// case.
#[derive(Debug)]
pub(crate) struct Windows<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> {
    streams: S,
    resource: R,
    tokens: LaunchTokens,
    /// Windows on memory of other stream pools.
    peers: Vec<PeerWindows>,
    /// `true` if the launch was neither finished nor cancelled.
    is_pending: bool,
}

impl<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> Windows<S, R> {
    /// Makes a set without windows, on `stream`.
    #[inline]
    pub(crate) fn new(streams: S, resource: R, stream: StreamId) -> Self {
        let tokens = LaunchTokens::new(stream);
        let peers = Vec::new();
        Self { streams, resource, tokens, peers, is_pending: false }
    }

    /// Opens the windows of all these uses, or of none.
    #[inline]
    pub(crate) fn open(
        &mut self,
        stream: &StreamGuard<'_>,
        uses: &LaunchUses,
    ) -> ResourceResult<()> {
        self.tokens.prepare(stream, &self.resource, uses.pinned(), uses.blocks())?;
        if !uses.peers.is_empty() {
            self.open_peers(stream, &uses.peers)?;
        }
        self.is_pending = !(self.tokens.is_empty() && self.peers.is_empty());
        Ok(())
    }

    fn open_peers(&mut self, stream: &StreamGuard<'_>, peers: &[PeerUses]) -> ResourceResult<()> {
        for peer in peers {
            let opened = peer.open(stream).map(|windows| self.peers.push(windows));
            opened.inspect_err(|_| {
                // They are open, so closing them is no error.
                let _ = self.cancel();
            })?;
        }
        Ok(())
    }

    /// Opens the windows of all these uses, or of none: tries again, up to `timeout`, while windows
    /// of other streams conflict. While one does, opens no window, which would refuse launches that
    /// need not wait.
    #[cold]
    pub(crate) fn open_within(
        &mut self,
        timeout: Duration,
        stream: &StreamGuard<'_>,
        uses: &LaunchUses,
    ) -> ResourceResult<()> {
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            // In a forked child no window closes, and on a lost device no work needs one.
            stream.pool().device().check()?;
            // A driver call, which a lost device fails.
            stream.query_capture()?;
            let left = timeout.saturating_sub(begun.elapsed());
            let own = || stream.pool().uses().has_conflict(uses.own(), stream.id());
            let conflicts =
                std::iter::once_with(own).chain(uses.peers.iter().map(PeerUses::has_conflict));
            // Another error than a conflict is returned at once.
            let first = conflicts.into_iter().find(|conflict| *conflict != Some(false));
            if left.is_zero() || first.is_none_or(|conflict| conflict.is_none()) {
                let opened = self.open(stream, uses);
                if left.is_zero() || !matches!(opened, Err(ResourceError::WindowConflict { .. })) {
                    return opened;
                }
            }
            pause(tries, left);
            tries += 1;
        }
    }

    #[inline]
    pub(crate) fn finish(&mut self) -> ResourceResult<()> {
        self.is_pending = false;
        let finished = self.tokens.finish(&self.streams, &self.resource);
        if self.peers.is_empty() {
            return finished;
        }
        let stream = self.tokens.stream();
        let peers = PeerWindows::finish_all(&mut self.peers, &self.streams, stream);
        finished.and(peers)
    }

    /// Leaves the windows open for good: work that nothing is ordered after may use the blocks.
    #[cold]
    pub(crate) fn leave_open(&mut self) {
        self.is_pending = false;
        self.tokens = LaunchTokens::new(self.tokens.stream());
        self.peers.clear();
    }

    pub(crate) fn cancel(&mut self) -> ResourceResult<()> {
        self.is_pending = false;
        let cancelled = self.tokens.cancel(&self.streams, &self.resource);
        self.peers.drain(..).fold(cancelled, |outcome, mut peer| outcome.and(peer.cancel()))
    }
}

impl<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> Windows<S, R> {
    #[cold]
    fn finish_dropped(&mut self) {
        UNFINISHED.fetch_add(1, Ordering::Relaxed);
        let stream = self.tokens.stream();
        let uses = self.tokens.len() + self.peers.iter().map(PeerWindows::len).sum::<usize>();
        // A panic in here could abort the process: this may already be unwinding.
        let _ = panics::catch(|| report(stream, uses, self.finish()));
    }
}

/// The number of times that a thread tries again at once, and then gives up its processor only.
const SPINS: u32 = 8;
const YIELDS: u32 = 24;
/// The first and the longest sleep between two tries.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// Waits before the next try: longer, the more there were, and no longer than `left`.
fn pause(tries: u32, left: Duration) {
    if tries < SPINS {
        (0..1_u32 << tries).for_each(|_| std::hint::spin_loop());
    } else if tries < YIELDS {
        thread::yield_now();
    } else {
        let longer = SHORTEST.saturating_mul(1 << (tries - YIELDS).min(10));
        thread::sleep(longer.min(LONGEST).min(left));
    }
}

/// Finishes: the work may be in flight, so it counts as submitted.
impl<S: Deref<Target = StreamPool>, R: DeviceMemoryResource> Drop for Windows<S, R> {
    #[inline]
    fn drop(&mut self) {
        if self.is_pending {
            self.finish_dropped();
        }
    }
}

#[cfg(feature = "tracing")]
fn report(stream: dmr_core::StreamId, uses: usize, recorded: ResourceResult<()>) {
    match recorded {
        Ok(()) => tracing::warn!(
            %stream, uses, "a prepared launch was dropped unfinished: its uses were recorded"
        ),
        Err(error) => tracing::error!(
            %stream, uses, %error,
            "a prepared launch was dropped unfinished, and recording its uses failed"
        ),
    }
}

/// Does nothing: the launch is counted, and the resource keeps uses that could not be recorded.
#[cfg(not(feature = "tracing"))]
fn report(_: dmr_core::StreamId, _: usize, _: ResourceResult<()>) {}

#[cfg(feature = "tracing")]
fn report_unlaunched(stream: StreamId, uses: usize) {
    tracing::warn!(%stream, uses, "a launch recorder was dropped without a launch");
}

/// Does nothing: the recorder is counted.
#[cfg(not(feature = "tracing"))]
fn report_unlaunched(_: StreamId, _: usize) {}
