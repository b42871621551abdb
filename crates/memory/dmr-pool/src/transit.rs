//! Memory in the hands of threads: out of the arenas, or not yet in one, where no search finds it.
//!
//! A thread opens a [`Hand`] before it acquires memory that other threads could find, calls
//! upstream or the driver with no lock held, and closes the hand when the memory is in a block, in
//! an arena or upstream. A search that has found nothing may have missed memory in the hand of
//! another thread. So before a thread refuses an allocation, it waits until all hands of other
//! threads that are open then are closed, and searches again if any that was closed since the
//! search began had held memory.
//!
//! # How a wait ends
//!
//! A hand is closed when its guard is dropped: on success, on errors and when a panic unwinds. A
//! thread that has a hand of the same pool open itself does not wait. That happens where upstream
//! calls the pool, as a failure callback does. Callbacks may also call other pools, whose threads
//! may be in callbacks that call this one: a thread does not wait if one of those that it would
//! wait for waits for it ([`Waiting`]). So waits form no cycle, and a wait ends when the driver
//! calls of others have returned. No time limit ends it.

use std::time::{Duration, Instant};

use dmr_core::sync::ignore_poison;
use dmr_core::waits;

use crate::sync::{Condvar, Mutex, ThreadId, current, lock};

/// The open hands of a pool's threads.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    hands: Mutex<Hands>,
    closed: Condvar,
}

#[derive(Debug, Default)]
struct Hands {
    /// Threads that wait for a hand to be closed.
    waiting: usize,
    open: Vec<Open>,
    /// The number of the next hand.
    next: u64,
    searches: Vec<Searching>,
    /// The number of the next search.
    next_search: u64,
}

#[derive(Debug)]
struct Open {
    number: u64,
    thread: ThreadId,
    holds_memory: bool,
}

#[derive(Debug)]
struct Searching {
    number: u64,
    thread: ThreadId,
    /// A hand of another thread that held memory was closed since the search began.
    may_have_missed: bool,
}

/// A hand of the thread that opened it. Closed when dropped.
#[derive(Debug)]
#[must_use = "the hand is closed when this is dropped"]
pub(crate) struct Hand<'t> {
    transit: &'t Transit,
    number: u64,
}

/// A search of a thread for memory. Ended when dropped.
#[derive(Debug)]
#[must_use = "the search is ended when this is dropped"]
pub(crate) struct Search<'t> {
    transit: &'t Transit,
    number: u64,
}

impl Transit {
    /// Opens a hand of the calling thread. Call it before memory is acquired that other threads
    /// could find, so that a search that misses the memory finds the hand open.
    pub(crate) fn open(&self) -> Hand<'_> {
        let mut hands = lock(&self.hands);
        let number = hands.next;
        hands.next += 1;
        hands.open.push(Open { number, thread: current().id(), holds_memory: false });
        Hand { transit: self, number }
    }

    /// Begins a search of the calling thread.
    pub(crate) fn search(&self) -> Search<'_> {
        let mut hands = lock(&self.hands);
        let number = hands.next_search;
        hands.next_search += 1;
        hands.searches.push(Searching { number, thread: current().id(), may_have_missed: false });
        Search { transit: self, number }
    }
}

impl Search<'_> {
    /// Returns whether the search may have missed memory: a hand of another thread that held some
    /// was closed since it began. Waits first until all hands that other threads have open now are
    /// closed, unless the calling thread has one open itself. Returns `false` at the thread's
    /// [deadline](waits).
    pub(crate) fn may_have_missed(&self) -> bool {
        let me = current().id();
        let mut hands = lock(&self.transit.hands);
        let is_mine = |hand: &Open| hand.thread == me;
        if !hands.open.iter().any(is_mine) {
            let now = hands.next;
            let owners = |hands: &Hands| {
                let older = hands.open.iter().filter(|hand| hand.number < now);
                older.map(|hand| hand.thread).collect::<Vec<_>>()
            };
            // Only hands that are open now count: memory in a hand that opens later was free while
            // this search ran, or comes out of a hand that counts. So a wait ends, however many
            // hands are opened meanwhile.
            while let Some(_waiting) = Waiting::begin(me, owners(&hands)) {
                let left = match waits::deadline() {
                    Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                    None => Duration::MAX,
                };
                // The other thread may wait for the device, in upstream.
                if left.is_zero() {
                    return false;
                }
                hands.waiting += 1;
                hands = match left {
                    Duration::MAX => ignore_poison(self.transit.closed.wait(hands)),
                    left => ignore_poison(self.transit.closed.wait_timeout(hands, left)).0,
                };
                hands.waiting -= 1;
            }
        }
        let own = hands.searches.iter().find(|search| search.number == self.number);
        own.is_some_and(|search| search.may_have_missed)
    }
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        lock(&self.transit.hands).searches.retain(|search| search.number != self.number);
    }
}

/// The threads that wait, for hands of any pool of the process.
#[derive(Debug, Default)]
struct Waits(Mutex<Vec<Wait>>);

#[derive(Debug)]
struct Wait {
    thread: ThreadId,
    /// The owners of the hands that it waits for.
    owners: Vec<ThreadId>,
}

impl Waits {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

/// Returns the threads of the process that wait for hands of a pool.
#[cfg(not(loom))]
fn waits() -> &'static Waits {
    static WAITS: Waits = Waits::new();
    &WAITS
}

/// Returns the threads of the model that wait for hands of a pool.
#[cfg(loom)]
fn waits() -> &'static Waits {
    loom::lazy_static! {
        static ref WAITS: Waits = Waits::default();
    }
    &WAITS
}

/// A thread that waits, until this is dropped.
#[derive(Debug)]
struct Waiting(ThreadId);

impl Waiting {
    /// Notes that `thread` is about to wait for `owners`. `None` if there is none, or if it would
    /// wait for itself: one of them waits for it, or for a thread that does.
    fn begin(thread: ThreadId, owners: Vec<ThreadId>) -> Option<Self> {
        // One lock for all pools, from the look at the graph to the new edge: of two threads that
        // are about to wait for each other, the second sees the first.
        let mut waits = lock(&waits().0);
        let mut reached = owners.clone();
        let mut next = 0;
        while let Some(&owner) = reached.get(next) {
            if owner == thread {
                return None;
            }
            if let Some(wait) = waits.iter().find(|wait| wait.thread == owner) {
                let is_new = |owner: &&ThreadId| !reached.contains(owner);
                let further: Vec<_> = wait.owners.iter().filter(is_new).copied().collect();
                reached.extend(further);
            }
            next += 1;
        }
        (!owners.is_empty()).then(|| {
            waits.push(Wait { thread, owners });
            Self(thread)
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&waits().0).retain(|wait| wait.thread != self.0);
    }
}

impl Hand<'_> {
    /// Notes that the hand holds memory: a search may have missed it from now on.
    pub(crate) fn hold(&self) {
        self.set(true);
    }

    /// Closes the hand without memory in it: the memory has become a block.
    pub(crate) fn spend(self) {
        self.set(false);
    }

    fn set(&self, holds_memory: bool) {
        let mut hands = lock(&self.transit.hands);
        if let Some(open) = hands.open.iter_mut().find(|open| open.number == self.number) {
            open.holds_memory = holds_memory;
        }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let mut hands = lock(&self.transit.hands);
        let at = hands.open.iter().position(|open| open.number == self.number);
        if let Some(closed) = at.map(|at| hands.open.swap_remove(at)).filter(|it| it.holds_memory) {
            // The memory is where a search finds it now, but one that is under way may be past that
            // place. A thread's own hand hides nothing from its own search.
            for search in &mut hands.searches {
                search.may_have_missed |= search.thread != closed.thread;
            }
        }
        let is_waited_for = hands.waiting > 0;
        drop(hands);
        if is_waited_for {
            #[cfg(test)]
            crate::tests::work::wake();
            self.transit.closed.notify_all();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    //! `cargo xtask loom`.

    use loom::sync::Arc;
    use loom::thread;

    use super::Transit;
    use crate::sync::{Mutex, lock};

    /// Free memory that threads search, and their hands.
    #[derive(Default)]
    struct Model {
        transit: Transit,
        free: Mutex<u32>,
    }

    impl Model {
        /// Acquires what is free, calls the driver, and releases it.
        fn acquire_and_release(&self) {
            let hand = self.transit.open();
            let acquired = std::mem::take(&mut *lock(&self.free));
            if acquired > 0 {
                hand.hold();
            }
            thread::yield_now();
            *lock(&self.free) += acquired;
        }

        /// Acquires one; returns `false` to refuse.
        fn acquire(&self) -> bool {
            loop {
                let search = self.transit.search();
                let mut free = lock(&self.free);
                if *free > 0 {
                    *free -= 1;
                    return true;
                }
                drop(free);
                if !search.may_have_missed() {
                    return false;
                }
            }
        }
    }

    #[test]
    fn loom_memory_in_a_hand_is_not_refused() {
        loom::model(|| {
            let model = Arc::new(Model { free: Mutex::new(1), ..Model::default() });
            let other = thread::spawn({
                let model = Arc::clone(&model);
                move || model.acquire_and_release()
            });
            assert!(model.acquire(), "the memory was in a hand");
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_two_threads_with_hands_and_searches_do_not_wait_for_each_other() {
        loom::model(|| {
            let model = Arc::new(Model { free: Mutex::new(2), ..Model::default() });
            let both = || {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    model.acquire_and_release();
                    model.acquire()
                })
            };
            let other = both();
            assert!(both().join().unwrap() && other.join().unwrap());
        });
    }

    #[test]
    fn loom_a_thread_does_not_wait_while_it_has_a_hand_open() {
        loom::model(|| {
            let model = Arc::new(Model::default());
            let nested = || {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    let hand = model.transit.open();
                    hand.hold();
                    // As a callback of upstream does.
                    model.acquire()
                })
            };
            let other = nested();
            assert!(!nested().join().unwrap() && !other.join().unwrap());
        });
    }

    #[test]
    fn loom_threads_in_callbacks_of_two_pools_do_not_wait_for_each_other() {
        loom::model(|| {
            let models = [Arc::new(Model::default()), Arc::new(Model::default())];
            let nested = |first: usize| {
                let [mine, other] = [first, 1 - first].map(|at| Arc::clone(&models[at]));
                thread::spawn(move || {
                    let hand = mine.transit.open();
                    hand.hold();
                    // As a callback of upstream does that allocates from another pool.
                    other.acquire()
                })
            };
            let other = nested(0);
            assert!(!nested(1).join().unwrap() && !other.join().unwrap());
        });
    }
}
