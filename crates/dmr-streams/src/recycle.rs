//! Things that are dear to make, used again once nobody holds them.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use crate::sync::{Arc, AtomicPtr, AtomicUsize, Ordering};

/// Things of one kind that nobody holds.
///
/// A thing is lent as a [`Held`], which is cloned by everybody who still needs it as it is. Only
/// when the last clone is gone does it come back, so whoever takes it next may change it. Neither
/// taking nor giving back allocates once the shelf has been as full as it gets, and giving back
/// takes no lock.
pub(crate) struct Shelf<T> {
    /// A chain of items that only this shelf knows of.
    idle: *mut Item<T>,
    returned: Arc<Returned<T>>,
}

/// A chain of items that came back: their last holders push, the shelf takes all of it at once.
struct Returned<T> {
    /// [`closed`] once the shelf is gone.
    first: AtomicPtr<Item<T>>,
}

struct Item<T> {
    thing: T,
    holders: AtomicUsize,
    /// The next of the chain, while nobody holds it.
    next: AtomicPtr<Item<T>>,
    returned: Arc<Returned<T>>,
}

/// A thing from a [`Shelf`], as its taker left it.
pub(crate) struct Held<T> {
    /// Alive, and on no chain, as long as a `Held` points to it.
    item: NonNull<Item<T>>,
}

// SAFETY: the items of the chain are owned by the shelf, which gives no access to what is in them.
unsafe impl<T: Send + Sync> Send for Shelf<T> {}
// SAFETY: holders on several threads share the thing, and the last of them may drop it.
unsafe impl<T: Send + Sync> Send for Held<T> {}
// SAFETY: as above: a shared `Held` can be cloned.
unsafe impl<T: Send + Sync> Sync for Held<T> {}

impl<T> Shelf<T> {
    pub(crate) fn new() -> Self {
        let returned = Returned { first: AtomicPtr::new(ptr::null_mut()) };
        Self { idle: ptr::null_mut(), returned: Arc::new(returned) }
    }

    /// A thing that nobody holds, if there is one. Twice, for who takes it and who is told of it:
    /// so the second costs nothing.
    pub(crate) fn take(&mut self) -> Option<[Held<T>; 2]> {
        if self.idle.is_null() && !self.returned.first.load(Ordering::Relaxed).is_null() {
            // Acquire: what the holders did with the things comes before what is done next.
            self.idle = self.returned.first.swap(ptr::null_mut(), Ordering::Acquire);
        }
        let item = NonNull::new(self.idle)?;
        // SAFETY: an item of the chain is alive, and nobody else's.
        let idle = unsafe { item.as_ref() };
        self.idle = idle.next.load(Ordering::Relaxed);
        idle.holders.store(2, Ordering::Relaxed);
        Some([Held { item }, Held { item }])
    }

    /// Takes a thing back that was lent from here. If nobody else holds it, it is the next to be
    /// lent, and no read-modify-write was needed for that.
    #[inline]
    pub(crate) fn give_back(&mut self, held: Held<T>) {
        let item = held.item();
        // Acquire: what its last other holder did with the thing comes before what is done next.
        if item.holders.load(Ordering::Acquire) == 1 {
            item.next.store(self.idle, Ordering::Relaxed);
            self.idle = ManuallyDrop::new(held).item.as_ptr();
        }
    }

    /// A new thing, lent as [`take`](Self::take) does.
    pub(crate) fn add(&mut self, thing: T) -> [Held<T>; 2] {
        let (holders, next) = (AtomicUsize::new(2), AtomicPtr::new(ptr::null_mut()));
        let item = Box::new(Item { thing, holders, next, returned: Arc::clone(&self.returned) });
        let item = NonNull::from(Box::leak(item));
        [Held { item }, Held { item }]
    }
}

impl<T> Drop for Shelf<T> {
    /// What is still held is dropped by its last holder.
    fn drop(&mut self) {
        let returned = self.returned.first.swap(closed(), Ordering::Acquire);
        for chain in [self.idle, returned] {
            let mut first = chain;
            while !first.is_null() {
                // SAFETY: made by `Box::leak`; an item of the chain is nobody else's.
                let item = unsafe { Box::from_raw(first) };
                first = item.next.load(Ordering::Relaxed);
            }
        }
    }
}

/// Stands for no item: items are aligned to more than a byte.
fn closed<T>() -> *mut Item<T> {
    ptr::without_provenance_mut(1)
}

/// Gives an item back that nobody holds any more.
fn put<T>(item: NonNull<Item<T>>) {
    // SAFETY: alive, and the caller's alone until it is on the chain.
    let back = unsafe { item.as_ref() };
    let chain = &back.returned.first;
    let mut first = chain.load(Ordering::Relaxed);
    while first != closed() {
        back.next.store(first, Ordering::Relaxed);
        // Release: what its holders did with the thing comes before what its next taker does.
        match chain.compare_exchange_weak(
            first,
            item.as_ptr(),
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
    // SAFETY: made by `Box::leak`; the shelf is gone, so nobody else knows of the item.
    drop(unsafe { Box::from_raw(item.as_ptr()) });
}

impl<T> Held<T> {
    #[inline]
    fn item(&self) -> &Item<T> {
        // SAFETY: the item is alive as long as it is held.
        unsafe { self.item.as_ref() }
    }
}

impl<T> Clone for Held<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.item().holders.fetch_add(1, Ordering::Relaxed);
        Self { item: self.item }
    }
}

impl<T> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        let holders = &self.item().holders;
        // Only a holder can make another, so the only one stays the only one. Release: what this
        // holder did with the thing comes before what its next taker does. Acquire: the last
        // holder has seen all of it, and passes it on.
        let is_last =
            holders.load(Ordering::Acquire) == 1 || holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            put(self.item);
        }
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.item().thing
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thing_comes_back_only_when_its_last_holder_is_gone() {
        let mut shelf = Shelf::new();
        let [first, told] = shelf.add(1);
        let again = first.clone();
        drop((first, told));
        assert!(shelf.take().is_none(), "it is still held");
        drop(again);
        assert_eq!(*shelf.take().unwrap()[0], 1);
    }

    #[test]
    fn a_thing_given_back_is_the_next_to_be_lent_unless_it_is_held() {
        let mut shelf = Shelf::new();
        let [first, told] = shelf.add(1);
        drop(shelf.add(2));
        shelf.give_back(told);
        let second = shelf.take().unwrap();
        assert_eq!(*second[0], 2, "the first is held");
        assert!(shelf.take().is_none());
        shelf.give_back(first);
        assert_eq!(*shelf.take().unwrap()[0], 1);
    }

    #[test]
    fn every_thing_is_dropped_once_whether_shelf_or_holder_goes_first() {
        let counter = std::sync::Arc::new(());
        let mut shelf = Shelf::new();
        let mut lent: Vec<_> = (0..5).map(|_| shelf.add(std::sync::Arc::clone(&counter))).collect();
        lent.truncate(3);
        // One is taken again, so that there is a chain of its own beside what came back.
        lent.extend(shelf.take());
        lent.truncate(2);
        drop(shelf);
        assert_eq!(std::sync::Arc::strong_count(&counter), 1 + lent.len());
        drop(lent);
        assert_eq!(std::sync::Arc::strong_count(&counter), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::Mutex;
    use loom::sync::atomic::AtomicBool;

    /// U5: a thing is changed by its next taker only when no other thread still reads it.
    #[test]
    fn nobody_reads_a_thing_that_its_next_taker_changes() {
        loom::model(|| {
            let mut shelf = Shelf::new();
            let [held, told] = shelf.add(AtomicBool::new(false));
            let readers: Vec<_> = [held, told]
                .map(|held| {
                    loom::thread::spawn(move || {
                        let again = held.clone();
                        drop(held);
                        assert!(!again.load(Ordering::Relaxed));
                    })
                })
                .into();
            if let Some([next, _]) = shelf.take() {
                next.store(true, Ordering::Relaxed);
            }
            for reader in readers {
                reader.join().unwrap();
            }
            assert!(shelf.take().is_some(), "it has come back");
        });
    }

    /// The same where one of the holders gives it to the shelf.
    #[test]
    fn nobody_reads_a_thing_that_was_given_back_and_lent_again() {
        loom::model(|| {
            let mut shelf = Shelf::new();
            let [held, told] = shelf.add(AtomicBool::new(false));
            let reader = loom::thread::spawn(move || {
                let again = held.clone();
                drop(held);
                assert!(!again.load(Ordering::Relaxed));
            });
            shelf.give_back(told);
            if let Some([next, _]) = shelf.take() {
                next.store(true, Ordering::Relaxed);
            }
            reader.join().unwrap();
            assert!(shelf.take().is_some(), "it has come back");
        });
    }

    /// Things that come back at the same time all come back, each once.
    #[test]
    fn nothing_is_lost_or_lent_twice() {
        loom::model(|| {
            let mut shelf = Shelf::new();
            let lent = [shelf.add(AtomicBool::new(false)), shelf.add(AtomicBool::new(false))];
            let shelf = Arc::new(Mutex::new(shelf));
            let holders = lent.map(|lent| {
                let shelf = Arc::clone(&shelf);
                loom::thread::spawn(move || {
                    drop(lent);
                    let Some([taken, _]) = shelf.lock().unwrap().take() else { return 0 };
                    assert!(!taken.swap(true, Ordering::Relaxed), "lent to two at once");
                    taken.store(false, Ordering::Relaxed);
                    1
                })
            });
            let taken: usize = holders.map(|holder| holder.join().unwrap()).iter().sum();
            assert!(taken >= 1);
            let mut shelf = shelf.lock().unwrap();
            let both = [shelf.take(), shelf.take()];
            assert!(both.iter().all(Option::is_some) && shelf.take().is_none());
        });
    }

    /// A thing whose last holder goes while the shelf goes is dropped, by one of them. loom finds
    /// what leaks: each thing has a `loom::sync::Arc`.
    #[test]
    fn a_thing_outlives_neither_shelf_nor_holder() {
        loom::model(|| {
            let counter = Arc::new(());
            let mut shelf = Shelf::new();
            let [held, told] = shelf.add(Arc::clone(&counter));
            let holder = loom::thread::spawn(move || drop(held));
            drop(told);
            drop(shelf);
            holder.join().unwrap();
            assert!(Arc::try_unwrap(counter).is_ok(), "dropped by now");
        });
    }
}
