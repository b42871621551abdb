//! The thread that drops owners whose memory is not used any more: one for the process.
//!
//! An owner is code of another library, which may take its time, wait for a lock or call this
//! library. So it is dropped neither on a thread of the driver nor on the watcher of the streams,
//! which only wakes this one. An owner that blocks holds up those behind it, and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use dmr_core::at_exit::{self, AtExit};
use dmr_core::panics;
use dmr_core::process::PerProcess;
use dmr_core::sync::{ignore_poison, lock, try_lock};

/// The time until memory is looked at again whose event could not be queried.
const RETRY: Duration = Duration::from_millis(10);

/// The time for which the end of the process waits for a release.
const PATIENCE_AT_EXIT: Duration = Duration::from_secs(1);

const POLL: Duration = Duration::from_micros(200);

/// Each process starts its own thread: a forked child has none, and releases nothing of its parent.
static RELEASER: PerProcess<OnceLock<Arc<Releaser>>> = PerProcess::new(OnceLock::new);

/// Memory that waits for the device.
pub(crate) trait Releases: Send + Sync {
    /// Releases what is not used any more. Returns whether to look again without being woken.
    fn release(&self) -> bool;
}

/// Has the thread call `releases`, soon. Does nothing at the end of the process.
pub(crate) fn wake(releases: Arc<dyn Releases>) {
    let releaser = RELEASER.get().get_or_init(|| {
        let releaser = Arc::new(Releaser::default());
        let hook: Weak<Releaser> = Arc::downgrade(&releaser);
        at_exit::register(hook);
        releaser
    });
    releaser.push(releases);
}

#[derive(Default)]
struct Releaser {
    state: Mutex<State>,
    /// Notified when something was woken.
    changed: Condvar,
    /// The process is ending: nothing is released any more.
    is_ending: AtomicBool,
    /// Held by the thread while it releases.
    releasing: Mutex<()>,
}

#[derive(Default)]
struct State {
    woken: Vec<Arc<dyn Releases>>,
    is_running: bool,
}

impl Releaser {
    fn push(self: &Arc<Self>, releases: Arc<dyn Releases>) {
        if self.is_ending.load(Ordering::SeqCst) {
            return;
        }
        let mut state = lock(&self.state);
        state.woken.push(releases);
        if !state.is_running {
            let releaser = Arc::clone(self);
            let thread = std::thread::Builder::new().name("dmr-releaser".to_owned());
            // If it cannot be started, the next one that is woken tries again, and a reap releases.
            state.is_running = thread.spawn(move || releaser.run()).is_ok();
        }
        drop(state);
        self.changed.notify_one();
    }

    fn run(&self) {
        let mut again = Vec::new();
        loop {
            let mut state = lock(&self.state);
            while state.woken.is_empty() {
                state = match again.is_empty() {
                    true => ignore_poison(self.changed.wait(state)),
                    false => {
                        let waited = ignore_poison(self.changed.wait_timeout(state, RETRY));
                        state = waited.0;
                        break;
                    }
                };
            }
            again.append(&mut state.woken);
            drop(state);
            let releasing = lock(&self.releasing);
            if self.is_ending.load(Ordering::SeqCst) {
                return;
            }
            again.retain(|releases| panics::catch(|| releases.release()).unwrap_or(false));
            drop(releasing);
        }
    }
}

impl AtExit for Releaser {
    /// Makes the thread release no more: what an owner needs may be gone next.
    fn at_exit(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        let until = Instant::now() + PATIENCE_AT_EXIT;
        while try_lock(&self.releasing).is_none() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
    }
}
