//! The clock of the events: the processor's cycle counter where it runs at one rate, and the
//! operating system's monotonic clock elsewhere.
//!
//! A reading of the cycle counter is a number of ticks. When a recording is written, ticks become
//! nanoseconds by two [`Anchor`]s, at which both clocks were read: at the start and at the end. So
//! nothing is calibrated beforehand, and the rate is as exact as the distance of the two is long.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The time stamp counter of x86-64, which runs at one rate on all cores.
    #[cfg(target_arch = "x86_64")]
    CycleCounter,
    /// Nanoseconds of the monotonic clock.
    System,
}

/// Two clocks, read at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    ticks: u64,
    /// Nanoseconds of the monotonic clock.
    ns: u64,
    /// The most nanoseconds that the two readings may differ.
    error_ns: u64,
}

/// Converts ticks between two anchors, and a little beyond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    from: Anchor,
    to: Anchor,
    /// Nanoseconds of the monotonic clock that are time 0.
    zero_ns: u64,
}

impl Clock {
    /// Returns the best clock of this machine.
    pub(crate) fn of_machine() -> Self {
        #[cfg(target_arch = "x86_64")]
        if has_invariant_counter() {
            return Self::CycleCounter;
        }
        Self::System
    }

    /// Returns its name in recordings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::CycleCounter => "time stamp counter",
            Self::System => "monotonic clock",
        }
    }

    /// Reads it.
    #[inline(always)]
    pub(crate) fn ticks(self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::CycleCounter => read_counter(),
            Self::System => monotonic_ns(),
        }
    }

    /// Reads it together with the monotonic clock: the best of a few attempts.
    pub(crate) fn anchor(self) -> Anchor {
        let read = |_| {
            let began = monotonic_ns();
            let ticks = self.ticks();
            let ended = monotonic_ns();
            let error_ns = (ended - began).div_ceil(2).max(1);
            Anchor { ticks, ns: began + (ended - began) / 2, error_ns }
        };
        (0..8).map(read).min_by_key(|anchor| anchor.error_ns).unwrap_or_else(|| read(0))
    }
}

impl Times {
    pub(crate) fn new(from: Anchor, to: Anchor, zero_ns: u64) -> Self {
        Self { from, to, zero_ns }
    }

    /// Returns the nanoseconds since time 0 of a tick; 0 for one before that.
    pub(crate) fn ns(&self, ticks: u64) -> u64 {
        let Self { from, to, zero_ns } = *self;
        let ns = i128::from(to.ns - from.ns);
        let per = i128::from(to.ticks.saturating_sub(from.ticks)).max(1);
        let since = i128::from(ticks) - i128::from(from.ticks);
        let at = i128::from(from.ns) + since * ns / per - i128::from(zero_ns);
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    /// Returns the largest error of the rate, in parts per billion.
    pub(crate) fn error_ppb(&self) -> u64 {
        let elapsed = (self.to.ns - self.from.ns).max(1);
        (self.from.error_ns + self.to.error_ns).saturating_mul(1_000_000_000) / elapsed
    }
}

impl Anchor {
    /// Returns the nanoseconds of the monotonic clock.
    pub(crate) const fn ns(&self) -> u64 {
        self.ns
    }

    /// Returns the most nanoseconds that a time may be wrong because of the anchor.
    pub(crate) const fn error_ns(&self) -> u64 {
        self.error_ns
    }
}

/// Returns wall-clock nanoseconds since 1970.
pub(crate) fn epoch_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed();
    since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
}

/// Reads the time stamp counter. Other instructions may be executed before or after it: a few
/// nanoseconds.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code, reason = "an instruction")]
fn read_counter() -> u64 {
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns whether the counter runs at one rate, whatever the processor's clock does.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "an instruction")]
#[allow(unused_unsafe, reason = "safe in newer versions of Rust")]
fn has_invariant_counter() -> bool {
    const INVARIANT: u32 = 1 << 8;
    // SAFETY: every x86-64 processor has this instruction.
    let highest = unsafe { std::arch::x86_64::__cpuid(0x8000_0000) }.eax;
    // SAFETY: as above.
    highest >= 0x8000_0007
        && unsafe { std::arch::x86_64::__cpuid(0x8000_0007) }.edx & INVARIANT != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ticks_become_the_nanoseconds_that_the_system_measures_within_the_stated_error() {
        let clock = Clock::of_machine();
        let from = clock.anchor();
        std::thread::sleep(Duration::from_millis(2));
        let began = Instant::now();
        let first = clock.ticks();
        std::thread::sleep(Duration::from_millis(20));
        let last = clock.ticks();
        let elapsed = began.elapsed().as_nanos() as u64;
        std::thread::sleep(Duration::from_millis(2));
        let times = Times::new(from, clock.anchor(), from.ns());
        let measured = times.ns(last) - times.ns(first);
        // The readings of `Instant` are outside of those of the ticks, and may be interrupted.
        let error = elapsed * times.error_ppb() / 1_000_000_000 + 2;
        assert!(measured <= elapsed + error, "{measured} of {elapsed}, error {error}");
        assert!(measured + 2_000_000 >= elapsed, "{measured} of {elapsed}");
        assert!(times.error_ppb() < 1_000_000, "{} ppb", times.error_ppb());
    }

    #[test]
    fn a_tick_before_the_start_is_time_zero() {
        let clock = Clock::System;
        let from = clock.anchor();
        let times = Times::new(from, clock.anchor(), from.ns());
        assert_eq!(times.ns(0), 0);
    }
}
