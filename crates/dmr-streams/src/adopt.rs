//! Streams of other owners: adopted into a pool, and given up before their owner destroys them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUstream};
use dmr_core::error::StreamProblem;
use dmr_core::{ResourceError, ResourceResult, StreamId};

use crate::pool::Created;
use crate::{StreamLease, StreamPool};

/// `CU_STREAM_LEGACY`, which the null handle means as well.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`.
pub(crate) const PER_THREAD: usize = 2;

impl StreamPool {
    /// Takes a stream that cudarc owns into the pool, as a lease.
    ///
    /// The pool keeps it alive. A stream can be adopted again once its lease is dropped, and gets
    /// the same slot then.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another context, for the
    /// per-thread default stream (it names a different stream on each thread), for the legacy null
    /// stream ([`adopt_legacy`](Self::adopt_legacy) takes it), for a stream that this pool made
    /// itself, and for one that is adopted already; [`Capacity`](ResourceError::Capacity) after
    /// [`max_adopted`](crate::StreamPoolConfig::max_adopted) different streams;
    /// [`Driver`](ResourceError::Driver).
    pub fn adopt(self: &Arc<Self>, stream: Arc<CudaStream>) -> ResourceResult<StreamLease> {
        match stream.cu_stream() as usize {
            0 | LEGACY => Err(misuse(StreamProblem::LegacyDefault)),
            PER_THREAD => Err(misuse(StreamProblem::PerThreadDefault)),
            _ => {
                self.refuse_other_context(&stream)?;
                self.enter(stream)
            }
        }
    }

    /// Takes a stream of another owner into the pool, as a lease.
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt).
    ///
    /// # Safety
    ///
    /// - `stream` is a stream of CUDA's that was not destroyed. The driver is asked for its context.
    /// - It is not destroyed before [`retire_stream`](Self::retire_stream) has returned `Ok` for
    ///   the lease, and every call that other threads were making meanwhile has returned: one that
    ///   allocates, frees, reaps, trims or asks whether the pool is idle may be about to ask the
    ///   driver about the stream. Or the pool, its leases and everything that tracks uses on it are
    ///   gone.
    pub unsafe fn adopt_raw(self: &Arc<Self>, stream: CUstream) -> ResourceResult<StreamLease> {
        // SAFETY: the caller's promises; `adopt` refuses a stream of another context, and drops
        // what was wrapped here without a call.
        self.adopt(unsafe { self.device().context().wrap_borrowed_stream(stream) })
    }

    /// Takes CUDA's legacy null stream into the pool: for work of libraries that submit to it.
    ///
    /// The driver orders it with every blocking stream of the context; the streams of the pool
    /// are non-blocking, so between these and the null stream the use table sees to the order.
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt).
    pub fn adopt_legacy(self: &Arc<Self>) -> ResourceResult<StreamLease> {
        self.enter(self.device().context().default_stream())
    }

    /// Gives an adopted stream up: records a last event on it, which stands for the stream in
    /// every ledger from then on. No later call touches the stream, and its ids are refused. Its
    /// owner may destroy it once the calls that other threads were making meanwhile have returned.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of the pool's own;
    /// [`Driver`](ResourceError::Driver), when nothing has changed.
    pub fn retire_stream(&self, lease: &StreamLease) -> ResourceResult<()> {
        self.device().refuse_fork()?;
        let id = self.resolve_id(lease.id())?;
        let adopted = self.adopted_slots().find(|(index, _)| *index == id.slot());
        let Some((index, slot)) = adopted else {
            return Err(ResourceError::stream_misuse(id, StreamProblem::NotAdopted));
        };
        self.progress().end(self, index)?;
        slot.retired.store(true, Ordering::Release);
        Ok(())
    }

    /// Errors unless the driver reports that the stream belongs to the device's context: the context of a
    /// raw handle is not known.
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

    fn enter(self: &Arc<Self>, stream: Arc<CudaStream>) -> ResourceResult<StreamLease> {
        self.device().refuse_fork()?;
        let (slot, lease) = self.take_adopted(&stream)?;
        let entered = self.progress().announce_second_stream(self).map(|()| {
            let created = || Created { stream, priority: 0 };
            Arc::clone(&self.slot(slot).stream.get_or_init(created).stream)
        });
        let stream = entered.inspect_err(|_| self.untake(slot))?;
        self.slot(slot).lease.store(lease, Ordering::Release);
        Ok(StreamLease::new(Arc::clone(self), self.id_of(slot, lease), stream))
    }

    /// The slot that the stream had before, else one that no stream has had.
    fn take_adopted(&self, stream: &CudaStream) -> ResourceResult<(usize, u32)> {
        if self.own_slots().any(|slot| has(slot, stream)) {
            return Err(misuse(StreamProblem::PoolsOwn));
        }
        let mut books = self.books();
        let live = |slot: &crate::pool::Slot| !slot.retired.load(Ordering::Acquire);
        let known = self.adopted_slots().find(|(_, slot)| live(slot) && has(slot, stream));
        let fresh = || {
            let unused = |index: usize| !books[index].taken;
            self.adopted_slots().find(|(index, slot)| slot.stream.get().is_none() && unused(*index))
        };
        let found = known.or_else(fresh).map(|(index, _)| index);
        let limit = self.adopted_slots().count();
        let index = found.ok_or(ResourceError::capacity("adopted streams of the pool", limit))?;
        let entry = &mut books[index];
        if entry.taken {
            return Err(misuse(StreamProblem::AlreadyAdopted));
        }
        if entry.last_lease == StreamId::MAX_LEASE {
            return Err(ResourceError::capacity(
                "leases of the stream",
                StreamId::MAX_LEASE as usize,
            ));
        }
        entry.taken = true;
        entry.last_lease += 1;
        Ok((index, entry.last_lease))
    }
}

/// Whether the slot's stream is this one.
fn has(slot: &crate::pool::Slot, stream: &CudaStream) -> bool {
    slot.stream.get().is_some_and(|known| known.stream.cu_stream() == stream.cu_stream())
}

/// What is wrong with a stream that has no id here.
fn misuse(problem: StreamProblem) -> ResourceError {
    ResourceError::stream_misuse(StreamId::UNISSUED, problem)
}
