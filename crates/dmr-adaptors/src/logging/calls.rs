//! When a call was made, by whom, and which calls may still bring a row of an earlier time.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::per_thread::PerThread;

/// The time of a call, taken once. Until it is dropped, its row is still to come.
///
/// Rows of several threads are put in time order by whoever writes them, who must not write a row
/// while a thread may still bring an earlier one. So each thread has a [`Mark`] that says how
/// early its next row can be.
#[derive(Debug)]
pub(super) struct CallTime {
    ns: u64,
    /// The mark to clear; `None` inside another call, whose mark covers this one too.
    mark: Option<&'static Mark>,
}

impl CallTime {
    /// Reads the clock.
    #[inline]
    pub(super) fn take() -> Self {
        // A thread that is being torn down has no mark: its rows are only likely to be in order.
        let mark = MARKS.own().filter(|mark| mark.is_idle());
        if let Some(mark) = mark {
            mark.earliest_ns.store(UNKNOWN, Ordering::Relaxed);
            // The store has to be made before the clock is read, see `settled_before`.
            compiler_fence(Ordering::SeqCst);
        }
        let ns = now_ns();
        if let Some(mark) = mark {
            mark.earliest_ns.store(ns, Ordering::Relaxed);
        }
        Self { ns, mark }
    }

    /// Wall-clock nanoseconds since the epoch.
    #[inline]
    pub(super) fn ns(&self) -> u64 {
        self.ns
    }
}

impl Drop for CallTime {
    #[inline]
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            mark.earliest_ns.store(IDLE, Ordering::Release);
        }
    }
}

/// While this lives, the calling thread cannot go on because of a full queue: what makes its calls
/// take long is the log itself.
#[derive(Debug)]
pub(super) struct Waiting(Option<&'static Mark>);

impl Waiting {
    pub(super) fn begin() -> Self {
        let mark = MARKS.own();
        if let Some(mark) = mark {
            mark.thread.store(thread_number(), Ordering::Relaxed);
            mark.waits_until_ns.store(FOR_EVER, Ordering::Release);
        }
        Self(mark)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mark) = self.0 {
            // Release: after what the thread has pushed.
            mark.waits_until_ns.store(now_ns(), Ordering::Release);
        }
    }
}

/// What [`settled_before`] answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    /// Every row of a time before this one has been pushed.
    pub(super) before: u64,
    /// Later rows are held up by a call of this thread, which waits for room in its queue.
    pub(super) held_up_by: Option<u64>,
}

/// Before which time every row has been pushed. Answered before the queues are read.
///
/// Why: take a row of time `t`, not pushed when the marks are read, and let `now` be read before
/// them. Its thread stored its mark before it read `t`. If that store is seen, the answer is at
/// most `t`: the mark is cleared only after the push, and whoever sees it cleared sees the push
/// too. If it is not seen, it was made less than [`SLACK_NS`] ago, a thousand times what a store
/// takes to reach another core (and a thread that is descheduled has no stores on the way), so
/// `t` is later than `now` − [`SLACK_NS`].
///
/// A call that has been going on for longer than [`PATIENCE_NS`] no longer counts: its row will
/// stand later in the log than its time, and nobody waits for it. The time that its thread has
/// waited for room in its queue is not its own, up to [`PATIENCE_WITH_ITSELF_NS`].
pub(super) fn settled_before() -> Settled {
    let now = now_ns();
    let counts_from = now.saturating_sub(PATIENCE_NS);
    let mut settled = Settled { before: now.saturating_sub(SLACK_NS), held_up_by: None };
    for mark in MARKS.iter() {
        let earliest = mark.earliest_ns.load(Ordering::Acquire);
        let waits_until = mark.waits_until_ns.load(Ordering::Acquire);
        let most = earliest.saturating_add(PATIENCE_WITH_ITSELF_NS);
        // A call that is about to read the clock is the earliest that counts.
        let is_given_up = waits_until.clamp(earliest, most) < counts_from;
        let before = if is_given_up { counts_from } else { earliest };
        if before < settled.before {
            let waits = waits_until == FOR_EVER;
            let held_up_by = waits.then(|| mark.thread.load(Ordering::Relaxed));
            settled = Settled { before, held_up_by };
        }
    }
    settled
}

/// What a store surely takes less than.
const SLACK_NS: u64 = 1_000_000;
/// How long the rows of other threads wait for that of a slow call.
const PATIENCE_NS: u64 = 100_000_000;
/// How long for one that the log itself makes slow.
const PATIENCE_WITH_ITSELF_NS: u64 = 10_000_000_000;

/// Wall-clock nanoseconds since the epoch, from a monotonic clock.
#[inline]
pub(super) fn now_ns() -> u64 {
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, epoch_ns) = START.get_or_init(|| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        (Instant::now(), nanoseconds(since_epoch))
    });
    epoch_ns + nanoseconds(start.elapsed())
}

/// 64 bits are enough until the year 2554.
#[inline]
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

/// The calling thread: a number that no other thread of the process has had, from 1.
#[inline]
pub(super) fn thread_number() -> u64 {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        // Without a destructor, so that it can be read until the thread is gone.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    match NUMBER.get() {
        0 => {
            let number = TAKEN.fetch_add(1, Ordering::Relaxed) + 1;
            NUMBER.set(number);
            number
        }
        number => number,
    }
}

/// The marks of all threads.
static MARKS: PerThread<Mark> = PerThread::new();

/// What is told of a thread.
#[derive(Debug)]
struct Mark {
    /// How early its next row can be: [`IDLE`], or a bound for the row of the outermost call in
    /// progress.
    earliest_ns: AtomicU64,
    /// Until when it last waited for room in a queue: [`FOR_EVER`] while it does.
    waits_until_ns: AtomicU64,
    /// Its number, if it has ever waited.
    thread: AtomicU64,
}

/// No call is in progress.
const IDLE: u64 = u64::MAX;
/// A call is in progress, and has not read the clock yet.
const UNKNOWN: u64 = 0;
const FOR_EVER: u64 = u64::MAX;

impl Mark {
    fn is_idle(&self) -> bool {
        self.earliest_ns.load(Ordering::Relaxed) == IDLE
    }
}

impl Default for Mark {
    fn default() -> Self {
        let (waits_until_ns, thread) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { earliest_ns: AtomicU64::new(IDLE), waits_until_ns, thread }
    }
}

#[cfg(test)]
mod tests {
    use dmr_core::sync::lock;

    use super::*;

    /// The tests of this module watch the marks of the whole process.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// Unless it was begun so long ago that it is given up: tests are interrupted, too.
    fn is_held_back(settled: Settled, begun_ns: u64) -> bool {
        settled.before <= begun_ns || now_ns() > begun_ns + PATIENCE_NS
    }

    #[test]
    fn a_call_in_progress_holds_back_what_is_later_and_only_for_so_long() {
        let _alone = lock(&ALONE);
        let call = CallTime::take();
        let inside = CallTime::take();
        drop(inside);
        while now_ns() < call.ns() + 5 * SLACK_NS {
            assert!(is_held_back(settled_before(), call.ns()));
        }
        while now_ns() < call.ns() + PATIENCE_NS + SLACK_NS {
            std::thread::sleep(Duration::from_millis(5));
        }
        let given_up = settled_before().before;
        assert!(given_up > call.ns());
        assert!(given_up <= now_ns() - PATIENCE_NS, "calls inside it may be younger");
        drop(call);
        let now = now_ns();
        assert!(settled_before().before >= now - SLACK_NS);
    }

    #[test]
    fn what_a_call_waits_for_room_is_not_held_against_it() {
        let _alone = lock(&ALONE);
        let call = CallTime::take();
        let sleep = || std::thread::sleep(Duration::from_nanos(PATIENCE_NS + PATIENCE_NS / 2));
        let waiting = Waiting::begin();
        sleep();
        let while_it_waits = settled_before();
        let going_on = now_ns();
        drop(waiting);
        let afterwards = settled_before();
        assert!(afterwards.before <= call.ns() || now_ns() > going_on + PATIENCE_NS);
        sleep();
        let later = settled_before();
        assert_eq!(while_it_waits.before, call.ns());
        assert_eq!(while_it_waits.held_up_by, Some(thread_number()));
        assert_eq!(afterwards.held_up_by, None);
        assert!(later.before > call.ns());
    }

    #[test]
    fn every_one_of_many_threads_has_a_mark() {
        let _alone = lock(&ALONE);
        let all_there = std::sync::Barrier::new(100);
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let call = CallTime::take();
                    assert!(call.mark.is_some());
                    all_there.wait();
                    assert!(is_held_back(settled_before(), call.ns()));
                    all_there.wait();
                });
            }
        });
        assert!(MARKS.iter().all(Mark::is_idle));
    }
}
