//! The rings of all threads. A ring is never freed: the next thread continues that of one that has
//! ended, so that there are never more than threads that recorded at one time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::process::PerProcess;
use dmr_core::sync::lock;

use crate::clock::Clock;
use crate::ring::Ring;
use crate::thread::ThreadRing;

/// The rings of a process. A forked child begins without any.
struct Rings {
    all: Mutex<All>,
    /// Events of threads without a ring.
    lost: AtomicU64,
}

#[derive(Default)]
struct All {
    rings: Vec<&'static ThreadRing>,
    /// Rings of threads that have ended.
    idle: Vec<&'static ThreadRing>,
    events: usize,
    most: usize,
    clock: Option<Clock>,
}

static RINGS: PerProcess<Rings> =
    PerProcess::new(|| Rings { all: Mutex::default(), lost: AtomicU64::new(0) });

/// Sets the size of rings that are made from now on, and the most that there are.
pub(crate) fn configure(events: usize, most: usize, clock: Clock) {
    let mut all = lock(&RINGS.get().all);
    all.events = events;
    all.most = most;
    all.clock = Some(clock);
}

/// Returns a ring for the calling thread; `None` if there are too many.
pub(crate) fn take() -> Option<&'static ThreadRing> {
    let mut all = lock(&RINGS.get().all);
    let events = all.events;
    // Another run of the recorder may have had other settings.
    if let Some(idle) = all.idle.iter().position(|idle| idle.ring.has_room_for(events)) {
        return Some(all.idle.swap_remove(idle));
    }
    let clock = all.clock?;
    if all.rings.len() >= all.most {
        // Better one of another size than none.
        return all.idle.pop();
    }
    let ring: &'static _ = Box::leak(Box::new(ThreadRing { ring: Ring::new(all.events), clock }));
    all.rings.push(ring);
    Some(ring)
}

/// Takes the ring of a thread that ends.
pub(crate) fn give_back(ring: &'static ThreadRing) {
    let mut all = lock(&RINGS.get().all);
    // In a forked child it is one of the parent.
    if all.rings.iter().any(|known| std::ptr::eq(*known, ring)) {
        all.idle.push(ring);
    }
}

/// The rings at a moment.
pub(crate) struct RingsThen {
    /// The ticks at that moment. Events of other rings have later ones.
    pub(crate) ticks: u64,
    /// All rings, in the order in which they were made.
    pub(crate) rings: Vec<&'static ThreadRing>,
}

/// Returns the rings as they are now.
pub(crate) fn all() -> RingsThen {
    let all = lock(&RINGS.get().all);
    let ticks = all.clock.map_or(u64::MAX, Clock::ticks);
    RingsThen { ticks, rings: all.rings.clone() }
}

pub(crate) fn count_lost() {
    RINGS.get().lost.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of events of threads that had no ring.
pub(crate) fn lost() -> u64 {
    RINGS.get().lost.load(Ordering::Relaxed)
}
