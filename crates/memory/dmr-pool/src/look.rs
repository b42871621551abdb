//! A look at the whole pool that many threads need at a time.
//!
//! Threads that are short of memory all look at all arenas, and each look is in the way of the
//! streams that own them. A look that was begun since a search began is as good as the search's
//! own: it sees all that had been freed by then. So one thread looks, and the others wait for it.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

/// The latest look.
#[derive(Debug)]
pub(crate) struct SharedLook<T> {
    /// The number of looks that were begun.
    begun: AtomicU64,
    latest: Mutex<Option<Look<T>>>,
}

#[derive(Debug)]
struct Look<T> {
    number: u64,
    seen: T,
}

impl<T> Default for SharedLook<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::new(0), latest: Mutex::new(None) }
    }
}

/// The number of looks that had been begun when a search began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began(u64);

impl<T: Clone> SharedLook<T> {
    /// Notes that a search begins.
    pub(crate) fn begin_search(&self) -> Began {
        // Not a load, which may return an older number: then a look that was begun before memory
        // was freed would count as one after it.
        Began(self.begun.fetch_add(0, Ordering::AcqRel))
    }

    /// Returns what a look has seen that was begun since the search began. Waits for one that is
    /// under way; looks if there is none. `look` calls no driver.
    pub(crate) fn since(&self, began: Began, look: impl FnOnce() -> T) -> T {
        let mut latest = lock(&self.latest);
        if let Some(latest) = latest.as_ref().filter(|latest| latest.number > began.0) {
            return latest.seen.clone();
        }
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let seen = look();
        *latest = Some(Look { number, seen: seen.clone() });
        seen
    }
}

#[cfg(all(test, loom))]
mod models {
    //! `cargo xtask loom`.

    use loom::sync::Arc;
    use loom::thread;

    use super::SharedLook;
    use crate::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Model {
        look: SharedLook<u64>,
        /// A bit for each thread's memory. As in an arena, whatever a look has to see was released
        /// before the search began.
        free: AtomicU64,
    }

    #[test]
    fn loom_a_look_sees_what_was_free_when_the_search_began() {
        loom::model(|| {
            let model = Arc::new(Model::default());
            let search = |bit: u64| {
                let model = Arc::clone(&model);
                move || {
                    model.free.fetch_or(bit, Ordering::Relaxed);
                    let began = model.look.begin_search();
                    let seen = model.look.since(began, || model.free.load(Ordering::Relaxed));
                    assert!(seen & bit != 0, "{seen:b} does not have {bit:b}");
                }
            };
            let other = thread::spawn(search(1));
            search(2)();
            other.join().unwrap();
        });
    }
}
