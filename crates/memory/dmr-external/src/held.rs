//! The memory of adopted blocks: of those that are live, and of those that wait for the device.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::{Context, Wake, Waker};

use dmr_core::panics;
use dmr_core::sync::lock;
use dmr_core::{BlockId, ResourceError, ResourceResult, Usage};
use dmr_streams::uses::{BlocksInUse, Dependencies, Patience, RecordedEvent};
use dmr_streams::{BlockOwner, Completed, Device, StreamPool};
use smallvec::SmallVec;

use crate::blocks::AdoptedMemory;
use crate::releaser::{self, Releases};
use crate::table::Table;

/// The events behind the last uses of a block.
pub(crate) type Events = SmallVec<[RecordedEvent; 4]>;

/// The adopted blocks of a kind of memory and a stream pool. It outlives the pool while memory
/// waits for the device.
pub(crate) struct Held<M> {
    pub(crate) device: Device,
    pub(crate) owner: BlockOwner,
    /// Blocks that were deallocated in an open window.
    pub(crate) in_use: BlocksInUse<BlockId>,
    /// The stream pool, for the thread that is woken when a window has closed.
    streams: OnceLock<Weak<StreamPool>>,
    /// Never locked across a driver call, nor while memory is dropped.
    memory: Mutex<Memory<M>>,
    /// The thread that releases was woken, and has not begun.
    is_woken: AtomicBool,
}

struct Memory<M> {
    /// By generation.
    live: HashMap<u64, M>,
    /// Deallocated, and used by the device; by generation.
    waiting: HashMap<u64, Waiting<M>>,
    /// Retired blocks whose last window has closed, and that could not be ended.
    not_ended: Vec<BlockId>,
    usage: Usage,
}

/// Memory that is dropped when the device is done with it.
struct Waiting<M> {
    // Fields are dropped in this order: the memory last.
    /// Wake the thread that releases.
    waits: SmallVec<[Completed; 4]>,
    events: Arc<Events>,
    after: Dependencies,
    block: BlockId,
    memory: M,
}

/// The blocks to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Blocks whose events the watcher has found done, or could not query.
    Woken,
    All,
}

impl<M: AdoptedMemory> Held<M> {
    pub(crate) fn new(streams: &StreamPool) -> Arc<Self> {
        let owner = streams.register();
        let memory = Memory {
            live: HashMap::new(),
            waiting: HashMap::new(),
            not_ended: Vec::new(),
            usage: Usage::default(),
        };
        Arc::new(Self {
            device: streams.device().clone(),
            in_use: BlocksInUse::new(&owner),
            owner,
            streams: OnceLock::new(),
            memory: Mutex::new(memory),
            is_woken: AtomicBool::new(false),
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory<M>> {
        lock(&self.memory)
    }

    pub(crate) fn usage(&self) -> Usage {
        self.memory().usage
    }

    /// Has blocks whose last window closes be ended at once, and not with the next call.
    pub(crate) fn watch_windows(self: &Arc<Self>, streams: &Arc<StreamPool>) {
        self.streams.get_or_init(|| {
            let held = Arc::downgrade(self);
            self.in_use.wake_when_closed(Waker::from(Arc::new(WindowsClosed { held })));
            Arc::downgrade(streams)
        });
    }

    pub(crate) fn add(&self, generation: u64, memory: M) {
        let bytes = memory.bytes() as u64;
        let mut held = self.memory();
        held.usage.live += bytes;
        held.usage.reserved += bytes;
        held.usage.total_allocated += bytes;
        held.live.insert(generation, memory);
    }

    /// Counts a block as retired.
    pub(crate) fn retire(&self, block: BlockId) {
        let mut held = self.memory();
        let bytes = held.live.get(&block.generation().get()).map_or(0, |it| it.bytes() as u64);
        held.count_retired(bytes);
    }

    /// Removes the memory of a block, so that no lock is held while the driver is called.
    pub(crate) fn take(&self, block: BlockId) -> ResourceResult<M> {
        let taken = self.memory().live.remove(&block.generation().get());
        taken.ok_or_else(|| ResourceError::use_after_free(block.generation()))
    }

    pub(crate) fn put_back(&self, block: BlockId, memory: M) {
        self.memory().live.insert(block.generation().get(), memory);
    }

    pub(crate) fn add_not_ended(&self, block: BlockId) {
        self.memory().not_ended.push(block);
    }

    pub(crate) fn take_not_ended(&self) -> Vec<BlockId> {
        std::mem::take(&mut self.memory().not_ended)
    }

    /// Counts bytes that are not this resource's any more.
    pub(crate) fn count_ended(&self, bytes: usize, was_retired: bool) {
        self.memory().count_ended(bytes as u64, was_retired);
    }

    /// Keeps memory until the device has done the work behind which the events were recorded.
    pub(crate) fn wait(
        self: &Arc<Self>,
        streams: &StreamPool,
        block: BlockId,
        memory: M,
        pending: PendingUses,
        was_retired: bool,
    ) {
        let generation = block.generation().get();
        let bytes = memory.bytes() as u64;
        let PendingUses { after, events } = pending;
        let events = Arc::new(events);
        let mut waits: SmallVec<[Completed; 4]> =
            events.iter().map(|event| streams.completed_event(event)).collect();
        let waiting =
            Waiting { waits: SmallVec::new(), events: Arc::clone(&events), after, block, memory };
        let mut held = self.memory();
        if !was_retired {
            held.count_retired(bytes);
        }
        held.waiting.insert(generation, waiting);
        drop(held);
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        let mut are_ready = true;
        for wait in &mut waits {
            are_ready &= Pin::new(wait).poll(&mut context).is_ready();
        }
        let mut held = self.memory();
        // A thread that was woken meanwhile may have released it.
        let unneeded = match held.waiting.get_mut(&generation) {
            Some(waiting) => std::mem::replace(&mut waiting.waits, waits),
            None => waits,
        };
        drop(held);
        drop(unneeded);
        if are_ready {
            waker.wake();
        }
    }

    /// Returns whether the device may still use the memory of a block that was deallocated.
    pub(crate) fn is_waiting(&self, block: BlockId) -> bool {
        self.memory().waiting.contains_key(&block.generation().get())
    }

    /// Returns the uses that memory waits for.
    pub(crate) fn pending_uses(&self) -> Dependencies {
        self.memory().waiting.values().map(|waiting| &waiting.after).collect()
    }

    /// Drops the memory that the device is done with, and returns its bytes.
    ///
    /// # Errors
    ///
    /// The first error of a query. The memory still waits.
    pub(crate) fn release_done(&self, look: Look) -> ResourceResult<u64> {
        let held = self.memory();
        let is_looked_at = |waiting: &Waiting<M>| {
            look == Look::All || waiting.waits.iter().all(Completed::is_ready)
        };
        let looked_at: Vec<_> = held
            .waiting
            .iter()
            .filter(|(_, waiting)| is_looked_at(waiting))
            .map(|(generation, waiting)| (*generation, Arc::clone(&waiting.events)))
            .collect();
        drop(held);
        let mut freed = 0;
        let mut outcome = Ok(());
        for (generation, events) in looked_at {
            match self.is_done(&events) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    continue;
                }
            }
            drop(events);
            let mut held = self.memory();
            // Whichever thread removes it releases it.
            let Some(done) = held.waiting.remove(&generation) else { continue };
            let bytes = done.memory.bytes() as u64;
            held.count_ended(bytes, true);
            drop(held);
            freed += bytes;
            let Waiting { waits, events, block, memory, .. } = done;
            // First: when the owner is gone, nothing of the pool is in use.
            drop((waits, events));
            self.device.report_given_away(block);
            self.drop_memory(memory);
        }
        outcome.map(|()| freed)
    }

    fn is_done(&self, events: &Events) -> ResourceResult<bool> {
        if self.device.is_lost() {
            return Ok(true);
        }
        let queried = self.device.relaxed(|relaxed| {
            for event in events {
                if !event.query(relaxed)? {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        // The work of a lost device has ended.
        if self.device.is_lost() { Ok(true) } else { queried }
    }

    /// Returns whether memory waits although none of its events will wake the thread again.
    fn is_forgotten(&self) -> bool {
        let has_pool = self.streams.get().is_some_and(|streams| streams.strong_count() > 0);
        let held = self.memory();
        let has_no_waker = |waiting: &Waiting<M>| waiting.waits.iter().all(Completed::is_ready);
        held.waiting.values().any(has_no_waker) || has_pool && !held.not_ended.is_empty()
    }

    /// Drops memory. The code that this runs is not ours: no lock is held, and a panic is caught.
    pub(crate) fn drop_memory(&self, memory: M) {
        let _ = panics::catch(|| match self.device.is_lost() {
            true => memory.end_on_lost_device(),
            false => drop(memory),
        });
    }
}

/// Uses that are not done, and the events behind them.
pub(crate) struct PendingUses {
    pub(crate) after: Dependencies,
    pub(crate) events: Events,
}

impl<M: AdoptedMemory> Memory<M> {
    /// Counts live bytes as retired. Memory that a thread may end at any time counts as reserved no
    /// longer, so that what is reserved changes in calls only.
    fn count_retired(&mut self, bytes: u64) {
        self.usage.live -= bytes;
        self.usage.retired += bytes;
        if !M::IS_FREED_IN_ORDER {
            self.usage.reserved -= bytes;
        }
    }

    fn count_ended(&mut self, bytes: u64, was_retired: bool) {
        let usage = &mut self.usage;
        let of = if was_retired { &mut usage.retired } else { &mut usage.live };
        *of -= bytes;
        if M::IS_FREED_IN_ORDER || !was_retired {
            usage.reserved -= bytes;
        }
        usage.total_freed += bytes;
    }
}

/// Only passes the news to the thread: called by the watcher, and by threads that close windows.
impl<M: AdoptedMemory> Wake for Held<M> {
    fn wake(self: Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            releaser::wake(self);
        }
    }
}

/// Wakes what is held when windows close. The queue of closed windows keeps it, and what is held
/// keeps the queue.
struct WindowsClosed<M> {
    held: Weak<Held<M>>,
}

impl<M: AdoptedMemory> Wake for WindowsClosed<M> {
    fn wake(self: Arc<Self>) {
        if let Some(held) = self.held.upgrade() {
            held.wake();
        }
    }
}

impl<M: AdoptedMemory> Releases for Held<M> {
    fn release(&self) -> bool {
        self.is_woken.store(false, Ordering::SeqCst);
        let ended = match self.streams.get().and_then(Weak::upgrade) {
            // The pool may be dropped here: before the owners, which then find nothing in use.
            Some(streams) => Table::<M>::of(&streams).take_closed(Patience::Poll).memory,
            None => Vec::new(),
        };
        ended.into_iter().for_each(|memory| self.drop_memory(memory));
        // What cannot be queried is looked at again.
        let _ = self.release_done(Look::Woken);
        self.is_forgotten()
    }
}

impl<M> Drop for Held<M> {
    /// Leaks the memory that was not released: the device may be using it.
    fn drop(&mut self) {
        let mut held = lock(&self.memory);
        held.live.drain().for_each(std::mem::forget);
        held.waiting.drain().for_each(std::mem::forget);
    }
}
