//! Makes streams wait for events, and records that: which stream waits for which one and for what
//! block, and for some of the waits how long they hold up their stream.

use dmr_core::{BlockUse, ResourceResult, StreamId};
use dmr_recorder::hooks::{self, RecordedWait};

use crate::StreamGuard;
use crate::progress::{Event, Progress};
use crate::wait_timer::Measurement;

/// Why a stream waits, for recordings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cause {
    /// The generation of the block that makes it wait; 0 for none.
    pub(crate) block: u64,
    /// The launch that waits; 0 for none.
    pub(crate) launch: u64,
}

impl Cause {
    /// Returns the cause of a wait because of the first of these uses.
    pub(crate) fn of(uses: &[BlockUse]) -> Self {
        Self { block: uses.first().map_or(0, |first| first.block.generation().get()), launch: 0 }
    }

    fn recorded(self, stream: StreamId, awaited: StreamId, event: &Event) -> RecordedWait {
        let Self { block, launch } = self;
        RecordedWait { stream, awaited, block, launch, work: event.seq() }
    }
}

impl Progress {
    /// Makes the stream wait for an event.
    pub(crate) fn make_wait(
        &self,
        stream: &StreamGuard<'_>,
        event: &Event,
        cause: Cause,
    ) -> ResourceResult<()> {
        let awaited = || stream.pool().permanent_id(event.slot());
        let recorded = || cause.recorded(stream.id(), awaited(), event);
        record(stream, recorded, || {
            self.discard_captured(event, stream.wait_for_event(event.driver_event()))?;
            self.record_wait(stream.slot(), event);
            Ok(())
        })
    }

    /// Makes a stream of another pool wait for an event of a stream of this one.
    pub(crate) fn make_other_pool_wait(
        &self,
        waiting: &StreamGuard<'_>,
        stream: &StreamGuard<'_>,
        event: &Event,
        cause: Cause,
    ) -> ResourceResult<()> {
        let recorded = || cause.recorded(waiting.id(), stream.id(), event);
        record(waiting, recorded, || {
            let failed = |error| waiting.error_between(stream, "cuStreamWaitEvent", error);
            let waited = waiting.wait_for_event_raw(event.driver_event()).map_err(failed);
            self.discard_captured(event, waited)
        })
    }
}

/// Makes a wait, and records it once it is queued.
#[inline]
fn record(
    stream: &StreamGuard<'_>,
    recorded: impl FnOnce() -> RecordedWait,
    wait: impl FnOnce() -> ResourceResult<()>,
) -> ResourceResult<()> {
    if !dmr_recorder::is_on() {
        return wait();
    }
    let measurement = if hooks::chooses_wait() { Measurement::begin(stream) } else { None };
    wait()?;
    let recorded = recorded();
    hooks::waited(&recorded);
    if let Some(measurement) = measurement {
        measurement.end(recorded);
    }
    Ok(())
}
