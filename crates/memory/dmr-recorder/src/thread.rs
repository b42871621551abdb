//! A thread's part of the recorder: its ring, its number, and what it works for.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attached;
use crate::clock::Clock;
use crate::raw::{Head, Raw};
use crate::ring::Ring;

/// A ring, and the clock that its events are read from.
#[derive(Debug)]
pub(crate) struct ThreadRing {
    pub(crate) ring: Ring,
    pub(crate) clock: Clock,
}

struct Current {
    ring: Cell<Option<&'static ThreadRing>>,
    thread: Cell<u64>,
    label: Cell<u16>,
    query: Cell<u64>,
    /// The number of scopes in which nothing is recorded.
    muted: Cell<u32>,
    /// The thread ends, or there is no ring for it.
    has_none: Cell<bool>,
}

thread_local! {
    // Without a destructor, so that a thread can use it until it has ended.
    static CURRENT: Current = const {
        Current {
            ring: Cell::new(None),
            thread: Cell::new(0),
            label: Cell::new(0),
            query: Cell::new(0),
            muted: Cell::new(0),
            has_none: Cell::new(false),
        }
    };
    static LEAVING: Leaving = const { Leaving };
}

/// Returns the ring of a thread that ends.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        CURRENT.with(|current| {
            current.has_none.set(true);
            if let Some(ring) = current.ring.take() {
                attached::give_back(ring);
            }
        });
    }
}

/// Adds an event to the ring of the thread.
#[inline(never)]
pub(crate) fn push(raw: Raw) {
    CURRENT.with(|current| match current.ring.get() {
        Some(ring) if current.muted.get() == 0 => write(current, ring, raw),
        _ => push_slowly(current, raw),
    });
}

#[inline(always)]
fn write(current: &Current, ring: &ThreadRing, raw: Raw) {
    let Raw { kind, a, b, c, stream, text, text_len } = raw;
    let head = Head { kind, text_len, thread: current.thread.get(), label: current.label.get() };
    let ticks = ring.clock.ticks();
    ring.ring.push([ticks, head.pack(), a, b, c, stream, text, current.query.get()]);
}

/// Gets a ring for a thread that has none.
#[cold]
#[inline(never)]
fn push_slowly(current: &Current, raw: Raw) {
    if current.muted.get() > 0 {
        return;
    }
    let has_destructor = || LEAVING.try_with(|_| ()).is_ok();
    let ring = match current.has_none.get() {
        false if has_destructor() => attached::take(),
        _ => None,
    };
    match ring {
        Some(ring) => {
            let _ = thread_number();
            current.ring.set(Some(ring));
            write(current, ring, raw);
        }
        None => {
            current.has_none.set(true);
            attached::count_lost();
        }
    }
}

/// Forgets the ring of the thread, and lets it look for another one: the process has forked, or
/// the recorder has begun anew.
pub(crate) fn forget_ring() {
    CURRENT.with(|current| {
        current.ring.set(None);
        current.has_none.set(false);
    });
}

/// Returns the number of the calling thread, from 1. No other thread of the process has had it.
#[inline]
#[must_use]
pub fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    CURRENT.with(|current| match current.thread.get() {
        0 => {
            current.thread.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
            current.thread.get()
        }
        number => number,
    })
}

pub(crate) fn current_label() -> u16 {
    CURRENT.with(|current| current.label.get())
}

pub(crate) fn replace_label(label: u16) -> u16 {
    CURRENT.with(|current| current.label.replace(label))
}

/// Returns the query of this thread; 0 outside every scope.
#[must_use]
pub fn current_query() -> u64 {
    CURRENT.with(|current| current.query.get())
}

pub(crate) fn replace_query(query: u64) -> u64 {
    CURRENT.with(|current| current.query.replace(query))
}

/// Records nothing of this thread until the scope is dropped: for a resource whose blocks are cut
/// from those of another one, which would record them, too.
#[derive(Debug)]
#[must_use = "the scope ends where this is dropped"]
pub struct Unrecorded(PhantomData<*const ()>);

impl Unrecorded {
    /// Begins the scope.
    pub fn enter() -> Self {
        CURRENT.with(|current| current.muted.set(current.muted.get() + 1));
        Self(PhantomData)
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        CURRENT.with(|current| current.muted.set(current.muted.get().saturating_sub(1)));
    }
}
