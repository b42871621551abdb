//! A thread's part of the recorder: its ring, its number, and what it works for.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attached;
use crate::clock::Clock;
use crate::raw::{Raw, head_of, head_of_thread};
use crate::ring::Ring;

/// A ring, and the clock that its events are read from.
#[derive(Debug)]
pub(crate) struct ThreadRing {
    pub(crate) ring: Ring,
    pub(crate) clock: Clock,
}

/// Everything that an event reads of its thread.
#[derive(Clone, Copy)]
struct Current {
    /// `None` for a thread that has recorded nothing, or has ended.
    ring: Option<&'static Ring>,
    clock: Clock,
    /// The part of an event's second word that is the thread's.
    head: u64,
    query: u64,
    /// The number of scopes in which nothing is recorded.
    muted: u32,
}

/// The rest of a thread's state.
#[derive(Clone, Copy)]
struct Attached {
    ring: Option<&'static ThreadRing>,
    /// The thread ends, or there was no ring for it.
    has_none: bool,
    number: u64,
    label: u16,
}

thread_local! {
    // Without destructors, so that a thread can use them until it has ended.
    static CURRENT: Cell<Current> = const {
        Cell::new(Current { ring: None, clock: Clock::System, head: 0, query: 0, muted: 0 })
    };
    static ATTACHED: Cell<Attached> = const {
        Cell::new(Attached { ring: None, has_none: false, number: 0, label: 0 })
    };
    static LEAVING: Leaving = const { Leaving };
}

/// Returns the ring of a thread that ends.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        CURRENT.set(Current { ring: None, ..CURRENT.get() });
        let attached = ATTACHED.get();
        ATTACHED.set(Attached { ring: None, has_none: true, ..attached });
        if let Some(ring) = attached.ring {
            attached::give_back(ring);
        }
    }
}

/// Adds an event to the ring of the thread.
#[inline(always)]
pub(crate) fn push(raw: Raw) {
    let Raw { kind, a, b, c, stream, text, text_len } = raw;
    push_words(head_of(kind, text_len), a, b, c, stream, text);
}

/// Adds an event, whose words fit into the registers of a call.
#[inline(never)]
fn push_words(head: u64, a: u64, b: u64, c: u64, stream: u64, text: u64) {
    let Current { ring, clock, head: of_thread, query, muted } = CURRENT.get();
    match ring {
        Some(ring) if muted == 0 => {
            ring.push([clock.ticks(), head | of_thread, a, b, c, stream, text, query]);
        }
        _ => push_slowly([head, a, b, c, stream, text]),
    }
}

/// Adds an event of a thread that has no ring yet, or records nothing now.
#[cold]
#[inline(never)]
fn push_slowly([head, a, b, c, stream, text]: [u64; 6]) {
    if CURRENT.get().muted == 0 && attach() {
        push_words(head, a, b, c, stream, text);
    }
}

/// Gets a ring for the thread. Returns whether there is one.
fn attach() -> bool {
    let has_destructor = || LEAVING.try_with(|_| ()).is_ok();
    let ring = match ATTACHED.get().has_none {
        false if has_destructor() => attached::take(),
        _ => None,
    };
    let number = thread_number();
    let attached = ATTACHED.get();
    ATTACHED.set(Attached { ring, has_none: ring.is_none(), ..attached });
    let Some(ring) = ring else {
        attached::count_lost();
        return false;
    };
    let head = head_of_thread(number, attached.label);
    let clock = ring.clock;
    CURRENT.set(Current { ring: Some(&ring.ring), clock, head, ..CURRENT.get() });
    true
}

/// Returns the ring of the thread, and lets it look for another one: the recorder begins anew, and
/// its rings may have another size.
pub(crate) fn change_ring() {
    let before = ATTACHED.get().ring;
    forget_ring();
    if let Some(ring) = before {
        attached::give_back(ring);
    }
}

/// Forgets the ring of the thread, and lets it look for another one: the process has forked.
pub(crate) fn forget_ring() {
    CURRENT.set(Current { ring: None, ..CURRENT.get() });
    ATTACHED.set(Attached { ring: None, has_none: false, ..ATTACHED.get() });
}

/// Returns the number of the calling thread, from 1. No other thread of the process has had it.
#[inline]
#[must_use]
pub fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let attached = ATTACHED.get();
    if attached.number > 0 {
        return attached.number;
    }
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    ATTACHED.set(Attached { number, ..attached });
    number
}

pub(crate) fn current_label() -> u16 {
    ATTACHED.get().label
}

/// Sets the label of the thread. Returns the label before.
pub(crate) fn replace_label(label: u16) -> u16 {
    let head = head_of_thread(thread_number(), label);
    let before = ATTACHED.get();
    ATTACHED.set(Attached { label, ..before });
    CURRENT.set(Current { head, ..CURRENT.get() });
    before.label
}

/// Returns the query of this thread; 0 outside every scope.
#[must_use]
pub fn current_query() -> u64 {
    CURRENT.get().query
}

/// Sets the query of the thread. Returns the query before.
pub(crate) fn replace_query(query: u64) -> u64 {
    let before = CURRENT.get();
    CURRENT.set(Current { query, ..before });
    before.query
}

/// Records nothing of this thread until the scope is dropped: for a resource whose blocks are cut
/// from those of another one, which would record them, too.
#[derive(Debug)]
#[must_use = "the scope ends where this is dropped"]
pub struct Unrecorded(PhantomData<*const ()>);

impl Unrecorded {
    /// Begins the scope.
    pub fn enter() -> Self {
        let current = CURRENT.get();
        CURRENT.set(Current { muted: current.muted + 1, ..current });
        Self(PhantomData)
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        let current = CURRENT.get();
        CURRENT.set(Current { muted: current.muted.saturating_sub(1), ..current });
    }
}
