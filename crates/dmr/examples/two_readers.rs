//! Two streams read a buffer, the first of them slowly; a third stream overwrites it.
//!
//! cudarc's slice remembers one read: the second reader takes the place of the first, the writer
//! waits for the second alone, and the slow reader finds what the writer wrote. This library
//! remembers the latest read of every stream.
//!
//! `cargo run -p dmr --example two_readers [ROUNDS]`

#![allow(unsafe_code, reason = "the driver's copies take device addresses")]
#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::sync::Arc;

use dmr::cudarc::driver::result;
use dmr::prelude::*;
use dmr_sim::{Driver, Policy, Universe};

const BYTES: usize = 1 << 20;
/// What the readers should find.
const OLD: u8 = 1;
/// What is written over it.
const NEW: u8 = 0;
const SLOW_NANOSECONDS: u64 = 20_000_000;

struct Machine {
    simulated: Option<Universe>,
    runtime: DeviceRuntime,
    ops: PatternOps,
    slow: StreamLease,
    quick: StreamLease,
    writer: StreamLease,
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(10), |rounds| rounds.parse())?;
    let machine = Machine::new()?;
    let cudarc = machine.judge("cudarc's slice", rounds, Machine::with_cudarc)?;
    let ours = machine.judge("this library", rounds, Machine::with_dmr)?;
    if ours > 0 {
        return Err("this library gave a reader wrong bytes, or the simulator reported it".into());
    }
    if cudarc == 0 {
        return Err("cudarc's slice did well: is the slow reader slow enough?".into());
    }
    Ok(())
}

impl Machine {
    fn new() -> Result<Self, Box<dyn Error>> {
        let simulated = match dmr_sim::select()? {
            // Work runs as late as it may: what nothing waits for comes last.
            Driver::Simulated(_) => Some(Universe::builder().policy(Policy::Lazy).build()?),
            _ => None,
        };
        let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));
        let runtime = DeviceRuntime::builder(ordinal).build()?;
        let ops = PatternOps::new(Arc::clone(runtime.streams()))?;
        let lease = || runtime.streams().acquire();
        let (slow, quick, writer) = (lease()?, lease()?, lease()?);
        let machine = Self { simulated, runtime, ops, slow, quick, writer };
        // The first delay compiles its kernel.
        machine.delay_the_slow_reader()?;
        machine.runtime.device().synchronize()?;
        Ok(machine)
    }

    /// Plays the rounds and prints a line; answers in how many the slow reader found wrong bytes
    /// or, on the simulator, a race was reported.
    fn judge(
        &self,
        who: &str,
        rounds: u32,
        play: impl Fn(&Self) -> Result<Vec<u8>, Box<dyn Error>>,
    ) -> Result<u32, Box<dyn Error>> {
        let races = || self.simulated.as_ref().map_or(0, |universe| universe.reports().len());
        let (mut wrong, mut wrong_or_raced, races_before) = (0, 0, races());
        for _ in 0..rounds {
            let races_before = races();
            let is_wrong = play(self)?.iter().any(|&byte| byte != OLD);
            wrong += u32::from(is_wrong);
            wrong_or_raced += u32::from(is_wrong || races() > races_before);
        }
        let reported = match &self.simulated {
            Some(_) => format!(", {} races reported", races() - races_before),
            None => String::new(),
        };
        println!("{who:<15} the slow reader found wrong bytes {wrong} of {rounds} times{reported}");
        Ok(wrong_or_raced)
    }

    /// As cudarc's safe interface has it, which orders streams by an event in each slice.
    fn with_cudarc(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let streams = [&self.slow, &self.quick, &self.writer].map(StreamLease::stream);
        let [slow, quick, writer] = streams;
        let mut shared = writer.clone_htod(&vec![OLD; BYTES])?;
        let mut slow_copy = slow.alloc_zeros::<u8>(BYTES)?;
        let mut quick_copy = quick.alloc_zeros::<u8>(BYTES)?;
        self.runtime.device().synchronize()?;

        self.delay_the_slow_reader()?;
        slow.memcpy_dtod(&shared, &mut slow_copy)?;
        quick.memcpy_dtod(&shared, &mut quick_copy)?;
        writer.memset_zeros(&mut shared)?;
        writer.synchronize()?;

        Ok(slow.clone_dtoh(&slow_copy)?)
    }

    /// The same work, each piece of it declared.
    fn with_dmr(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let allocate = |stream: &StreamLease| {
            self.runtime.resource().allocate(BYTES, stream.id(), AllocTag::new("two_readers"))
        };
        let mut shared = allocate(&self.writer)?;
        let mut slow_copy = allocate(&self.slow)?;
        let mut quick_copy = allocate(&self.quick)?;
        self.fill(&self.writer, &mut shared, OLD)?;
        self.runtime.device().synchronize()?;

        self.delay_the_slow_reader()?;
        self.copy(&self.slow, &shared, &mut slow_copy)?;
        self.copy(&self.quick, &shared, &mut quick_copy)?;
        self.fill(&self.writer, &mut shared, NEW)?;
        self.writer.stream().synchronize()?;

        let mut found = vec![NEW; BYTES];
        self.read_back(&self.slow, &slow_copy, &mut found)?;
        for block in [shared, slow_copy, quick_copy] {
            self.runtime.resource().deallocate(block)?;
        }
        Ok(found)
    }

    fn delay_the_slow_reader(&self) -> ResourceResult<()> {
        self.ops.delay(self.slow.id(), SLOW_NANOSECONDS)
    }

    fn fill(
        &self,
        on: &StreamLease,
        block: &mut DeviceBlock,
        byte: u8,
    ) -> Result<(), Box<dyn Error>> {
        let mut launch = LaunchRecorder::new_strict(on.id());
        let target = launch.write(block).device_ptr();
        // SAFETY: the block has BYTES bytes, and its use is declared.
        Ok(launch.launch(&self.runtime, |stream| unsafe {
            result::memset_d8_async(target, byte, BYTES, stream.cu_stream())
        })?)
    }

    fn copy(
        &self,
        on: &StreamLease,
        from: &DeviceBlock,
        to: &mut DeviceBlock,
    ) -> Result<(), Box<dyn Error>> {
        let mut launch = LaunchRecorder::new_strict(on.id());
        let (source, target) = (launch.read(from).device_ptr(), launch.write(to).device_ptr());
        // SAFETY: both blocks have BYTES bytes, and their uses are declared.
        Ok(launch.launch(&self.runtime, |stream| unsafe {
            result::memcpy_dtod_async(target, source, BYTES, stream.cu_stream())
        })?)
    }

    fn read_back(
        &self,
        on: &StreamLease,
        from: &DeviceBlock,
        to: &mut [u8],
    ) -> Result<(), Box<dyn Error>> {
        let mut launch = LaunchRecorder::new_strict(on.id());
        let source = launch.read(from).device_ptr();
        Ok(launch.launch(&self.runtime, |stream| {
            // SAFETY: the block has BYTES bytes, and so has `to`, which outlives the copy: it is
            // over when the stream is synchronised.
            unsafe { result::memcpy_dtoh_async(to, source, stream.cu_stream()) }?;
            stream.synchronize()
        })?)
    }
}
