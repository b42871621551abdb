//! One entry of a stream pool: its stream, which calls read without a lock, and its lease.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaStream;

use crate::holds::Holds;

/// The lease number of ids of the pool's own streams that need no lease.
pub(crate) const PERMANENT: u32 = 0;

/// One stream of a pool. Read without a lock.
pub(crate) struct StreamEntry {
    stream: StreamCell,
    /// The number of the current lease, or [`permanent`](Self::permanent).
    lease: AtomicU32,
    /// The lease number of ids that need no lease: [`PERMANENT`], and another number for each
    /// stream that is adopted.
    permanent: AtomicU32,
    /// `Some` in an entry for adopted streams: counts the calls and windows that delay the
    /// retirement of its stream. It is retired where there is no stream.
    holds: Option<Holds>,
}

/// A stream with its priority.
pub(crate) struct PoolStream {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) priority: i32,
}

/// The lease of an entry. Changed under the pool's lock.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeaseState {
    /// The entry is leased, or its stream is being created.
    pub(crate) is_taken: bool,
    /// The number of the latest lease.
    pub(crate) last_number: u32,
    /// The handle of the stream that is being adopted.
    pub(crate) adopting: Option<usize>,
    /// The number of the retirement of its last stream, counted over all slots; 0 if there was
    /// none.
    pub(crate) retirement: u64,
}

/// The lease numbers of an adopted stream.
#[derive(Clone, Copy)]
pub(crate) struct LeaseNumbers {
    /// Of ids that need no lease.
    pub(crate) permanent: u32,
    /// Of the first lease.
    pub(crate) lease: u32,
}

impl StreamEntry {
    /// Makes an entry for a stream of the pool.
    pub(crate) fn for_own() -> Self {
        Self::new(None)
    }

    /// Makes an entry for streams of other owners.
    pub(crate) fn for_adopted() -> Self {
        Self::new(Some(Holds::retired()))
    }

    fn new(holds: Option<Holds>) -> Self {
        let stream = StreamCell::default();
        Self {
            stream,
            lease: AtomicU32::new(PERMANENT),
            permanent: AtomicU32::new(PERMANENT),
            holds,
        }
    }

    /// Returns whether ids of this lease number name the stream.
    #[inline]
    pub(crate) fn admits(&self, lease: u32) -> bool {
        // Acquire: pairs with `set_lease` and `begin_stream`.
        lease == self.lease.load(Ordering::Acquire) || lease == self.permanent()
    }

    /// Returns whether ids of this lease number name the stream of the pool that is in this entry.
    #[inline]
    pub(crate) fn admits_own(&self, lease: u32) -> bool {
        lease == PERMANENT || self.lease.load(Ordering::Acquire) == lease
    }

    /// Returns the lease number of ids that need no lease.
    #[inline]
    pub(crate) fn permanent(&self) -> u32 {
        self.permanent.load(Ordering::Acquire)
    }

    /// Returns whether the entry is leased.
    pub(crate) fn is_leased(&self) -> bool {
        self.lease.load(Ordering::Relaxed) != self.permanent.load(Ordering::Relaxed)
    }

    /// Sets the number of the current lease.
    pub(crate) fn set_lease(&self, lease: u32) {
        self.lease.store(lease, Ordering::Release);
    }

    /// Ends the lease: ids of its number are refused from here on.
    pub(crate) fn end_lease(&self) {
        self.set_lease(self.permanent());
    }

    /// Returns the calls and windows that hold the stream, in an entry for adopted streams.
    #[inline]
    pub(crate) fn holds(&self) -> Option<&Holds> {
        self.holds.as_ref()
    }

    /// Begins a call on the adopted stream, if ids of this lease number name it. The number is
    /// compared again when the call is counted: the stream may have been retired meanwhile, and
    /// another one adopted here.
    #[inline(never)]
    pub(crate) fn enter_adopted(&self, holds: &Holds, lease: u32) -> bool {
        if !self.admits(lease) || !holds.enter() {
            return false;
        }
        let is_same = self.admits(lease);
        if !is_same {
            holds.leave();
        }
        is_same
    }

    /// Returns whether the entry has a stream that calls can use.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        match &self.holds {
            Some(holds) => !holds.is_retired(),
            None => self.own().is_some(),
        }
    }

    /// Returns the pool's own stream; `None` before it was made, and in an entry for adopted
    /// streams.
    #[inline]
    pub(crate) fn own(&self) -> Option<&PoolStream> {
        match &self.holds {
            Some(_) => None,
            // SAFETY: only the stream of an entry with holds is replaced.
            None => unsafe { self.stream.get() },
        }
    }

    /// Sets the pool's own stream, unless another thread has set one; returns the stream of the
    /// entry.
    pub(crate) fn set_own(&self, created: PoolStream) -> &PoolStream {
        debug_assert!(self.holds.is_none());
        // SAFETY: as in `own`.
        unsafe { self.stream.get_or_init(created) }
    }

    /// Returns the stream of an entry that a call has entered.
    ///
    /// # Safety
    ///
    /// The entry has a stream, and keeps it during the borrow: it is the pool's own, or one that
    /// the caller holds.
    #[inline]
    pub(crate) unsafe fn entered(&self) -> &PoolStream {
        // SAFETY: the caller's obligations.
        unsafe { self.stream.get().unwrap_unchecked() }
    }

    /// Returns the adopted stream, if there is one that is not retired. The caller has locked the
    /// leases.
    pub(crate) fn adopted<'a>(&'a self, _: &'a [LeaseState]) -> Option<&'a Arc<CudaStream>> {
        self.holds.as_ref()?;
        // SAFETY: `begin_stream` and `end_stream` replace it under the lock, which is held during
        // the borrow.
        Some(&unsafe { self.stream.get() }?.stream)
    }

    /// Returns whether the entry has the stream of this handle. The caller has locked the leases.
    pub(crate) fn has_handle(&self, handle: usize, leases: &[LeaseState]) -> bool {
        let stream = self.own().map(|own| &own.stream).or_else(|| self.adopted(leases));
        stream.is_some_and(|stream| stream.cu_stream() as usize == handle)
    }

    /// Begins the time of an adopted stream, with its first lease: calls with its ids enter the
    /// entry from here on. The caller has locked the leases, and has taken the entry.
    pub(crate) fn begin_stream(
        &self,
        _: &mut [LeaseState],
        stream: Arc<CudaStream>,
        numbers: LeaseNumbers,
    ) {
        let Some(holds) = self.holds.as_ref().filter(|holds| holds.is_retired()) else { return };
        // SAFETY: no call has entered the entry, because it is retired, and no thread reads under
        // the lock.
        drop(unsafe { self.stream.replace(Some(PoolStream { stream, priority: 0 })) });
        self.permanent.store(numbers.permanent, Ordering::Release);
        self.lease.store(numbers.lease, Ordering::Release);
        holds.reopen();
    }

    /// Removes the adopted stream of an entry that is retired. The caller has locked the leases.
    pub(crate) fn end_stream(&self, _: &mut [LeaseState]) {
        if self.holds.as_ref().is_some_and(Holds::is_retired) {
            // SAFETY: as in `begin_stream`.
            drop(unsafe { self.stream.replace(None) });
        }
    }
}

/// The stream of an entry: set once, or replaced while nothing reads it.
#[derive(Default)]
struct StreamCell(UnsafeCell<OnceLock<PoolStream>>);

// SAFETY: a `OnceLock` of a stream can be shared. Only `replace` needs it alone, which its caller
// grants.
unsafe impl Sync for StreamCell {}

impl StreamCell {
    /// # Safety
    ///
    /// The stream is not replaced during the borrow.
    #[inline]
    unsafe fn get(&self) -> Option<&PoolStream> {
        // SAFETY: the caller's obligation.
        unsafe { &*self.0.get() }.get()
    }

    /// # Safety
    ///
    /// As for [`get`](Self::get).
    unsafe fn get_or_init(&self, created: PoolStream) -> &PoolStream {
        // SAFETY: the caller's obligation.
        unsafe { &*self.0.get() }.get_or_init(|| created)
    }

    /// # Safety
    ///
    /// Nothing has borrowed the stream, and no other thread calls a function of this meanwhile.
    unsafe fn replace(&self, stream: Option<PoolStream>) -> Option<PoolStream> {
        let replacement = stream.map_or_else(OnceLock::new, OnceLock::from);
        // SAFETY: the caller's obligations.
        std::mem::replace(unsafe { &mut *self.0.get() }, replacement).into_inner()
    }
}
