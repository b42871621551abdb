//! A thread's part of the recorder: its ring, its number, the time of its events, and what it works
//! for.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attached;
use crate::clock::Clock;
use crate::gate;
use crate::raw::{Raw, head_of, head_of_thread};
use crate::ring::Ring;

/// A ring, and the clock that its events are read from.
#[derive(Debug)]
pub(crate) struct ThreadRing {
    pub(crate) ring: Ring,
    pub(crate) clock: Clock,
}

/// The state of a thread, in one thread-local: in a shared library each has to be looked for.
struct Current {
    /// `None` for a thread that has recorded nothing, or has ended.
    ring: Cell<Option<&'static ThreadRing>>,
    /// The part of an event's second word that is the thread's.
    head: Cell<u64>,
    query: Cell<u64>,
    /// The last reading of the clock, in ticks of it.
    read: Cell<u64>,
    /// The tick of the gate before it.
    tick: Cell<u64>,
    /// The events that may still have its time.
    left: Cell<u32>,
    /// The events that could have its time.
    granted: Cell<u32>,
    /// The number of scopes in which nothing is recorded.
    muted: Cell<u32>,
    label: Cell<u16>,
    /// The thread ends, or there was no ring for it.
    has_no_ring: Cell<bool>,
    number: Cell<u64>,
}

/// The events that have the time of the event before them, in a burst.
const BURST: u32 = 15;

/// The most ticks from one event to the next, on average, in a burst: some hundred nanoseconds of a
/// cycle counter. Where events are rarer, each may read the clock.
const BURST_TICKS: u64 = 1024;

thread_local! {
    // Without a destructor, so that a thread can use it until it has ended.
    static CURRENT: Current = const {
        Current {
            ring: Cell::new(None),
            head: Cell::new(0),
            query: Cell::new(0),
            read: Cell::new(0),
            tick: Cell::new(0),
            left: Cell::new(0),
            granted: Cell::new(0),
            muted: Cell::new(0),
            label: Cell::new(0),
            has_no_ring: Cell::new(false),
            number: Cell::new(0),
        }
    };
    static LEAVING: Leaving = const { Leaving };
}

/// Returns the ring of a thread that ends.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        CURRENT.with(|current| current.has_no_ring.set(true));
        if let Some(ring) = CURRENT.with(|current| current.ring.take()) {
            attached::give_back(ring);
        }
    }
}

/// The part of a thread's state that an event reads.
#[derive(Clone, Copy)]
struct OfThread {
    ring: Option<&'static ThreadRing>,
    head: u64,
    query: u64,
    read: u64,
    tick: u64,
    left: u32,
}

impl Current {
    #[inline(always)]
    fn of_thread(&self) -> OfThread {
        OfThread {
            ring: self.ring.get(),
            head: self.head.get(),
            query: self.query.get(),
            read: self.read.get(),
            tick: self.tick.get(),
            left: self.left.get(),
        }
    }
}

/// Adds an event with its time to the ring of the thread.
#[inline(always)]
pub(crate) fn push(raw: Raw) {
    end_reading();
    push_coarse(raw);
}

/// Adds an event, whose time may be that of the event before it.
#[inline(always)]
pub(crate) fn push_coarse(raw: Raw) {
    let Raw { kind, a, b, c, stream, text, text_len } = raw;
    push_words(head_of(kind, text_len), a, b, c, stream, text);
}

/// Adds an event, whose words fit into the registers of a call, with the time of the last reading
/// if that is good enough.
#[inline(never)]
fn push_words(head: u64, a: u64, b: u64, c: u64, stream: u64, text: u64) {
    let thread = CURRENT.with(Current::of_thread);
    match thread.ring {
        Some(of_thread) if thread.left != 0 && thread.tick == gate::tick() => {
            CURRENT.with(|current| current.left.set(thread.left - 1));
            let head = head | thread.head;
            of_thread.ring.push([thread.read, head, a, b, c, stream, text, thread.query]);
        }
        _ => push_slowly(head, a, b, c, stream, text),
    }
}

/// Adds an event of a thread that has to read the clock, has no ring yet, or records nothing now.
#[inline(never)]
fn push_slowly(head: u64, a: u64, b: u64, c: u64, stream: u64, text: u64) {
    if CURRENT.with(|current| current.muted.get()) > 0 {
        return;
    }
    let Some(of_thread) = CURRENT.with(|current| current.ring.get()).or_else(attach) else {
        return;
    };
    let read = read_clock(of_thread.clock);
    let OfThread { head: head_of_thread, query, .. } = CURRENT.with(Current::of_thread);
    of_thread.ring.push([read, head | head_of_thread, a, b, c, stream, text, query]);
}

/// Reads the clock, and finds for how many events the reading serves.
fn read_clock(clock: Clock) -> u64 {
    // Before the clock is read: an event of this tick is later by the length of a tick at most.
    let tick = gate::tick();
    let now = clock.ticks();
    CURRENT.with(|current| {
        let events = current.granted.get() - current.left.get() + 1;
        let since = now.wrapping_sub(current.read.replace(now));
        let is_burst = since < u64::from(events) * BURST_TICKS;
        let granted = if is_burst { BURST } else { 0 };
        current.tick.set(tick);
        current.granted.set(granted);
        current.left.set(granted);
    });
    now
}

/// Lets the next event of the thread read the clock.
#[inline(always)]
fn end_reading() {
    CURRENT.with(|current| current.left.set(0));
}

/// Tells the calling thread that it has locked memory, which the thread of the word, its last
/// owner, may have freed: if that is another thread, the next event of this one reads the clock, so
/// that its time is not before that of the free.
#[inline(always)]
pub(crate) fn take_over(owner: &mut u64) {
    let head = CURRENT.with(|current| current.head.get());
    if *owner != head {
        *owner = head;
        end_reading();
    }
}

/// Gets a ring for the thread.
#[cold]
fn attach() -> Option<&'static ThreadRing> {
    let has_none = CURRENT.with(|current| current.has_no_ring.get());
    let has_destructor = || LEAVING.try_with(|_| ()).is_ok();
    let ring = match has_none {
        false if has_destructor() => attached::take(),
        _ => None,
    };
    let number = thread_number();
    CURRENT.with(|current| {
        current.has_no_ring.set(ring.is_none());
        current.head.set(head_of_thread(number, current.label.get()));
        current.ring.set(ring);
    });
    if ring.is_none() {
        attached::count_lost();
    }
    ring
}

/// Returns the ring of the thread, and lets it look for another one: the recorder begins anew, and
/// its rings may have another size.
pub(crate) fn change_ring() {
    let before = CURRENT.with(|current| current.ring.get());
    forget_ring();
    if let Some(ring) = before {
        attached::give_back(ring);
    }
}

/// Forgets the ring of the thread, and lets it look for another one: the process has forked.
pub(crate) fn forget_ring() {
    CURRENT.with(|current| {
        current.ring.set(None);
        current.has_no_ring.set(false);
    });
}

/// Returns the number of the calling thread, from 1. No other thread of the process has had it.
#[inline]
#[must_use]
pub fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = CURRENT.with(|current| current.number.get());
    if number > 0 {
        return number;
    }
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    CURRENT.with(|current| current.number.set(number));
    number
}

pub(crate) fn current_label() -> u16 {
    CURRENT.with(|current| current.label.get())
}

/// Sets the label of the thread. Returns the label before.
pub(crate) fn replace_label(label: u16) -> u16 {
    let head = head_of_thread(thread_number(), label);
    CURRENT.with(|current| {
        current.head.set(head);
        current.label.replace(label)
    })
}

/// Returns the query of this thread; 0 outside every scope.
#[must_use]
pub fn current_query() -> u64 {
    CURRENT.with(|current| current.query.get())
}

/// Sets the query of the thread. Returns the query before.
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
        end_reading();
        Self(PhantomData)
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        CURRENT.with(|current| current.muted.set(current.muted.get().saturating_sub(1)));
    }
}

/// Returns whether the thread is in a scope of [`Unrecorded`].
pub(crate) fn is_muted() -> bool {
    CURRENT.with(|current| current.muted.get()) > 0
}

/// Makes a call that records also in a scope of [`Unrecorded`].
#[inline]
pub(crate) fn unmuted(call: impl FnOnce()) {
    let muted = CURRENT.with(|current| current.muted.replace(0));
    call();
    if muted > 0 {
        CURRENT.with(|current| current.muted.set(muted));
        // An event with the time of the last reading is not muted.
        end_reading();
    }
}
