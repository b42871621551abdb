//! One thread going through a sequence once: timed as a whole, or call by call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource};
use dmr_streams::{Device, StreamLease};

use crate::sequence::{Op, Sequence};
use crate::stacks::Trim;
use crate::{BenchError, work};

const TAG: AllocTag = AllocTag::new("bench");

/// The resource and the streams that a thread works with.
pub(super) struct Place<'a> {
    /// `None`: no allocation at all, and `fixed` is what work is done on.
    pub(super) resource: Option<&'a dyn DeviceMemoryResource>,
    pub(super) fixed: u64,
    pub(super) device: &'a Device,
    pub(super) streams: Vec<&'a StreamLease>,
    /// Bytes of each new block that are filled.
    pub(super) touch: usize,
    pub(super) budget: Duration,
    /// The live bytes of all threads, and their peak, if they are recorded.
    pub(super) live: Option<&'a Live>,
    pub(super) trims: Option<Trims<'a>>,
}

/// The trims of a thread, between its operations.
#[derive(Clone, Copy)]
pub(super) struct Trims<'a> {
    /// Operations of the thread between two trims.
    pub(super) every: usize,
    pub(super) trim: &'a Trim,
}

/// Bytes allocated and not deallocated, over all threads.
#[derive(Debug, Default)]
pub(super) struct Live {
    now: AtomicU64,
    peak: AtomicU64,
}

/// The result of a pass.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) start: Option<Instant>,
    pub(super) end: Option<Instant>,
    /// The number of operations that were made before the time budget was spent.
    pub(super) made: usize,
    pub(super) failed: u64,
    pub(super) first_error: Option<String>,
    /// Nanoseconds, of a pass that measures each call.
    pub(super) allocations: Vec<u32>,
    pub(super) frees: Vec<u32>,
    pub(super) calls_ns: u64,
    pub(super) trims: u64,
    pub(super) trims_ns: u64,
}

impl Live {
    pub(super) fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Outcome {
    pub(super) fn elapsed(&self) -> Duration {
        self.end.zip(self.start).map_or(Duration::ZERO, |(end, start)| end - start)
    }
}

impl Place<'_> {
    /// As fast as it goes.
    pub(super) fn plain(
        &self,
        sequence: &Sequence,
        slots: &mut [Option<DeviceBlock>],
    ) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        let start = Instant::now();
        let mut made = 0;
        for op in &sequence.ops {
            if made % 64 == 63 && start.elapsed() > self.budget {
                break;
            }
            if op.allocates {
                slots[op.slot] = self.allocate(op, &mut outcome);
                self.touch(op, slots[op.slot].as_ref())?;
            } else {
                self.free(slots[op.slot].take())?;
            }
            made += 1;
        }
        outcome.start = Some(start);
        outcome.end = Some(Instant::now());
        outcome.made = made;
        Ok(outcome)
    }

    /// With the clock read before and after each call. `sample` is called now and then, between
    /// calls, and when this thread has most live.
    pub(super) fn call_by_call(
        &self,
        sequence: &Sequence,
        slots: &mut [Option<DeviceBlock>],
        sample: &mut dyn FnMut() -> Result<(), BenchError>,
    ) -> Result<Outcome, BenchError> {
        let allocations = sequence.ops.iter().filter(|op| op.allocates).count();
        let mut outcome = Outcome {
            allocations: Vec::with_capacity(allocations),
            frees: Vec::with_capacity(sequence.ops.len() - allocations),
            ..Outcome::default()
        };
        let every = (sequence.ops.len() / 64).max(1);
        let start = Instant::now();
        for (at, op) in sequence.ops.iter().enumerate() {
            if at % 16 == 15 && start.elapsed() > self.budget {
                break;
            }
            if op.allocates {
                let before = Instant::now();
                let block = self.allocate(op, &mut outcome);
                let taken = nanoseconds(before.elapsed());
                outcome.allocations.push(taken);
                outcome.calls_ns += u64::from(taken);
                if let Some(live) = self.live.filter(|_| block.is_some()) {
                    live.add(op.bytes);
                }
                slots[op.slot] = block;
                self.touch(op, slots[op.slot].as_ref())?;
            } else if let Some(block) = slots[op.slot].take() {
                let before = Instant::now();
                self.free(Some(block))?;
                let taken = nanoseconds(before.elapsed());
                outcome.frees.push(taken);
                outcome.calls_ns += u64::from(taken);
                self.live.into_iter().for_each(|live| live.remove(op.bytes));
            }
            if at % every == every - 1 || at == sequence.peak_at {
                sample()?;
            }
            outcome.made = at + 1;
            if let Some(Trims { every, trim }) = self.trims
                && outcome.made.is_multiple_of(every)
            {
                let before = Instant::now();
                trim()?;
                outcome.trims += 1;
                outcome.trims_ns += before.elapsed().as_nanos() as u64;
            }
        }
        outcome.start = Some(start);
        outcome.end = Some(Instant::now());
        Ok(outcome)
    }

    /// Frees what is left.
    pub(super) fn drain(&self, slots: &mut [Option<DeviceBlock>]) -> Result<(), BenchError> {
        slots.iter_mut().try_for_each(|slot| self.free(slot.take()))
    }

    fn allocate(&self, op: &Op, outcome: &mut Outcome) -> Option<DeviceBlock> {
        let resource = self.resource?;
        match resource.allocate(op.bytes as usize, self.streams[op.stream].id(), TAG) {
            Ok(block) => Some(block),
            Err(error) => {
                outcome.failed += 1;
                outcome.first_error.get_or_insert_with(|| error.to_string());
                None
            }
        }
    }

    fn free(&self, block: Option<DeviceBlock>) -> Result<(), BenchError> {
        match (self.resource, block) {
            (Some(resource), Some(block)) => Ok(resource.deallocate(block).map(drop)?),
            _ => Ok(()),
        }
    }

    fn touch(&self, op: &Op, block: Option<&DeviceBlock>) -> Result<(), BenchError> {
        let ptr = match (self.resource, block) {
            _ if self.touch == 0 => return Ok(()),
            (None, _) => self.fixed,
            (Some(_), Some(block)) => block.ptr(),
            (Some(_), None) => return Ok(()),
        };
        let bytes = self.touch.min(op.bytes as usize);
        // SAFETY: inside the block, which is freed in the order of its stream, or inside the fixed
        // buffer, which has `touch` bytes and outlives the pass.
        unsafe { work::fill(self.device, ptr, 0xA5, bytes, self.streams[op.stream]) }?;
        Ok(())
    }
}

/// As much of it as 32 bits hold: four seconds.
pub(super) fn nanoseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}
