//! A pipeline over two GPUs: the first produces slowly, the second works on a copy, and the result
//! goes back.
//!
//! The same copy without a wait, as `cuMemcpyPeerAsync` makes it by itself, finds the bytes of the
//! round before. This library makes each device wait for the other where it must.
//!
//! `cargo run -p dmr --example two_gpus [ROUNDS]`

#![allow(unsafe_code, reason = "a kernel launch, and a copy without a wait")]
#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::sync::Arc;

use dmr::cudarc::driver::result;
use dmr::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use dmr::cudarc::nvrtc::Ptx;
use dmr::prelude::*;
use dmr_sim::{Driver, Policy, Universe};

const LEN: usize = 1 << 20;
const SLOW_NANOSECONDS: u64 = 20_000_000;

/// `x[i] = x[i] + 1000`, for `n` elements.
const PTX: &str = "
.version 7.0
.target sm_50
.address_size 64
.visible .entry add_1000(.param .u64 x, .param .u32 n) {
    .reg .pred %past;
    .reg .b32 %i, %n, %threads, %block, %value;
    .reg .b64 %x, %at;
    ld.param.u64 %x, [x];
    ld.param.u32 %n, [n];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %threads, %i;
    setp.ge.u32 %past, %i, %n;
    @%past bra done;
    mul.wide.u32 %at, %i, 4;
    add.u64 %x, %x, %at;
    ld.global.u32 %value, [%x];
    add.u32 %value, %value, 1000;
    st.global.u32 [%x], %value;
done:
    ret;
}";

/// One of the two GPUs.
struct Gpu {
    runtime: DeviceRuntime,
    stream: StreamLease,
    ops: PatternOps,
    add_1000: CudaFunction,
}

struct Pipeline {
    simulated: Option<Universe>,
    first: Gpu,
    second: Gpu,
    /// The memory of the first GPU, and of the second.
    produced: DeviceBuffer<u32>,
    worked_on: DeviceBuffer<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(10), |rounds| rounds.parse())?;
    let mut pipeline = Pipeline::new()?;
    let with = pipeline.judge("this library", rounds, true)?;
    let without = pipeline.judge("without the wait", rounds, false)?;
    if with > 0 {
        return Err("the pipeline gave wrong bytes, or the simulator reported it".into());
    }
    if without == 0 {
        return Err("the copy without a wait did well: is the producer slow enough?".into());
    }
    Ok(())
}

impl Pipeline {
    fn new() -> Result<Self, Box<dyn Error>> {
        let simulated = match dmr_sim::select_for(2)? {
            // Work runs as late as possible: work that nothing waits for comes last.
            Driver::Simulated(_) => Some(Universe::builder().policy(Policy::Lazy).build()?),
            _ => None,
        };
        let ordinal = |gpu| simulated.as_ref().map_or(gpu, |universe| universe.ordinal(gpu));
        let first = Gpu::new(ordinal(0))?;
        let second = Gpu::new(ordinal(1))?;
        // Copies work without. With it they are direct, where the hardware has a path.
        if first.runtime.device().can_access_peer(second.runtime.device())? {
            first.runtime.enable_peer_access(&second.runtime)?;
            second.runtime.enable_peer_access(&first.runtime)?;
        }
        let produced = DeviceBuffer::zeroed(&first.runtime, &first.stream, LEN)?;
        let worked_on = DeviceBuffer::zeroed(&second.runtime, &second.stream, LEN)?;
        Ok(Self { simulated, first, second, produced, worked_on })
    }

    /// Plays the rounds and prints a line. Returns the number of rounds with wrong bytes or, on the
    /// simulator, with a race.
    fn judge(&mut self, name: &str, rounds: u32, waits: bool) -> Result<u32, Box<dyn Error>> {
        let mut wrong = 0;
        let mut wrong_or_raced = 0;
        let races_before_all = self.races();
        for round in 1..=rounds {
            let races_before = self.races();
            let result = self.round(round, waits)?;
            let is_wrong = result.iter().any(|value| *value != round + 1000);
            wrong += u32::from(is_wrong);
            wrong_or_raced += u32::from(is_wrong || self.races() > races_before);
        }
        let reported = match &self.simulated {
            Some(_) => format!(", {} races reported", self.races() - races_before_all),
            None => String::new(),
        };
        println!("{name:<16} {wrong} of {rounds} rounds gave wrong bytes{reported}");
        Ok(wrong_or_raced)
    }

    fn races(&self) -> usize {
        self.simulated.as_ref().map_or(0, |universe| universe.reports().len())
    }

    fn round(&mut self, round: u32, waits: bool) -> Result<Vec<u32>, Box<dyn Error>> {
        let first = &self.first;
        let second = &self.second;
        // The producer.
        first.ops.delay(first.stream.id(), SLOW_NANOSECONDS)?;
        self.produced.fill(round, &first.stream)?;
        // To the second GPU.
        if waits {
            self.worked_on.copy_from_peer(&self.produced, &first.stream, &second.stream)?;
        } else {
            self.copy_without_a_wait()?;
        }
        // Its work.
        let mut launch = LaunchRecorder::new_strict(&second.stream);
        let x = launch.read_write(&mut self.worked_on);
        let n = LEN as u32;
        // SAFETY: the kernel takes an address and a count, and stays inside the buffer.
        launch.launch(&second.runtime, |stream| unsafe {
            let config = LaunchConfig::for_num_elems(n);
            stream.launch_builder(&second.add_1000).arg(&x).arg(&n).launch(config)
        })?;
        // And back: the producer's buffer is written on its own GPU, after the copy above has read
        // it.
        self.produced.copy_from_peer(&self.worked_on, &second.stream, &first.stream)?;
        Ok(self.produced.to_host(&first.stream)?)
    }

    /// Copies as the driver does by itself: nothing orders the two devices.
    fn copy_without_a_wait(&self) -> Result<(), Box<dyn Error>> {
        let first = &self.first;
        let second = &self.second;
        let [from, to] = [&self.produced, &self.worked_on]
            .map(|buffer| buffer.block().map_or(0, DeviceBlock::ptr));
        let context = |gpu: &Gpu| gpu.runtime.device().context().cu_ctx();
        let stream = second.stream.stream().cu_stream();
        second.runtime.device().bind()?;
        // SAFETY: both buffers have that many bytes, and are freed after the device was waited for.
        unsafe {
            result::memcpy_peer_async(context(second), to, context(first), from, 4 * LEN, stream)?;
        }
        Ok(())
    }
}

impl Gpu {
    fn new(ordinal: usize) -> Result<Self, Box<dyn Error>> {
        let runtime = DeviceRuntime::builder(ordinal).build()?;
        let stream = runtime.streams().acquire()?;
        let ops = PatternOps::new(Arc::clone(runtime.streams()))?;
        let module = runtime.device().context().load_module(Ptx::from_src(PTX))?;
        let add_1000 = module.load_function("add_1000")?;
        // The first delay compiles its kernel.
        ops.delay(stream.id(), 1)?;
        Ok(Self { runtime, stream, ops, add_1000 })
    }
}
