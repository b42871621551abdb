//! Counts the driver calls that a step makes, and holds one or makes one fail, at the start of the
//! call.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use dmr_core::sync::{ignore_poison, lock};

use crate::program::{Call, Fail, Hold};

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// The plan for the driver calls of one step, and its progress.
#[derive(Debug)]
struct Watch {
    /// `true` if the calls are the library's, and not the player's own.
    is_library: bool,
    hold: Option<(Hold, Arc<Gate>)>,
    fail: Option<Fail>,
    /// The call that failed.
    failed: Option<&'static str>,
    /// The distinct calls of the library in this step, and how often it has made each.
    seen: Vec<Call>,
}

/// Watches the calling thread's driver calls until [`end`].
pub(crate) fn begin(hold: Option<(Hold, Arc<Gate>)>, fail: Option<Fail>) {
    let watch = Watch { is_library: false, hold, fail, failed: None, seen: Vec::new() };
    WATCH.set(Some(watch));
}

/// Stops watching. Returns the call that was made to fail.
pub(crate) fn end() -> Option<&'static str> {
    WATCH.take().and_then(|ended| ended.failed)
}

/// Returns the call of this step that was made to fail, if any was so far.
pub(crate) fn failed() -> Option<&'static str> {
    WATCH.with_borrow(|watch| watch.as_ref().and_then(|watch| watch.failed))
}

/// Returns whether this step has made one of these calls so far.
pub(crate) fn seen(calls: &[&str]) -> bool {
    WATCH.with_borrow(|watch| {
        watch.as_ref().is_some_and(|watch| watch.seen.iter().any(|call| calls.contains(&call.name)))
    })
}

/// Executes a call of the library, whose driver calls count.
pub(crate) fn library<T>(call: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            set(false);
        }
    }
    set(true);
    let _off = Off;
    call()
}

fn set(is_library: bool) {
    WATCH.with_borrow_mut(|watch| {
        if let Some(watch) = watch {
            watch.is_library = is_library;
        }
    });
}

/// The hook of every driver call ([`Universe::on_entry`](dmr_sim::Universe::on_entry)). Returns the
/// code that the call fails with, if it must fail.
pub(crate) fn on_entry(call: &'static str) -> Option<i32> {
    let found = WATCH.try_with(|watch| {
        let mut watch = watch.try_borrow_mut().ok()?;
        let watch = watch.as_mut().filter(|watch| watch.is_library)?;
        let this = match watch.seen.iter_mut().find(|seen| seen.name == call) {
            Some(seen) => {
                seen.nth += 1;
                *seen
            }
            None => {
                let first = Call { name: call, nth: 1 };
                watch.seen.push(first);
                first
            }
        };
        let fails = watch.fail.filter(|fail| fail.call == this).map(|fail| fail.code);
        if fails.is_some() {
            watch.failed = Some(call);
        }
        let gate = watch.hold.as_ref().filter(|(hold, _)| hold.call == this);
        Some((fails, gate.map(|(_, gate)| Arc::clone(gate))))
    });
    let (fails, gate) = found.ok().flatten()?;
    if let Some(gate) = gate {
        gate.stop(call);
    }
    fails
}

/// A gate that holds a thread in a driver call, with the state of the step.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct GateState {
    /// The call in which the thread is held.
    pub(crate) held_in: Option<&'static str>,
    /// The thread may continue, or is not held at all.
    pub(crate) is_open: bool,
    /// The step is over.
    pub(crate) is_done: bool,
}

impl Gate {
    fn stop(&self, call: &'static str) {
        let mut state = self.lock();
        if state.is_open {
            return;
        }
        state.held_in = Some(call);
        self.changed.notify_all();
        while !state.is_open {
            state = ignore_poison(self.changed.wait(state));
        }
        state.held_in = None;
    }

    /// Makes the thread continue.
    pub(crate) fn open(&self) {
        self.lock().is_open = true;
        self.changed.notify_all();
    }

    /// Records that the step is over.
    pub(crate) fn done(&self) {
        self.lock().is_done = true;
        self.changed.notify_all();
    }

    /// Waits until the thread is held or done, or until `at_most` is over.
    pub(crate) fn wait(&self, at_most: std::time::Duration) -> MutexGuard<'_, GateState> {
        let is_under_way =
            |state: &mut GateState| !state.is_done && (state.held_in.is_none() || state.is_open);
        let waited = self.changed.wait_timeout_while(self.lock(), at_most, is_under_way);
        ignore_poison(waited).0
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        lock(&self.state)
    }
}
