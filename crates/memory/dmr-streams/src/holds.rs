//! The calls and launches that hold an adopted stream, which is retired only when none does.

use crate::sync::{AtomicU64, Ordering};

/// The state of an adopted stream and two counts, in one word: the calls that use the stream now,
/// and the launches on it that have not ended.
///
/// Retiring takes two steps, because a driver call lies between them. The first succeeds only if
/// nothing holds the stream, and marks it as *closing*; the second succeeds only if it still is. A
/// call that begins between them removes the mark, so no call is refused for a retirement that
/// fails.
pub(crate) struct Holds(AtomicU64);

/// The count of one call. There are fewer threads than 2³⁰.
const CALL: u64 = 1;
/// The count of one launch.
const LAUNCH: u64 = 1 << 30;
const CALLS: u64 = LAUNCH - 1;
const LAUNCHES: u64 = CALLS << 30;
/// The mark of a stream that a thread is retiring, and on which no call has begun since. That
/// thread counts as a call.
const CLOSING: u64 = 1 << 60;
/// The mark of a retired stream, and of a slot without a stream: no call begins before
/// [`reopen`](Holds::reopen).
const RETIRED: u64 = 1 << 61;

/// The reason why a stream cannot be retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBy {
    /// A call of a thread, which may be retiring the stream, too.
    Call,
    /// The open window of a launch.
    Window,
    /// Nothing: the stream is retired.
    Nothing,
}

impl Holds {
    /// Makes the word of a slot without a stream.
    pub(crate) fn retired() -> Self {
        Self(AtomicU64::new(RETIRED))
    }

    /// Lets calls begin on the next stream of the slot. The caller is alone: no thread retires the
    /// stream or reopens the slot meanwhile.
    pub(crate) fn reopen(&self) {
        // Release: a call that begins finds the next stream.
        self.0.store(0, Ordering::Release);
    }

    /// Begins a call. Returns `false` if the stream is retired.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & RETIRED == 0 {
            let entered = (word & !CLOSING) + CALL;
            match self.exchange(word, entered) {
                Ok(()) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Ends a call.
    #[inline]
    pub(crate) fn leave(&self) {
        // Release: what the call submitted is before the event that a later retirement records.
        self.0.fetch_sub(CALL, Ordering::Release);
    }

    /// Adds a launch, which has begun during a call, to the count.
    #[inline]
    pub(crate) fn begin_launch(&self) {
        self.0.fetch_add(LAUNCH, Ordering::Relaxed);
    }

    /// Removes a launch that has ended from the count.
    #[inline]
    pub(crate) fn end_launch(&self) {
        // Release: as in `leave`.
        self.0.fetch_sub(LAUNCH, Ordering::Release);
    }

    /// Returns whether the stream is retired.
    #[inline]
    pub(crate) fn is_retired(&self) -> bool {
        self.0.load(Ordering::Acquire) & RETIRED != 0
    }

    /// Begins to retire the stream, which counts as a call; or returns why it cannot be retired.
    pub(crate) fn begin_closing(&self) -> Result<Retirement<'_>, HeldBy> {
        match self.exchange(0, CLOSING + CALL) {
            Ok(()) => Ok(Retirement(self)),
            Err(word) if word & RETIRED != 0 => Err(HeldBy::Nothing),
            Err(word) if word & LAUNCHES != 0 => Err(HeldBy::Window),
            Err(_) => Err(HeldBy::Call),
        }
    }

    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).map(drop)
    }
}

/// An attempt to retire a stream. Dropping it ends the attempt.
#[must_use = "dropping it ends the attempt"]
pub(crate) struct Retirement<'a>(&'a Holds);

impl Retirement<'_> {
    /// Retires the stream; returns `false`, and ends the attempt, if a call has begun since.
    pub(crate) fn close(self) -> bool {
        let is_closed = self.0.exchange(CLOSING + CALL, RETIRED).is_ok();
        if is_closed {
            std::mem::forget(self);
        }
        is_closed
    }
}

impl Drop for Retirement<'_> {
    fn drop(&mut self) {
        // Only the thread that is retiring the stream sets this, one at a time.
        self.0.0.fetch_and(!CLOSING, Ordering::Relaxed);
        self.0.leave();
    }
}

#[cfg(all(test, loom))]
#[path = "holds_loom.rs"]
mod loom_tests;
