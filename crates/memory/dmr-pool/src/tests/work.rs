//! Counts the chunks that are looked at under one hold of an arena's lock, and wake-ups. For tests.

use std::cell::Cell;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
    static LONGEST: Cell<u64> = const { Cell::new(0) };
    static WAKES: Cell<u64> = const { Cell::new(0) };
}

/// Counts one look at the record of a chunk.
pub(crate) fn look() {
    LOOKS.set(LOOKS.get() + 1);
}

/// Starts counting: an arena was locked.
pub(crate) fn locked() {
    LOOKS.set(0);
}

/// Ends counting: the arena is about to be unlocked.
pub(crate) fn unlocks() {
    LONGEST.set(LONGEST.get().max(LOOKS.take()));
}

/// Returns the most looks under one hold by this thread while `act` ran.
pub(crate) fn longest_hold(act: impl FnOnce()) -> u64 {
    LONGEST.set(0);
    act();
    LONGEST.get()
}

/// Counts a call that wakes threads.
pub(crate) fn wake() {
    WAKES.set(WAKES.get() + 1);
}

/// Returns how often this thread has woken others while `act` ran.
pub(crate) fn wakes(act: impl FnOnce()) -> u64 {
    let before = WAKES.get();
    act();
    WAKES.get() - before
}
