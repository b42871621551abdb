//! One entry of a stream pool: its stream, which calls read without a lock, and its lease.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;
use dmr_core::StreamId;

use crate::holds::Holds;

/// The lease number of ids of the pool's own streams that need no lease.
pub(crate) const PERMANENT: u32 = 0;

/// A word that is no id: no pool has number 0.
const NO_ID: u64 = 1;

/// One stream of a pool. Read without a lock.
// In this order: what a call on a stream of the pool needs shares a cache line.
#[repr(C)]
pub(crate) struct StreamEntry {
    /// The id of the current lease of the pool's own stream, or [`NO_ID`].
    leased: AtomicU64,
    /// The id of the pool's own stream that needs no lease; [`NO_ID`] before the stream was made,
    /// and in an entry for streams of other owners.
    permanent: AtomicU64,
    /// The handle of the stream.
    handle: AtomicUsize,
    stream: StreamCell,
    /// Code outside of the library has had the stream, and may have begun a capture on it.
    is_lent: AtomicBool,
    /// `Some` in an entry for streams of other owners.
    adopted: Option<AdoptedEntry>,
}

/// The part of an entry for streams of other owners.
struct AdoptedEntry {
    /// Counts the calls and launches that delay the retirement of the stream. The stream is retired
    /// where there is none.
    holds: Holds,
    /// The number of the current lease, or [`permanent`](Self::permanent).
    lease: AtomicU32,
    /// The lease number of ids that need no lease: another number for each stream.
    permanent: AtomicU32,
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

impl AdoptedEntry {
    /// Returns whether ids of this lease number name the stream.
    fn admits(&self, lease: u32) -> bool {
        // Acquire: pairs with `set_lease` and `begin_stream`.
        lease == self.lease.load(Ordering::Acquire)
            || lease == self.permanent.load(Ordering::Acquire)
    }
}

impl StreamEntry {
    /// Makes an entry for a stream of the pool.
    pub(crate) fn for_own() -> Self {
        Self::new(None)
    }

    /// Makes an entry for streams of other owners.
    pub(crate) fn for_adopted() -> Self {
        Self::new(Some(AdoptedEntry {
            holds: Holds::retired(),
            lease: AtomicU32::new(PERMANENT),
            permanent: AtomicU32::new(PERMANENT),
        }))
    }

    fn new(adopted: Option<AdoptedEntry>) -> Self {
        Self {
            leased: AtomicU64::new(NO_ID),
            permanent: AtomicU64::new(NO_ID),
            handle: AtomicUsize::new(0),
            stream: StreamCell::default(),
            // A stream of another owner always is.
            is_lent: AtomicBool::new(adopted.is_some()),
            adopted,
        }
    }

    /// Returns whether the id names the stream.
    #[inline]
    pub(crate) fn admits(&self, id: StreamId) -> bool {
        match &self.adopted {
            Some(adopted) => adopted.admits(id.lease()),
            None => self.admits_own(id),
        }
    }

    /// Returns whether the id names the stream of the pool that is in this entry.
    #[inline(always)]
    pub(crate) fn admits_own(&self, id: StreamId) -> bool {
        // Acquire: pairs with `set_lease` and `set_own`.
        id.as_u64() == self.leased.load(Ordering::Acquire)
            || id.as_u64() == self.permanent.load(Ordering::Acquire)
    }

    /// Returns whether the id names the stream of the pool that is in this entry, or has named it.
    #[inline(always)]
    pub(crate) fn is_own_home(&self, id: StreamId) -> bool {
        let permanent = id.as_u64() & !u64::from(StreamId::MAX_LEASE);
        self.permanent.load(Ordering::Acquire) == permanent
    }

    /// Returns the lease number of ids that need no lease.
    #[inline]
    pub(crate) fn permanent(&self) -> u32 {
        self.adopted.as_ref().map_or(PERMANENT, |it| it.permanent.load(Ordering::Acquire))
    }

    /// Returns whether the entry is leased.
    pub(crate) fn is_leased(&self) -> bool {
        match &self.adopted {
            Some(it) => it.lease.load(Ordering::Relaxed) != it.permanent.load(Ordering::Relaxed),
            None => self.leased.load(Ordering::Relaxed) != NO_ID,
        }
    }

    /// Begins a lease: from here on this id names the stream.
    pub(crate) fn set_lease(&self, id: StreamId) {
        match &self.adopted {
            Some(adopted) => adopted.lease.store(id.lease(), Ordering::Release),
            None => self.leased.store(id.as_u64(), Ordering::Release),
        }
    }

    /// Ends the lease: its id is refused from here on.
    pub(crate) fn end_lease(&self) {
        match &self.adopted {
            Some(adopted) => adopted.lease.store(self.permanent(), Ordering::Release),
            None => self.leased.store(NO_ID, Ordering::Release),
        }
    }

    /// Returns the calls and launches that hold the stream, in an entry for adopted streams.
    #[inline]
    pub(crate) fn holds(&self) -> Option<&Holds> {
        self.adopted.as_ref().map(|adopted| &adopted.holds)
    }

    /// Begins a call on the adopted stream, if the id names it. The lease number is compared again
    /// when the call is counted: the stream may have been retired meanwhile, and another one
    /// adopted here.
    #[inline(never)]
    pub(crate) fn enter_adopted(&self, holds: &Holds, id: StreamId) -> bool {
        if !self.admits(id) || !holds.enter() {
            return false;
        }
        let is_same = self.admits(id);
        if !is_same {
            holds.leave();
        }
        is_same
    }

    /// Notes that the stream leaves the library: from here on calls look for captures on it. Call
    /// it before code outside has the stream.
    #[inline]
    pub(crate) fn lend(&self) {
        // Written once, so that the line stays shared.
        if !self.is_lent() {
            self.is_lent.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether code outside of the library may have begun a capture on the stream.
    ///
    /// Relaxed: a call that comes after the begin of a capture comes after `lend`, too. A call that
    /// runs beside it and needs to know looks once more after its driver call on the stream, which
    /// the driver has ordered after or before the begin of the capture.
    #[inline(always)]
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Relaxed)
    }

    /// Returns whether the entry has a stream that calls can use.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        match self.holds() {
            Some(holds) => !holds.is_retired(),
            None => self.own().is_some(),
        }
    }

    /// Returns the handle of the stream of an entry that a call has entered.
    #[inline(always)]
    pub(crate) fn handle(&self) -> CUstream {
        self.handle.load(Ordering::Relaxed) as CUstream
    }

    /// Returns the pool's own stream; `None` before calls can enter it, and in an entry for adopted
    /// streams.
    #[inline]
    pub(crate) fn own(&self) -> Option<&PoolStream> {
        // Acquire: pairs with `set_own`, after which the id and the handle are there, too.
        match self.permanent.load(Ordering::Acquire) {
            NO_ID => None,
            // SAFETY: only the stream of an entry for adopted streams is replaced.
            _ => unsafe { self.stream.get() },
        }
    }

    /// Sets the pool's own stream, unless another thread has set one; returns the stream of the
    /// entry. From here on the id, which needs no lease, names it.
    pub(crate) fn set_own(&self, created: PoolStream, id: StreamId) -> &PoolStream {
        debug_assert!(self.adopted.is_none());
        // SAFETY: as in `own`.
        let own = unsafe { self.stream.get_or_init(created) };
        self.handle.store(own.stream.cu_stream() as usize, Ordering::Relaxed);
        self.permanent.store(id.as_u64(), Ordering::Release);
        own
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
        self.adopted.as_ref()?;
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
        let Some(adopted) = self.adopted.as_ref().filter(|it| it.holds.is_retired()) else {
            return;
        };
        self.handle.store(stream.cu_stream() as usize, Ordering::Relaxed);
        // SAFETY: no call has entered the entry, because it is retired, and no thread reads under
        // the lock.
        drop(unsafe { self.stream.replace(Some(PoolStream { stream, priority: 0 })) });
        adopted.permanent.store(numbers.permanent, Ordering::Release);
        adopted.lease.store(numbers.lease, Ordering::Release);
        adopted.holds.reopen();
    }

    /// Removes the adopted stream of an entry that is retired. The caller has locked the leases.
    pub(crate) fn end_stream(&self, _: &mut [LeaseState]) {
        if self.holds().is_some_and(Holds::is_retired) {
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
