//! The threads of W9, and what they share.

use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use dmr_core::sync::lock;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, ResourceResult, UseTrackingExt,
};
use dmr_streams::{Device, StreamLease};

use crate::BenchError;
use crate::sequence::{Exchange, READ_BYTES, Step, Steps};
use crate::work::{self, Memory};
use crate::workload::pass::{Live, nanoseconds};

const TAG: AllocTag = AllocTag::new("bench");

/// The byte that blocks are filled with.
const FILL: u8 = 0xA5;

/// The extent of the work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Steps of each thread.
    pub(super) steps: usize,
    /// The most bytes with which a thread allocates.
    pub(super) most: u64,
    /// A thread that takes longer stops.
    pub(super) budget: Duration,
}

/// The state that all threads share.
pub(super) struct Place<'a> {
    resource: &'a dyn DeviceMemoryResource,
    device: &'a Device,
    work: Work,
    /// By thread.
    desks: Vec<Desk<'a>>,
    /// Blocks on their way from one thread to another.
    exchange: Mutex<Exchange<DeviceBlock>>,
    live: Live,
}

/// The stream of a thread, and the memory that reads on it write to.
struct Desk<'a> {
    stream: &'a StreamLease,
    scratch: Memory,
}

/// The counts and times of a thread.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) start: Option<Instant>,
    pub(super) end: Option<Instant>,
    /// The number of steps that were made before the time budget was spent.
    pub(super) made: usize,
    /// Nanoseconds of each allocation that succeeded.
    pub(super) allocations: Vec<u32>,
    /// Nanoseconds of each allocation that was refused.
    pub(super) refusals: Vec<u32>,
    pub(super) first_refusal: Option<String>,
    pub(super) frees: u64,
    pub(super) reads: u64,
    pub(super) passes: u64,
    /// The blocks that the thread holds at the end.
    held: Vec<DeviceBlock>,
}

impl<'a> Place<'a> {
    /// Makes the place of as many threads as there are leases.
    pub(super) fn new(
        resource: &'a dyn DeviceMemoryResource,
        device: &'a Device,
        leases: &'a [StreamLease],
        work: Work,
    ) -> Result<Self, BenchError> {
        let desk = |stream: &'a StreamLease| -> Result<Desk<'a>, BenchError> {
            let scratch = Memory::new(device, READ_BYTES as usize)?;
            Ok(Desk { stream, scratch })
        };
        Ok(Self {
            resource,
            device,
            work,
            desks: leases.iter().map(desk).collect::<Result<_, _>>()?,
            exchange: Mutex::new(Exchange::new(leases.len())),
            live: Live::default(),
        })
    }

    /// Runs the threads from the same moment on. The first one calls `sample` now and then.
    pub(super) fn pass(
        &self,
        sample: &mut dyn FnMut() -> Result<(), BenchError>,
    ) -> Result<Vec<Outcome>, BenchError> {
        let barrier = Barrier::new(self.desks.len());
        let go = |nth: usize, sample: &mut dyn FnMut() -> Result<(), BenchError>| {
            let bound = self.device.bind();
            barrier.wait();
            bound?;
            Worker { place: self, nth, bytes: 0, outcome: Outcome::default() }.run(sample)
        };
        std::thread::scope(|scope| {
            let go = &go;
            let others = 1..self.desks.len();
            let threads: Vec<_> =
                others.map(|nth| scope.spawn(move || go(nth, &mut || Ok(())))).collect();
            let mut outcomes = vec![go(0, sample)];
            outcomes.extend(threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(BenchError("a thread panicked".to_owned())))
            }));
            outcomes.into_iter().collect()
        })
    }

    /// Frees the blocks that the threads hold, and those on their way.
    pub(super) fn free_all(&self, outcomes: &mut [Outcome]) -> Result<(), BenchError> {
        let on_their_way = lock(&self.exchange).take_all();
        let held = outcomes.iter_mut().flat_map(|outcome| std::mem::take(&mut outcome.held));
        held.chain(on_their_way).try_for_each(|block| self.free(block))
    }

    /// The peak of the bytes that were allocated and not freed, over all threads.
    pub(super) fn live_peak(&self) -> u64 {
        self.live.peak()
    }

    fn free(&self, block: DeviceBlock) -> Result<(), BenchError> {
        let bytes = block.bytes() as u64;
        self.resource.deallocate(block)?;
        self.live.remove(bytes);
        Ok(())
    }

    /// Fills a new block on its home stream. The fill is recorded: other streams wait for it.
    fn fill(&self, block: &DeviceBlock, desk: &Desk<'_>) -> Result<(), BenchError> {
        self.using(block, Access::Write, desk, || {
            // SAFETY: the whole block, which is freed after this use.
            unsafe { work::fill(self.device, block.ptr(), FILL, block.bytes(), desk.stream) }
        })
    }

    /// Reads a block on the stream of a thread.
    fn read(&self, block: &DeviceBlock, desk: &Desk<'_>) -> Result<(), BenchError> {
        let to = desk.scratch.ptr();
        let bytes = block.bytes().min(READ_BYTES as usize);
        self.using(block, Access::Read, desk, || {
            // SAFETY: within the block, which is freed after this use, and within the stream's
            // scratch memory, which outlives the pass.
            unsafe { work::copy(self.device, to, block.ptr(), bytes, desk.stream) }
        })
    }

    /// Submits work on a block to the stream of a thread, as a recorded use.
    fn using(
        &self,
        block: &DeviceBlock,
        access: Access,
        desk: &Desk<'_>,
        submit: impl FnOnce() -> ResourceResult<()>,
    ) -> Result<(), BenchError> {
        let tokens =
            self.resource.prepare_uses(&[BlockUse::new(block.id(), access)], desk.stream.id())?;
        let submitted = submit();
        self.resource.finish_uses(tokens)?;
        Ok(submitted?)
    }
}

/// One thread.
struct Worker<'a> {
    place: &'a Place<'a>,
    nth: usize,
    /// The bytes of the blocks that it holds.
    bytes: u64,
    outcome: Outcome,
}

impl Worker<'_> {
    fn run(
        mut self,
        sample: &mut dyn FnMut() -> Result<(), BenchError>,
    ) -> Result<Outcome, BenchError> {
        let Work { steps: count, most, budget } = self.place.work;
        let mut steps = Steps::new(self.nth as u64, self.place.desks.len() as u64, most);
        let every = (count / 64).max(1);
        let start = Instant::now();
        for at in 0..count {
            if at % 16 == 15 && start.elapsed() > budget {
                break;
            }
            self.step(steps.next(self.outcome.held.len(), self.bytes))?;
            if at % every == every - 1 {
                sample()?;
            }
            self.outcome.made = at + 1;
        }
        self.outcome.start = Some(start);
        self.outcome.end = Some(Instant::now());
        Ok(self.outcome)
    }

    fn step(&mut self, step: Step) -> Result<(), BenchError> {
        match step {
            Step::Nothing => Ok(()),
            Step::Free { index } => self.free(index),
            Step::Allocate { bytes, otherwise } => {
                let is_refused = !self.allocate(bytes)?;
                otherwise.filter(|_| is_refused).map_or(Ok(()), |index| self.free(index))
            }
            Step::Read { index, stream } => {
                self.outcome.reads += 1;
                self.place.read(&self.outcome.held[index], &self.place.desks[stream])
            }
            Step::Pass { index } => {
                self.outcome.passes += 1;
                let mine = self.remove(index);
                let theirs = lock(&self.place.exchange).swap(mine);
                theirs.into_iter().for_each(|block| self.add(block));
                Ok(())
            }
        }
    }

    /// Returns whether the allocation succeeded.
    fn allocate(&mut self, bytes: u64) -> Result<bool, BenchError> {
        let Place { resource, desks, live, .. } = self.place;
        let home = &desks[self.nth];
        let before = Instant::now();
        let allocated = resource.allocate(bytes as usize, home.stream.id(), TAG);
        let taken = nanoseconds(before.elapsed());
        match allocated {
            Ok(block) => {
                self.outcome.allocations.push(taken);
                live.add(bytes);
                self.place.fill(&block, home)?;
                self.add(block);
                Ok(true)
            }
            Err(error) if error.is_out_of_memory() => {
                self.outcome.refusals.push(taken);
                self.outcome.first_refusal.get_or_insert_with(|| error.to_string());
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn free(&mut self, index: usize) -> Result<(), BenchError> {
        self.outcome.frees += 1;
        let block = self.remove(index);
        self.place.free(block)
    }

    fn add(&mut self, block: DeviceBlock) {
        self.bytes += block.bytes() as u64;
        self.outcome.held.push(block);
    }

    fn remove(&mut self, index: usize) -> DeviceBlock {
        let block = self.outcome.held.swap_remove(index);
        self.bytes -= block.bytes() as u64;
        block
    }
}
