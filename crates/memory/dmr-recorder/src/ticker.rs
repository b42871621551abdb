//! The ticks: after each of them, every thread reads the clock for its next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::gate;

/// The time between two ticks, if the thread is scheduled in time.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// The thread that makes the ticks. It ends when this is dropped.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    started: Instant,
    /// Nanoseconds from the start to the last tick.
    last_ns: AtomicU64,
    /// The longest time between two ticks so far.
    longest_ns: AtomicU64,
}

impl Ticker {
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            started: Instant::now(),
            last_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let builder = thread::Builder::new().name("dmr ticks".to_owned());
        let thread = builder.spawn(move || of_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the longest time for which there was no tick, in nanoseconds: by as much an event
    /// may be later than its time.
    pub(crate) fn longest_ns(&self) -> u64 {
        let longest = self.shared.longest_ns.load(Ordering::Relaxed);
        longest.max(self.shared.since_last_ns()).max(TICK.as_nanos() as u64)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // A panic of the thread has been reported by the panic hook.
        let _ = self.thread.take().map(|thread| {
            thread.thread().unpark();
            thread.join()
        });
    }
}

impl Shared {
    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            thread::park_timeout(TICK);
            let since = self.since_last_ns();
            gate::advance();
            self.last_ns.fetch_add(since, Ordering::Relaxed);
            self.longest_ns.fetch_max(since, Ordering::Relaxed);
        }
    }

    fn since_last_ns(&self) -> u64 {
        let since_start = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        since_start.saturating_sub(self.last_ns.load(Ordering::Relaxed))
    }
}
