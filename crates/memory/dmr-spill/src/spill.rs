//! The registry of spillable buffers, which selects what to spill.
//!
//! The registry has weak references only: a buffer belongs to its `Spillable`, wherever its bytes
//! are. Its lock is held to list or to change the entries, and never while a buffer moves. So a
//! failed allocation of a move can call back into the registry and spill other buffers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use dmr_adaptors::callbacks::{AllocationFailure, Response};
use dmr_buffer::{BufferError, DeviceBuffer, Pod};
use dmr_core::process::Process;
use dmr_core::sync::lock;
use dmr_core::{ResourceError, ResourceResult, UseTrackingExt};
use dmr_streams::{StreamLease, StreamPool};

use crate::entry::{Entry, Movable, Place};
use crate::stats::Counter;
use crate::{NotInserted, SpillError, SpillStats, Spillable};

/// The divisor of the cold bytes that are spilled at least when memory runs out.
const SHARE_OF_COLD: u64 = 16;

/// A registry of buffers that may be spilled. `Clone` is cheap, and names the same registry.
///
/// It leases one stream, for the copies to the host. It keeps the streams alive, and neither the
/// buffers nor their resource.
#[derive(Clone)]
pub struct Spill(Arc<Registry>);

struct Registry {
    process: Process,
    copies: Arc<StreamLease>,
    /// Zero of the clock by which buffers get cold.
    start: Instant,
    entries: Mutex<Entries>,
    spilled: Counter,
    restored: Counter,
}

#[derive(Default)]
struct Entries {
    by_number: BTreeMap<u64, Weak<dyn Movable>>,
    next: u64,
}

impl Spill {
    /// Makes a registry for buffers of these streams. Leases one of the streams.
    ///
    /// # Errors
    ///
    /// As [`StreamPool::acquire`].
    pub fn new(streams: &Arc<StreamPool>) -> ResourceResult<Self> {
        Ok(Self::copying_on(Arc::new(streams.acquire()?)))
    }

    /// Makes another registry, for other buffers, which copies on the same stream as this one: for
    /// a tenant, which spills its own buffers and leases no stream for that.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::copying_on(Arc::clone(&self.0.copies))
    }

    fn copying_on(copies: Arc<StreamLease>) -> Self {
        Self(Arc::new(Registry {
            process: Process::current(),
            copies,
            start: Instant::now(),
            entries: Mutex::default(),
            spilled: Counter::default(),
            restored: Counter::default(),
        }))
    }

    /// Inserts a buffer, which may be spilled from now on.
    ///
    /// # Errors
    ///
    /// The error contains the buffer. [`OtherPool`](SpillError::OtherPool),
    /// [`Untracked`](SpillError::Untracked), and [`Buffer`](SpillError::Buffer) in a forked child.
    pub fn insert<T: Pod + Send + Sync>(
        &self,
        buffer: DeviceBuffer<T>,
    ) -> Result<Spillable<T>, Box<NotInserted<T>>> {
        let context = buffer.context();
        let refused = if let Err(error) = self.check_process() {
            Some(error)
        } else if context.streams().id() != self.0.copies.pool().id() {
            Some(SpillError::OtherPool)
        } else if !context.resource().supports_block_use_tracking() {
            Some(SpillError::Untracked)
        } else {
            None
        };
        if let Some(error) = refused {
            return Err(NotInserted::new(error, buffer));
        }
        let entry = Arc::new(Entry::new(buffer, self.now()));
        let movable = Arc::downgrade(&entry) as Weak<dyn Movable>;
        let mut entries = lock(&self.0.entries);
        let number = entries.next;
        entries.next += 1;
        entries.by_number.insert(number, movable);
        drop(entries);
        Ok(Spillable::new(entry, Registered { spill: self.clone(), number }))
    }

    /// Spills cold buffers of at least `bytes` bytes, coldest first; returns their bytes. A buffer
    /// is colder than another if its last guard was dropped earlier, or if it was inserted earlier
    /// and has had none.
    ///
    /// Does not wait for the device: the memory is free once the copies are done, for instance
    /// after [`reap_pending`](dmr_core::DeviceMemoryResource::reap_pending). Waits for other
    /// threads that are spilling, if cold buffers are too few, and counts what they have spilled.
    ///
    /// # Errors
    ///
    /// [`NotEnough`](SpillError::NotEnough): the others are in use, or cannot be moved, because a
    /// launch has a window open or because pinned memory is refused. What was spilled stays on the
    /// host.
    pub fn free(&self, bytes: u64) -> Result<u64, SpillError> {
        self.check_process()?;
        let mut cold = Vec::new();
        let mut spilling = Vec::new();
        for entry in self.entries() {
            match entry.place() {
                Place::Cold(size) if size > 0 => cold.push((entry.last_use(), size, entry)),
                Place::Spilling(_) => spilling.push(entry),
                _ => {}
            }
        }
        // Sorted without a lock: a buffer that is used meanwhile is skipped by its own spill.
        cold.sort_by_key(|(last_use, ..)| *last_use);
        let mut spilled = 0;
        let mut problem = None::<Refusal>;
        for (_, size, entry) in cold {
            if spilled >= bytes {
                break;
            }
            // Memory that was refused for a smaller buffer is refused for this one.
            if problem.as_ref().is_some_and(|refusal| refusal.repeats_for(size)) {
                continue;
            }
            match entry.spill(&self.0.copies) {
                // It is not cold any more. Another thread may be spilling it.
                Ok(0) => spilling.push(entry),
                Ok(moved) => {
                    self.0.spilled.add(moved);
                    spilled += moved;
                }
                Err(error) => problem = Some(Refusal::first(problem, error, size)),
            }
        }
        for entry in spilling {
            if spilled >= bytes {
                break;
            }
            spilled += entry.wait_for_spill();
        }
        if spilled >= bytes {
            return Ok(spilled);
        }
        let stats = Box::new(self.stats());
        let problem = problem.map(|it| Box::new(it.error));
        Err(SpillError::NotEnough { requested: bytes, spilled, stats, problem })
    }

    /// Returns a callback for
    /// [`FailureCallbackLayer`](dmr_adaptors::callbacks::FailureCallbackLayer), which spills as
    /// many bytes as the refused allocation has requested, and at least 1/16 of the cold bytes: an
    /// allocation that runs out of memory has waited for device work, and the next ones are to find
    /// room. It declines when nothing is cold.
    ///
    /// Memory that was spilled may be in pieces, so an allocation may call it several times.
    pub fn callback(
        &self,
    ) -> impl Fn(&AllocationFailure<'_>) -> Response + Send + Sync + Clone + 'static {
        let spill = self.clone();
        move |failure| match spill.free(spill.share_for(failure.bytes as u64)) {
            Ok(_) => Response::Retry,
            Err(SpillError::NotEnough { spilled, .. }) if spilled > 0 => Response::Retry,
            Err(_) => Response::Decline,
        }
    }

    /// Returns the state of the buffers, and counts of the copies. Zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> SpillStats {
        let mut stats = SpillStats::default();
        if self.check_process().is_err() {
            return stats;
        }
        stats.spilled = self.0.spilled.get();
        stats.restored = self.0.restored.get();
        for entry in self.entries() {
            match entry.place() {
                Place::Cold(bytes) => stats.cold.add(bytes),
                Place::InUse(bytes) | Place::Spilling(bytes) => stats.in_use.add(bytes),
                Place::OnHost(bytes) => stats.on_host.add(bytes),
            }
        }
        stats
    }

    /// Returns the bytes to spill for an allocation of `bytes` bytes.
    fn share_for(&self, bytes: u64) -> u64 {
        bytes.max(self.stats().cold.bytes / SHARE_OF_COLD)
    }

    /// Returns the entries whose `Spillable` lives.
    fn entries(&self) -> Vec<Arc<dyn Movable>> {
        lock(&self.0.entries).by_number.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the count of the copies back to the device.
    pub(crate) fn restored(&self) -> &Counter {
        &self.0.restored
    }

    /// Returns the time of the registry's clock, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.0.start.elapsed().as_nanos() as u64
    }

    /// Errors in a forked child, where a thread of the parent may have held a lock.
    pub(crate) fn check_process(&self) -> Result<(), SpillError> {
        let ordinal = self.0.copies.pool().device().ordinal();
        self.0.process.check(ordinal).map_err(SpillError::resource)
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spill").field(&self.stats()).finish()
    }
}

/// The first error of a buffer that could not be spilled, and the bytes of the smallest buffer for
/// which pinned memory was refused.
struct Refusal {
    error: BufferError,
    no_pinned_memory_for: u64,
}

impl Refusal {
    fn first(earlier: Option<Self>, error: BufferError, size: u64) -> Self {
        // After another driver error, a copy of a larger buffer would fail as well.
        let is_refusal = matches!(
            &error,
            BufferError::Resource(
                ResourceError::Driver { .. }
                    | ResourceError::OutOfMemory { .. }
                    | ResourceError::OutOfBudget { .. }
            )
        );
        let no_pinned_memory_for = if is_refusal { size } else { u64::MAX };
        match earlier {
            None => Self { error, no_pinned_memory_for },
            Some(Self { error, no_pinned_memory_for: before }) => {
                Self { error, no_pinned_memory_for: before.min(no_pinned_memory_for) }
            }
        }
    }

    fn repeats_for(&self, size: u64) -> bool {
        size >= self.no_pinned_memory_for
    }
}

/// The place of an entry in its registry, which ends when this is dropped.
pub(crate) struct Registered {
    spill: Spill,
    number: u64,
}

impl Registered {
    pub(crate) fn spill(&self) -> &Spill {
        &self.spill
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.spill.check_process().is_ok() {
            lock(&self.spill.0.entries).by_number.remove(&self.number);
        }
    }
}
