//! Two streams read a buffer, the first of them slowly; a third stream overwrites it.
//!
//! cudarc's slice remembers one read: the second reader replaces the first, the writer waits for
//! the second alone, and the slow reader finds what the writer wrote. This library remembers the
//! latest read of every stream.
//!
//! `cargo run -p dmr --example two_readers [ROUNDS]`

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::sync::Arc;

use dmr::prelude::*;
use dmr_sim::{Driver, Policy, Universe};

const BYTES: usize = 1 << 20;
/// The value that the readers should find; the writer writes zeros.
const OLD: u8 = 1;
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
            // Work runs as late as possible: work that nothing waits for comes last.
            Driver::Simulated(_) => Some(Universe::builder().policy(Policy::Lazy).build()?),
            _ => None,
        };
        let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));
        let runtime = DeviceRuntime::builder(ordinal).build()?;
        let ops = PatternOps::new(Arc::clone(runtime.streams()))?;
        let lease = || runtime.streams().acquire();
        let slow = lease()?;
        let quick = lease()?;
        let writer = lease()?;
        let machine = Self { simulated, runtime, ops, slow, quick, writer };
        // The first delay compiles its kernel.
        machine.delay_the_slow_reader()?;
        machine.runtime.device().synchronize()?;
        Ok(machine)
    }

    /// Plays the rounds and prints a line. Returns the number of rounds in which the slow reader
    /// found wrong bytes or, on the simulator, a race was reported.
    fn judge(
        &self,
        name: &str,
        rounds: u32,
        play: impl Fn(&Self) -> Result<Vec<u8>, Box<dyn Error>>,
    ) -> Result<u32, Box<dyn Error>> {
        let races = || self.simulated.as_ref().map_or(0, |universe| universe.reports().len());
        let mut wrong = 0;
        let mut wrong_or_raced = 0;
        let races_before = races();
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
        println!(
            "{name:<15} the slow reader found wrong bytes {wrong} of {rounds} times{reported}"
        );
        Ok(wrong_or_raced)
    }

    /// With cudarc's slices, which order streams by two events in each slice.
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

    /// Does the work with buffers.
    fn with_dmr(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let gpu = &self.runtime;
        let slow = &self.slow;
        let quick = &self.quick;
        let writer = &self.writer;
        let mut shared = DeviceBuffer::from_host(gpu, writer, &vec![OLD; BYTES])?;
        let mut slow_copy = DeviceBuffer::<u8>::zeroed(gpu, slow, BYTES)?;
        let mut quick_copy = DeviceBuffer::<u8>::zeroed(gpu, quick, BYTES)?;
        gpu.device().synchronize()?;

        self.delay_the_slow_reader()?;
        slow_copy.copy_from(&shared, slow)?;
        quick_copy.copy_from(&shared, quick)?;
        shared.fill_zero(writer)?;
        writer.stream().synchronize()?;

        Ok(slow_copy.to_host(slow)?)
    }

    fn delay_the_slow_reader(&self) -> ResourceResult<()> {
        self.ops.delay(self.slow.id(), SLOW_NANOSECONDS)
    }
}
