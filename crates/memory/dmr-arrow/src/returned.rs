//! The memory of released exports: freed once the device has done the work of the consumer.

use std::sync::{Arc, Mutex};

use dmr_buffer::PinnedBuffer;
use dmr_core::process::PerProcess;
use dmr_core::sync::lock;
use dmr_streams::{CurrentContext, StreamPool};

use crate::ColumnBuffer;
use crate::export::ExportEvent;

/// The memory that an exported array has kept.
pub(crate) struct Returned {
    buffers: Vec<ColumnBuffer>,
    sizes: Option<PinnedBuffer<i64>>,
    event: Option<Arc<ExportEvent>>,
    streams: Arc<StreamPool>,
}

/// The memory that was released, and could not be waited for. Never locked across a driver call.
static WAITING: PerProcess<Mutex<Vec<Returned>>> = PerProcess::new(Mutex::default);

impl Returned {
    pub(crate) fn new(
        streams: &Arc<StreamPool>,
        buffers: Vec<ColumnBuffer>,
        sizes: Option<PinnedBuffer<i64>>,
        event: Option<Arc<ExportEvent>>,
    ) -> Self {
        Self { buffers, sizes, event, streams: Arc::clone(streams) }
    }

    /// Returns the buffers, if they are of these streams.
    pub(crate) fn buffers_of(&self, streams: &Arc<StreamPool>) -> Option<&[ColumnBuffer]> {
        Arc::ptr_eq(&self.streams, streams).then_some(&*self.buffers)
    }

    /// Frees what was released, of one stream pool, and what waits of that pool, after the work
    /// that was submitted to the device so far, by whatever stream.
    pub(crate) fn free(returned: Vec<Self>) {
        let Some(streams) = returned.first().map(|first| Arc::clone(&first.streams)) else {
            return;
        };
        if streams.device().is_forked() {
            returned.into_iter().for_each(std::mem::forget);
            return;
        }
        let _current = CurrentContext::keep();
        let mut all = returned;
        all.extend(take_waiting(&streams));
        match is_done(&streams) {
            true => drop(all),
            false => lock(WAITING.get()).extend(all),
        }
    }

    /// Frees what could not be waited for before, of this stream pool.
    pub(crate) fn free_waiting(streams: &StreamPool) {
        let waiting = take_waiting(streams);
        if !waiting.is_empty() {
            Self::free(waiting);
        }
    }
}

/// Takes what waits of a stream pool. A pool has an identity that no other one of the process gets.
fn take_waiting(streams: &StreamPool) -> Vec<Returned> {
    let mut waiting = lock(WAITING.get());
    waiting.extract_if(.., |it| it.streams.id() == streams.id()).collect()
}

/// Waits for the device; returns whether it has done all work.
fn is_done(streams: &StreamPool) -> bool {
    // The memory of a lost device is gone with its context.
    streams.synchronize_device().unwrap_or(false) || streams.device().is_lost()
}

impl std::fmt::Debug for Returned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Returned")
            .field("buffers", &self.buffers)
            .field("has_sizes", &self.sizes.is_some())
            .field("has_event", &self.event.is_some())
            .finish_non_exhaustive()
    }
}
