//! Things that are dear to make, used again once nobody holds them.

use std::ops::Deref;
use std::sync::Weak;

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};

/// Things of one kind that nobody holds.
///
/// A thing is lent as a [`Held`], which is cloned by everybody who still needs it as it is. Only
/// when the last clone is gone does it come back, so whoever takes it next may change it. Neither
/// taking nor giving back allocates once the shelf has been as full as it gets.
pub(crate) struct Shelf<T> {
    idle: Mutex<Vec<Arc<Item<T>>>>,
}

struct Item<T> {
    thing: T,
    holders: AtomicUsize,
    /// Weak, or shelf and things would keep each other alive.
    shelf: Weak<Shelf<T>>,
}

/// A thing from a [`Shelf`], as its taker left it.
pub(crate) struct Held<T> {
    /// `None` only while it is being dropped.
    item: Option<Arc<Item<T>>>,
}

impl<T> Shelf<T> {
    pub(crate) fn new() -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self { idle: Mutex::new(Vec::new()) })
    }

    /// A thing that nobody holds: an idle one, else a new one.
    pub(crate) fn take<E>(
        self: &std::sync::Arc<Self>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Held<T>, E> {
        // The guard must be gone before `make`, which may call the driver.
        let idle = lock(&self.idle).pop();
        let item = match idle {
            Some(item) => item,
            None => {
                let shelf = std::sync::Arc::downgrade(self);
                Arc::new(Item { thing: make()?, holders: AtomicUsize::new(0), shelf })
            }
        };
        item.holders.store(1, Ordering::Relaxed);
        Ok(Held { item: Some(item) })
    }
}

impl<T> Clone for Held<T> {
    fn clone(&self) -> Self {
        if let Some(item) = &self.item {
            item.holders.fetch_add(1, Ordering::Relaxed);
        }
        Self { item: self.item.clone() }
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        let Some(item) = self.item.take() else { return };
        // Release: what this holder did with the thing comes before what its next taker does.
        // Acquire: the last holder has seen all of it, and the lock of the shelf passes it on.
        if item.holders.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(shelf) = item.shelf.upgrade()
        {
            lock(&shelf.idle).push(item);
        }
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[allow(clippy::expect_used, reason = "`None` only inside `drop`")]
    fn deref(&self) -> &T {
        &self.item.as_ref().expect("held").thing
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thing_comes_back_only_when_its_last_holder_is_gone() {
        let shelf = Shelf::new();
        let mut made = 0;
        let mut take = || {
            shelf
                .take(|| {
                    Ok::<_, ()>({
                        made += 1;
                        made
                    })
                })
                .unwrap()
        };
        let first = take();
        let again = first.clone();
        drop(first);
        assert_eq!(*take(), 2, "the first is still held");
        drop(again);
        assert!(*take() <= 2);
        drop(shelf);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicBool;

    /// U5: a thing is changed by its next taker only when no other thread still reads it.
    #[test]
    fn nobody_reads_a_thing_that_its_next_taker_changes() {
        loom::model(|| {
            let shelf = Shelf::new();
            let held = shelf.take(|| Ok::<_, ()>(AtomicBool::new(false))).unwrap();
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let held = held.clone();
                    loom::thread::spawn(move || assert!(!held.load(Ordering::Relaxed)))
                })
                .collect();
            drop(held);
            let next = shelf.take(|| Ok::<_, ()>(AtomicBool::new(false))).unwrap();
            next.store(true, Ordering::Relaxed);
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }
}
