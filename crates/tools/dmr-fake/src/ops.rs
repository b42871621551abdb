//! Fills and checks on the fake device's streams.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use dmr_core::error::StreamProblem;
use dmr_core::sync::lock;
use dmr_core::{
    DeviceBlock, DeviceOps, PatternMismatch, ResourceError, ResourceResult, StreamId, StreamPoolId,
};

use super::device::{Event, Op, Pattern, Verdict};
use super::{SharedDevice, offset};

/// [`DeviceOps`] on the streams of a [`FakeHarness`](super::FakeHarness).
///
/// A fill or a check runs as late as it may; [`collect`](DeviceOps::collect) runs
/// the streams as far as its checks need.
pub struct FakeOps {
    device: SharedDevice,
    pool: StreamPoolId,
    /// The checks, in the order of submission.
    pending: Mutex<Vec<PendingCheck>>,
}

struct PendingCheck {
    key: u64,
    /// The start of the checked range in its block.
    start: usize,
    verdict: Verdict,
    /// The event after the check.
    event: Event,
}

impl FakeOps {
    pub(super) fn new(device: SharedDevice, pool: StreamPoolId) -> Self {
        Self { device, pool, pending: Mutex::default() }
    }

    /// Returns the slot of a stream of the harness.
    fn slot(&self, stream: StreamId) -> ResourceResult<usize> {
        if stream.is_default() {
            return Ok(0);
        }
        let problem = if stream.pool() != Some(self.pool) {
            StreamProblem::OtherPool
        } else if stream.lease() != 1 {
            StreamProblem::ReturnedLease
        } else {
            return Ok(stream.slot());
        };
        Err(ResourceError::stream_misuse(stream, problem))
    }

    /// Submits an operation, and returns the event after it.
    fn submit(&self, slot: usize, op: Op) -> Event {
        let mut device = lock(&self.device);
        device.submit(slot, op);
        device.record(slot)
    }
}

impl DeviceOps for FakeOps {
    fn fill_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
    ) -> ResourceResult<()> {
        let slot = self.slot(stream)?;
        let pattern = part_of(block, &range, pattern)?;
        self.submit(slot, Op::Fill(pattern));
        Ok(())
    }

    fn check_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
        key: u64,
    ) -> ResourceResult<()> {
        let slot = self.slot(stream)?;
        let pattern = part_of(block, &range, pattern)?;
        let verdict = Verdict::default();
        let mut pending = lock(&self.pending);
        let event = self.submit(slot, Op::Check(pattern, Arc::clone(&verdict)));
        pending.push(PendingCheck { key, start: range.start, verdict, event });
        Ok(())
    }

    fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
        let mut pending = lock(&self.pending);
        let mut device = lock(&self.device);
        pending.iter().for_each(|check| device.run_until(check.event));
        Ok(pending.drain(..).filter_map(PendingCheck::mismatch).collect())
    }

    fn synchronize(&self, stream: StreamId) -> ResourceResult<()> {
        let slot = self.slot(stream)?;
        let mut device = lock(&self.device);
        let now = device.record(slot);
        device.run_until(now);
        Ok(())
    }
}

impl fmt::Debug for FakeOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeOps")
    }
}

impl PendingCheck {
    fn mismatch(self) -> Option<PatternMismatch> {
        let wrong = (*self.verdict.get()?)?;
        Some(PatternMismatch { key: self.key, offset: self.start + wrong })
    }
}

/// Returns the range of the block as a pattern of the device's bytes.
fn part_of(block: &DeviceBlock, range: &Range<usize>, word: u32) -> ResourceResult<Pattern> {
    let at = offset(block)?;
    if range.start > range.end || range.end > block.bytes() {
        let length = range.end.saturating_sub(range.start);
        return Err(ResourceError::out_of_bounds(block, range.start, length));
    }
    Ok(Pattern { at: at + range.start, len: range.len(), word, phase: range.start })
}
