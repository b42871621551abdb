//! The thread that looks at the events that futures wait for: one for the process, however many
//! wait.
//!
//! It queries the first event of each stream that is waited for; the events of a stream are done in
//! order. It sleeps for an eighth of the time that the youngest of these waits has taken so far,
//! within
//! [`PAUSES`]: a future is late by an eighth of its own time at most, and by a few microseconds.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use dmr_core::at_exit::{self, AtExit};
use dmr_core::process::PerProcess;
use dmr_core::sync::{ignore_poison, lock, try_lock};

use crate::wait::Wait;

/// The time between two looks.
const PAUSES: RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_micros(500);

/// The part of a wait's time that the thread sleeps before it looks again.
const PAUSE_DIVISOR: u32 = 8;

/// The number of waits of a stream from which on those that have ended are removed from the middle.
const LEAST_TO_SWEEP: usize = 64;

/// The time for which the end of the process waits for a look.
const PATIENCE_AT_EXIT: Duration = Duration::from_secs(1);

/// Each process starts its own thread: a forked child has none.
static WATCHER: PerProcess<OnceLock<Arc<Watcher>>> = PerProcess::new(OnceLock::new);

/// Passes a wait to the thread, which is started by the first one.
pub(crate) fn watch(wait: &Arc<Wait>) {
    let watcher = WATCHER.get().get_or_init(|| {
        let watcher = Arc::new(Watcher::default());
        let hook: Weak<Watcher> = Arc::downgrade(&watcher);
        at_exit::register(hook);
        // The driver was initialised before, and may have registered handlers since the first hook.
        at_exit::run_before_earlier_handlers();
        watcher
    });
    watcher.push(wait);
}

#[derive(Default)]
struct Watcher {
    arrived: Mutex<Vec<Arc<Wait>>>,
    /// Notified when a wait has arrived, and when the process ends.
    changed: Condvar,
    /// Written under the lock of `arrived`.
    is_running: AtomicBool,
    /// The process is ending: the driver is not called any more.
    is_ending: AtomicBool,
    /// Held by the thread while it calls the driver.
    looking: Mutex<()>,
}

/// The waits for one stream, oldest first. Never empty.
struct Queue {
    waits: VecDeque<Arc<Wait>>,
    /// The number of waits at which those that have ended are removed.
    sweep_at: usize,
}

impl Watcher {
    fn push(self: &Arc<Self>, wait: &Arc<Wait>) {
        let mut arrived = lock(&self.arrived);
        if !self.is_running.load(Ordering::Relaxed) && !self.start() {
            return;
        }
        wait.set_watched(true);
        arrived.push(Arc::clone(wait));
        drop(arrived);
        self.changed.notify_one();
    }

    /// Starts the thread, under the lock of `arrived`. Returns `false` if it cannot be started, and
    /// at the end of the process.
    fn start(self: &Arc<Self>) -> bool {
        if self.is_ending.load(Ordering::SeqCst) {
            return false;
        }
        let watcher = Arc::clone(self);
        let thread = std::thread::Builder::new().name("dmr-watcher".to_owned());
        let run = move || {
            sleep_precisely();
            watcher.run();
        };
        let is_running = thread.spawn(run).is_ok();
        self.is_running.store(is_running, Ordering::Release);
        is_running
    }

    fn run(&self) {
        let mut running = Running { watcher: self, queues: Vec::new() };
        let mut pause = None;
        while self.receive(&mut running.queues, pause) {
            let looking = lock(&self.looking);
            if self.is_ending.load(Ordering::SeqCst) {
                continue;
            }
            running.queues.retain_mut(Queue::look);
            drop(looking);
            pause = running.queues.iter().map(Queue::age).min().map(pause_after);
        }
    }

    /// Sleeps for `pause`, or until a wait arrives if it is `None`, and adds the waits that have
    /// arrived. Returns `false` at the end of the process.
    fn receive(&self, queues: &mut Vec<Queue>, pause: Option<Duration>) -> bool {
        let mut arrived = lock(&self.arrived);
        if arrived.is_empty() && !self.is_ending.load(Ordering::SeqCst) {
            arrived = match pause {
                None => ignore_poison(self.changed.wait(arrived)),
                Some(pause) => ignore_poison(self.changed.wait_timeout(arrived, pause)).0,
            };
        }
        let is_ending = self.is_ending.load(Ordering::SeqCst);
        let waits = std::mem::take(&mut *arrived);
        drop(arrived);
        for wait in waits {
            match queues.iter_mut().find(|queue| queue.waits[0].is_of_stream(&wait)) {
                Some(queue) => queue.push(wait),
                None => queues.push(Queue { waits: [wait].into(), sweep_at: LEAST_TO_SWEEP }),
            }
        }
        !is_ending
    }
}

/// The waits of the thread while it runs. However it ends, also by a panic of an executor's code,
/// what waits is woken and looks itself from then on.
struct Running<'w> {
    watcher: &'w Watcher,
    queues: Vec<Queue>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let arrived = {
            let mut arrived = lock(&self.watcher.arrived);
            // Under the lock: no wait arrives after it, unless another thread is started.
            self.watcher.is_running.store(false, Ordering::Release);
            std::mem::take(&mut *arrived)
        };
        // Without the lock: a waker may begin another wait.
        for wait in self.queues.iter().flat_map(|queue| &queue.waits).chain(&arrived) {
            wait.set_watched(false);
            wait.wake();
        }
    }
}

impl AtExit for Watcher {
    /// Makes the thread call the driver no more, which may be shut down next.
    fn at_exit(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.changed.notify_one();
        let until = Instant::now() + PATIENCE_AT_EXIT;
        // A later look finds that the process is ending.
        while try_lock(&self.looking).is_none() && Instant::now() < until {
            std::thread::sleep(*PAUSES.start());
        }
    }
}

impl Queue {
    fn push(&mut self, wait: Arc<Wait>) {
        self.waits.push_back(wait);
        if self.waits.len() >= self.sweep_at {
            // Waits that were dropped behind a first one that is not done.
            let mut is_first = true;
            self.waits.retain(|wait| std::mem::take(&mut is_first) || !wait.has_ended());
            self.sweep_at = LEAST_TO_SWEEP.max(2 * self.waits.len());
        }
    }

    /// Looks at the waits in order, and removes those that have ended. Returns whether any is left.
    fn look(&mut self) -> bool {
        while let Some(first) = self.waits.front() {
            if !first.look() {
                return true;
            }
            self.waits.pop_front();
        }
        false
    }

    /// Returns the time that the first wait has taken so far.
    fn age(&self) -> Duration {
        self.waits[0].since().elapsed()
    }
}

/// Makes the sleeps of the calling thread end when they should: Linux adds 50 us by default.
fn sleep_precisely() {
    #[cfg(target_os = "linux")]
    {
        const NANOSECOND: libc::c_ulong = 1;
        // SAFETY: sets a value of the calling thread. If it fails, futures are later by 50 us.
        let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECOND) };
    }
}

/// Returns the time until the next look at waits of which the youngest has taken `age`.
fn pause_after(age: Duration) -> Duration {
    (age / PAUSE_DIVISOR).clamp(*PAUSES.start(), *PAUSES.end())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_leaves_no_watcher_marked_as_running() {
        let watcher = Watcher::default();
        watcher.is_running.store(true, Ordering::Release);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _running = Running { watcher: &watcher, queues: Vec::new() };
            panic!("as code of an executor may");
        }));
        assert!(panicked.is_err());
        assert!(!watcher.is_running.load(Ordering::Acquire));
    }
}
