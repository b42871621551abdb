//! Planted faults: calls that fail, that do nothing, or that stop half-way; and call counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use crate::abi::Code;
use crate::host::sync::{ignore_poison, lock};

/// The effect of a fault on a call. If several faults meet in one call, it is held
/// first or last, and of the others the one that was planted first is applied.
pub(crate) enum Instead {
    /// Fail with this code.
    Fail(Code),
    /// Report success and do nothing.
    Swallow,
}

/// The faults of a call that has just begun.
#[derive(Default)]
pub(crate) struct Planted {
    pub(crate) instead: Option<Instead>,
    /// Stops the thread when it is dropped, which is after the work of the call.
    pub(crate) after: HoldsAfter,
}

/// Gates at the end of a call.
#[derive(Default)]
pub(crate) struct HoldsAfter(Vec<Arc<Gate>>);

impl Drop for HoldsAfter {
    fn drop(&mut self) {
        self.0.iter().for_each(|gate| gate.stop_here());
    }
}

#[derive(Clone)]
enum Action {
    Fail(Code),
    Swallow,
    Hold(Arc<Gate>),
    HoldAfter(Arc<Gate>),
}

struct Rule {
    /// The function; `None`: any call.
    call: Option<String>,
    /// The number of matching calls until it applies; at least 1.
    countdown: u64,
    action: Action,
}

/// A hook at the start of every driver call. Returns the code that the call fails with, if it
/// fails.
pub(crate) type EntryHook = Box<dyn Fn(&'static str) -> Option<Code> + Send + Sync>;

/// The faults planted in a universe, and counts of its calls.
#[derive(Default)]
pub(crate) struct Faults {
    state: Mutex<FaultState>,
    on_entry: OnceLock<EntryHook>,
}

#[derive(Default)]
struct FaultState {
    rules: Vec<Rule>,
    counts: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// Counts a call, stops it while it is held before its work, and returns its faults: a
    /// replacement of its work, and a hold afterwards.
    pub(crate) fn enter(&self, call: &'static str) -> Planted {
        let mut due = Vec::new();
        {
            let mut state = self.lock();
            *state.counts.entry(call).or_default() += 1;
            state.rules.retain_mut(|rule| {
                if rule.call.as_deref().is_some_and(|name| name != call) {
                    return true;
                }
                rule.countdown -= 1;
                if rule.countdown == 0 {
                    due.push(rule.action.clone());
                }
                rule.countdown > 0
            });
        }
        // Outside of the lock: other threads continue while this one is held.
        let refused = self.on_entry.get().and_then(|hook| hook(call));
        let mut instead = refused.map(Instead::Fail);
        let mut after = HoldsAfter::default();
        for action in due {
            match action {
                Action::Hold(gate) => gate.stop_here(),
                Action::HoldAfter(gate) => after.0.push(gate),
                Action::Fail(code) => instead = instead.or(Some(Instead::Fail(code))),
                Action::Swallow => instead = instead.or(Some(Instead::Swallow)),
            }
        }
        Planted { instead, after }
    }

    /// Sets the hook, unless there is one.
    pub(crate) fn on_entry(&self, hook: EntryHook) -> bool {
        self.on_entry.set(hook).is_ok()
    }

    pub(crate) fn fail(&self, call: Option<&str>, n: u64, code: Code) {
        self.plant(call, n, Action::Fail(code));
    }

    pub(crate) fn swallow(&self, call: &str, n: u64) {
        self.plant(Some(call), n, Action::Swallow);
    }

    pub(crate) fn hold(&self, call: Option<&str>, n: u64) -> Hold {
        let gate = Arc::new(Gate::default());
        self.plant(call, n, Action::Hold(gate.clone()));
        Hold(gate)
    }

    pub(crate) fn hold_after(&self, call: &str, n: u64) -> Hold {
        let gate = Arc::new(Gate::default());
        self.plant(Some(call), n, Action::HoldAfter(gate.clone()));
        Hold(gate)
    }

    pub(crate) fn clear(&self) {
        self.lock().rules.clear();
    }

    pub(crate) fn counts(&self) -> CallCounts {
        CallCounts(self.lock().counts.clone())
    }

    pub(crate) fn reset_counts(&self) {
        self.lock().counts.clear();
    }

    fn plant(&self, call: Option<&str>, n: u64, action: Action) {
        let rule = Rule { call: call.map(str::to_owned), countdown: n.max(1), action };
        self.lock().rules.push(rule);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FaultState> {
        lock(&self.state)
    }
}

/// Stops a thread inside a driver call until it is released, or dropped.
///
/// Made by [`Universe::hold_nth`](crate::Universe::hold_nth), for a hold before the work of the
/// call, and by [`Universe::hold_after_nth`](crate::Universe::hold_after_nth), for one after it.
#[derive(Debug)]
#[must_use = "the call is released when this is dropped"]
pub struct Hold(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    held: bool,
    released: bool,
}

impl Hold {
    /// Waits until a thread has arrived in the call.
    pub fn wait_until_held(&self) {
        let mut state = self.0.lock();
        while !state.held {
            state = ignore_poison(self.0.changed.wait(state));
        }
    }

    /// Returns whether a thread has arrived in the call.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.lock().held
    }

    /// Makes the thread continue.
    pub fn release(&self) {
        self.0.lock().released = true;
        self.0.changed.notify_all();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

impl Gate {
    fn stop_here(&self) {
        let mut state = self.lock();
        state.held = true;
        self.changed.notify_all();
        while !state.released {
            state = ignore_poison(self.changed.wait(state));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, GateState> {
        lock(&self.state)
    }
}

/// The number of calls of each driver function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts(BTreeMap<&'static str, u64>);

impl CallCounts {
    /// Returns the calls of one function, by its symbol: "cuMemAlloc_v2".
    #[must_use]
    pub fn count(&self, call: &str) -> u64 {
        self.0.get(call).copied().unwrap_or(0)
    }

    /// Returns the calls of all functions.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns each function that was called, with its number of calls.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(&call, &count)| (call, count))
    }
}
