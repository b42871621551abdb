//! Streams of other owners: adopted into a pool, and retired before their owner destroys them.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys;
use dmr_core::error::StreamProblem;
use dmr_core::sync::lock;
use dmr_core::{ResourceError, ResourceResult, StreamId};

use crate::config::LIBRARY_STREAMS;
use crate::guard::PER_THREAD;
use crate::holds::{HeldBy, Holds};
use crate::stream_entry::LeaseNumbers;
use crate::{StreamLease, StreamPool};
use dmr_core::spinlock::pause;

/// A value that keeps an adopted stream alive.
pub(crate) type Owner = Box<dyn Any + Send + Sync>;

/// `CU_STREAM_LEGACY`, which the null handle means as well.
const LEGACY: usize = 1;

impl StreamPool {
    /// Adopts a stream by its handle (a `CUstream`), as a lease, and keeps its owner until it is
    /// retired: whatever destroys the stream when it is dropped, or `()` if the program itself sees
    /// to it.
    ///
    /// A stream can be adopted again once its lease is dropped, and gets the same slot then. The
    /// slot of a retired stream is used again once the lease is dropped: the next stream in it
    /// waits for the last work of the retired one, if that is not done.
    ///
    /// The owner is dropped by the call that retires the stream, or with the pool, and never under
    /// a lock. If the stream is adopted again under another lease, the owner of before is dropped,
    /// and the new one kept. An error drops it, too.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another context, for the
    /// per-thread default stream (it names a different stream on each thread), for the legacy null
    /// stream ([`adopt_legacy`](Self::adopt_legacy) takes it), for a stream that this pool made
    /// itself, and for one that is adopted already; [`Capacity`](ResourceError::Capacity) for more
    /// than [`max_adopted`](crate::StreamPoolConfig::max_adopted) streams that are not retired, or
    /// whose leases are not dropped; [`StreamCapturing`](ResourceError::StreamCapturing) if the
    /// pool's first stream captures a graph, unless the pool has a second stream already, and if
    /// `stream` does while it would have to wait for a retired one;
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`Driver`](ResourceError::Driver).
    ///
    /// # Safety
    ///
    /// - `stream` is a CUDA stream that was not destroyed: the driver looks its context up.
    /// - While the owner lives it is not destroyed, unless [`retire_stream`](Self::retire_stream)
    ///   has returned `Ok` for the lease, or the pool, its leases and everything that tracks uses
    ///   on it are gone.
    /// - After that, its handle is not used any more, nor a stream of cudarc that the lease or the
    ///   pool has returned.
    pub unsafe fn adopt_raw(
        self: &Arc<Self>,
        stream: *mut c_void,
        owner: impl Any + Send + Sync,
    ) -> ResourceResult<StreamLease> {
        let owner: Owner = Box::new(owner);
        // SAFETY: the caller's obligations; `adopt_cudarc` refuses a stream of another context, and
        // drops the wrapper without a driver call.
        let wrapped = unsafe { self.device().context().wrap_borrowed_stream(stream.cast()) };
        let lease = self.adopt_cudarc(wrapped)?;
        let before = lock(&self.owners).insert(lease.id().slot(), owner);
        drop(before);
        Ok(lease)
    }

    /// Adopts a stream that cudarc owns.
    pub(crate) fn adopt_cudarc(
        self: &Arc<Self>,
        stream: Arc<CudaStream>,
    ) -> ResourceResult<StreamLease> {
        match stream.cu_stream() as usize {
            0 | LEGACY => Err(misuse(StreamProblem::LegacyDefault)),
            PER_THREAD => Err(misuse(StreamProblem::PerThreadDefault)),
            _ => {
                self.refuse_other_context(&stream)?;
                self.adopt_checked(stream)
            }
        }
    }

    /// Adopts CUDA's legacy null stream: for work of libraries that submit to it.
    ///
    /// The driver orders it with every blocking stream of the context. The streams of the pool are
    /// non-blocking, so the use table orders them with the null stream.
    ///
    /// # Errors
    ///
    /// As [`adopt_raw`](Self::adopt_raw).
    pub fn adopt_legacy(self: &Arc<Self>) -> ResourceResult<StreamLease> {
        self.device().check()?;
        self.adopt_checked(self.device().context().default_stream())
    }

    /// Retires an adopted stream: records a last event on it, which stands for the stream in every
    /// ledger from then on. No later call touches the stream, and its ids are refused, also after
    /// another stream was adopted in its slot. Its owner may destroy it once this has returned
    /// `Ok`.
    ///
    /// Does not wait; [`retire_stream_timeout`](Self::retire_stream_timeout) does.
    ///
    /// # Errors
    ///
    /// Nothing has changed then. [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of the
    /// pool's own, for a returned lease and a retired stream, while a launch that uses the stream
    /// is prepared and neither finished nor cancelled, and while a call of a thread uses it;
    /// [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`DeviceLost`](ResourceError::DeviceLost);
    /// [`Driver`](ResourceError::Driver).
    pub fn retire_stream(&self, lease: &StreamLease) -> ResourceResult<()> {
        self.device().check()?;
        let id = self.resolve_id(lease.id())?;
        let not_adopted = ResourceError::stream_misuse(id, StreamProblem::NotAdopted);
        let holds = self.holds(id.slot()).ok_or(not_adopted)?;
        let closing = holds.begin_closing().map_err(|held_by| self.held(id, held_by))?;
        let guard = self.guard_of_retirement(id)?;
        let last = self.progress().event_on(&guard)?;
        if !closing.close() {
            return Err(self.held(id, HeldBy::Call));
        }
        self.progress().seal(id.slot(), last);
        let slot = self.entry(id.slot()).ok_or_else(|| self.misuse(id))?;
        let mut leases = self.leases();
        let retirements = leases.iter().map(|lease| lease.retirement).max();
        leases[id.slot()].retirement = retirements.unwrap_or(0) + 1;
        // The lease keeps the stream, so no driver call destroys it under the lock.
        slot.end_stream(&mut leases);
        drop(leases);
        let owner = lock(&self.owners).remove(&id.slot());
        drop(owner);
        dmr_recorder::hooks::stream_retired(id);
        Ok(())
    }

    /// Retires an adopted stream as [`retire_stream`](Self::retire_stream) does, and waits for the
    /// launches and calls that use it, but not longer than `timeout`. Holds no lock while it waits.
    ///
    /// # Errors
    ///
    /// As [`retire_stream`](Self::retire_stream), for the last attempt.
    pub fn retire_stream_timeout(
        &self,
        lease: &StreamLease,
        timeout: Duration,
    ) -> ResourceResult<()> {
        let start = Instant::now();
        let mut attempts: u32 = 0;
        loop {
            let retired = self.retire_stream(lease);
            let is_held = |error: &ResourceError| matches!(error, ResourceError::StreamMisuse { problem, .. } if problem.is_held());
            if !retired.as_ref().is_err_and(is_held) || start.elapsed() >= timeout {
                return retired;
            }
            pause(attempts);
            attempts = attempts.saturating_add(1);
        }
    }

    /// Returns the error for a stream that cannot be retired now.
    fn held(&self, id: StreamId, held_by: HeldBy) -> ResourceError {
        let problem = match held_by {
            HeldBy::Window => match self.slots().block_with_window_on(id, self.progress()) {
                Some(block) => StreamProblem::open_window(block),
                // It was closed just now, by a call that may not have ended.
                None => StreamProblem::InCall,
            },
            HeldBy::Call => StreamProblem::InCall,
            HeldBy::Nothing => StreamProblem::ReturnedLease,
        };
        ResourceError::stream_misuse(id, problem)
    }

    /// Refuses a stream of another context than the device's. The driver looks it up, because a raw
    /// handle does not contain its context.
    fn refuse_other_context(&self, stream: &CudaStream) -> ResourceResult<()> {
        self.device().check()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream is alive for as long as it is borrowed; the driver writes one handle.
        unsafe { sys::cuStreamGetCtx(stream.cu_stream(), &mut context) }
            .result()
            .map_err(|error| self.device().driver_error("cuStreamGetCtx", error))?;
        match context == self.device().context().cu_ctx() {
            true => Ok(()),
            false => Err(misuse(StreamProblem::OtherContext)),
        }
    }

    fn adopt_checked(self: &Arc<Self>, stream: Arc<CudaStream>) -> ResourceResult<StreamLease> {
        let taken = self.take_entry_for(stream.cu_stream() as usize)?;
        let index = taken.slot;
        let mut ready = self.progress().announce_second_stream(self);
        if taken.is_new {
            let order = |()| self.progress().order_after_retired(self.device(), index, &stream);
            ready = ready.and_then(order);
        }
        let mut leases = self.leases();
        leases[index].adopting = None;
        leases[index].is_taken = ready.is_ok();
        ready?;
        let slot = self.entry(index).ok_or_else(|| misuse(StreamProblem::NotAdopted))?;
        let id = self.id_of(index, taken.numbers.lease);
        if taken.is_new {
            self.progress().continue_with_next(index);
            slot.begin_stream(&mut leases, stream, taken.numbers);
            dmr_recorder::hooks::stream_created(id);
        } else {
            slot.set_lease(id);
        }
        let known = slot.adopted(&leases).map(Arc::clone);
        drop(leases);
        let stream = known.ok_or_else(|| self.misuse(id))?;
        Ok(StreamLease::new(Arc::clone(self), id, stream))
    }

    /// Takes the slot that has this stream, or else one without a stream: one that has had none, or
    /// the one that was retired before all others, because its work is done first. The handle is
    /// compared with that of every slot, and of streams that other threads are adopting.
    fn take_entry_for(&self, handle: usize) -> ResourceResult<TakenEntry> {
        // Before the lock: another thread may have held it when the process was forked.
        self.device().refuse_fork()?;
        let mut leases = self.leases();
        let mut known = None;
        let mut retired: Option<usize> = None;
        for (index, slot) in self.entries() {
            if slot.has_handle(handle, &leases) || leases[index].adopting == Some(handle) {
                known = Some(index);
            }
            let is_free = slot.holds().is_some_and(Holds::is_retired)
                && !leases[index].is_taken
                && leases[index].last_number < StreamId::MAX_LEASE - 1;
            let is_first = |other: usize| leases[index].retirement < leases[other].retirement;
            if is_free && retired.is_none_or(is_first) {
                retired = Some(index);
            }
        }
        if known.is_some_and(|index| self.holds(index).is_none()) {
            return Err(misuse(StreamProblem::OwnedByPool));
        }
        let limit = self.max_slots() - LIBRARY_STREAMS - self.max_streams();
        let full = ResourceError::capacity("adopted streams of the pool", limit)
            .advised("retire one with `retire_stream` and drop its lease, or raise `max_adopted`");
        let index = known.or(retired).ok_or(full)?;
        let lease = &mut leases[index];
        if lease.is_taken {
            return Err(misuse(StreamProblem::AlreadyAdopted));
        }
        if lease.last_number == StreamId::MAX_LEASE {
            let limit = StreamId::MAX_LEASE as usize;
            return Err(ResourceError::capacity("leases of the stream", limit));
        }
        lease.is_taken = true;
        lease.adopting = Some(handle);
        let is_new = known.is_none();
        // A stream that is adopted for the first time gets two numbers.
        let permanent = lease.last_number + 1;
        lease.last_number = permanent + u32::from(is_new);
        let numbers = LeaseNumbers { permanent, lease: lease.last_number };
        Ok(TakenEntry { slot: index, is_new, numbers })
    }
}

/// A slot that is taken for a stream that is being adopted.
struct TakenEntry {
    slot: usize,
    /// The slot has no stream: the last one was retired, or there was none.
    is_new: bool,
    numbers: LeaseNumbers,
}

/// Returns the error for a stream that has no id here.
fn misuse(problem: StreamProblem) -> ResourceError {
    ResourceError::stream_misuse(StreamId::UNISSUED, problem)
}
