//! cuBLAS multiplies matrices that a kernel writes slowly on another stream: first with the uses
//! recorded, then with their recording left out.
//!
//! `cargo run -p dmr --example gemm [ROUNDS]`. On the simulated driver, which does not have cuBLAS,
//! a kernel in PTX multiplies through the same traits of cudarc.

#![allow(unsafe_code, reason = "kernel launches, and a matrix product without order")]
#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::cublas::result::CublasError;
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{
    CudaFunction, CudaStream, DevicePtr, DevicePtrMut, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use dmr::prelude::*;
use dmr_sim::{Driver, Policy, Universe};

/// Rows and columns of each matrix.
const N: usize = 64;
const SLOW_NANOSECONDS: u64 = 5_000_000;

/// `produce`: `x[i] = seed + i % 3` for `n` elements. `multiply`: `c = a * b` of matrices with 64
/// rows and columns, in columns.
const PTX: &str = "
.version 7.0
.target sm_50
.address_size 64
.visible .entry produce(.param .u64 x, .param .u32 seed, .param .u32 n) {
    .reg .pred %past;
    .reg .b32 %i, %n, %block, %seed;
    .reg .f32 %value;
    .reg .b64 %x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %n, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %n, %i;
    ld.param.u32 %n, [n];
    setp.ge.u32 %past, %i, %n;
    @%past ret;
    ld.param.u64 %x, [x];
    mad.wide.u32 %x, %i, 4, %x;
    ld.param.u32 %seed, [seed];
    rem.u32 %i, %i, 3;
    add.u32 %i, %i, %seed;
    cvt.rn.f32.u32 %value, %i;
    st.global.f32 [%x], %value;
    ret;
}
.visible .entry multiply(.param .u64 a, .param .u64 b, .param .u64 c) {
    .reg .pred %more;
    .reg .b32 %i, %k, %block;
    .reg .f32 %left, %right, %sum;
    .reg .b64 %a, %b, %c;
    mov.u32 %block, %ctaid.x;
    mov.u32 %k, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %k, %i;
    ld.param.u64 %c, [c];
    mad.wide.u32 %c, %i, 4, %c;
    // The row of a, and the column of b.
    and.b32 %k, %i, 63;
    ld.param.u64 %a, [a];
    mad.wide.u32 %a, %k, 4, %a;
    shr.u32 %k, %i, 6;
    ld.param.u64 %b, [b];
    mad.wide.u32 %b, %k, 256, %b;
    mov.f32 %sum, 0f00000000;
    mov.u32 %k, 64;
next:
    ld.global.f32 %left, [%a];
    ld.global.f32 %right, [%b];
    fma.rn.f32 %sum, %left, %right, %sum;
    add.u64 %a, %a, 256;
    add.u64 %b, %b, 4;
    sub.u32 %k, %k, 1;
    setp.ne.u32 %more, %k, 0;
    @%more bra next;
    st.global.f32 [%c], %sum;
    ret;
}";

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The error of work in a launch.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    CuBlas(#[from] CublasError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

struct Machine {
    simulated: Option<Universe>,
    gpu: DeviceRuntime,
    ops: PatternOps,
    load: StreamLease,
    compute: StreamLease,
    produce: CudaFunction,
    multiply: Option<CudaFunction>,
}

/// A matrix product for memory that implements cudarc's traits, submitted to a stream of its own.
enum Multiply<'m> {
    CuBlas(CudaBlas),
    Simulated(&'m CudaFunction, Arc<CudaStream>),
}

fn main() -> Outcome<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(10), |rounds| rounds.parse())?;
    let machine = Machine::new()?;
    let own = machine.gpu.device().context().new_stream()?;
    let on_launch = machine.multiply_on(machine.compute.stream())?;
    let on_own = machine.multiply_on(&own)?;
    let recorded = machine.judge("recorded, on the launch's stream", rounds, |seed| {
        machine.recorded(&on_launch, seed)
    })?;
    let elsewhere = machine.judge("recorded, on a stream of cuBLAS's own", rounds, |seed| {
        machine.recorded(&on_own, seed)
    })?;
    let left_out =
        machine.judge("recording left out", rounds, |seed| machine.left_out(&on_launch, seed))?;
    match (recorded + elsewhere, left_out) {
        (0, 1..) => Ok(()),
        (0, _) => Err("without order the product was right: is the producer slow enough?".into()),
        _ => Err("a recorded product was wrong, or the simulator reported it".into()),
    }
}

impl Machine {
    fn new() -> Outcome<Self> {
        let simulated = match dmr_sim::select()? {
            // Work runs as late as possible: work that nothing waits for comes last.
            Driver::Simulated(_) => Some(Universe::builder().policy(Policy::Lazy).build()?),
            _ => None,
        };
        let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));
        let gpu = DeviceRuntime::builder(ordinal).build()?;
        let ops = PatternOps::new(Arc::clone(gpu.streams()))?;
        let module = gpu.device().context().load_module(Ptx::from_src(PTX))?;
        let produce = module.load_function("produce")?;
        let multiply = simulated.as_ref().map(|_| module.load_function("multiply")).transpose()?;
        let load = gpu.streams().acquire()?;
        let compute = gpu.streams().acquire()?;
        let machine = Self { simulated, gpu, ops, load, compute, produce, multiply };
        // The first delay compiles its kernel.
        machine.ops.delay(machine.load.id(), 1)?;
        machine.gpu.device().synchronize()?;
        Ok(machine)
    }

    fn multiply_on(&self, stream: &Arc<CudaStream>) -> Outcome<Multiply<'_>> {
        Ok(match &self.multiply {
            Some(kernel) => Multiply::Simulated(kernel, Arc::clone(stream)),
            None => Multiply::CuBlas(CudaBlas::new(Arc::clone(stream))?),
        })
    }

    /// Plays the rounds and prints a line. Returns the number of rounds whose product was wrong or,
    /// on the simulator, in which a race was reported.
    fn judge(
        &self,
        name: &str,
        rounds: u32,
        play: impl Fn(u32) -> Outcome<Vec<f32>>,
    ) -> Outcome<u32> {
        let races = || self.simulated.as_ref().map_or(0, |universe| universe.reports().len());
        let mut wrong = 0;
        let mut wrong_or_raced = 0;
        for seed in 1..=rounds {
            let before = races();
            let is_wrong = play(seed)? != product(seed);
            // Read in each round: the simulator ends a program that never reads its findings.
            let has_raced = races() > before;
            wrong += u32::from(is_wrong);
            wrong_or_raced += u32::from(is_wrong || has_raced);
        }
        let raced = match self.simulated {
            Some(_) => format!(", a race in {wrong_or_raced}"),
            None => String::new(),
        };
        println!("{name:<38} {} of {rounds} products are right{raced}", rounds - wrong);
        Ok(wrong_or_raced)
    }

    /// Two operands that are still being produced on the stream `load`, and the product's buffer.
    fn operands(&self, seed: u32) -> Outcome<[DeviceBuffer<f32>; 3]> {
        let zeros = || DeviceBuffer::<f32>::zeroed(&self.gpu, &self.load, N * N);
        let mut a = zeros()?;
        let mut b = zeros()?;
        let c = zeros()?;
        self.gpu.device().synchronize()?;
        let launch = LaunchRecorder::new_strict(&self.load);
        let n = (N * N) as u32;
        launch.launch_with(&self.gpu, [Writes(&mut a), Writes(&mut b)], |stream, matrices| {
            self.ops.delay(self.load.id(), SLOW_NANOSECONDS)?;
            for mut x in matrices {
                let config = LaunchConfig::for_num_elems(n);
                // SAFETY: the kernel writes `n` elements.
                unsafe {
                    stream
                        .launch_builder(&self.produce)
                        .arg(&mut x)
                        .arg(&seed)
                        .arg(&n)
                        .launch(config)
                }?;
            }
            Ok::<_, Failed>(())
        })?;
        Ok([a, b, c])
    }

    fn recorded(&self, multiply: &Multiply<'_>, seed: u32) -> Outcome<Vec<f32>> {
        let [a, b, mut c] = self.operands(seed)?;
        let launch = LaunchRecorder::new_strict(&self.compute);
        let memory = (Reads(&a), Reads(&b), Writes(&mut c));
        launch.launch_with(&self.gpu, memory, |_, (a, b, mut c)| multiply.run(&a, &b, &mut c))?;
        Ok(c.to_host(&self.compute)?)
    }

    /// Multiplies by bare addresses: nothing waits for the producer.
    fn left_out(&self, multiply: &Multiply<'_>, seed: u32) -> Outcome<Vec<f32>> {
        let [a, b, c] = self.operands(seed)?;
        let slice = |x: &DeviceBuffer<f32>| {
            let ptr = x.block().map_or(0, DeviceBlock::ptr);
            // SAFETY: `N * N` elements, which the slice does not free.
            let slice = unsafe { self.compute.stream().upgrade_device_ptr::<f32>(ptr, N * N) };
            ManuallyDrop::new(slice)
        };
        let slice_a = slice(&a);
        let slice_b = slice(&b);
        let mut slice_c = slice(&c);
        multiply.run(&*slice_a, &*slice_b, &mut *slice_c)?;
        let product = self.compute.stream().clone_dtoh(&*slice_c)?;
        self.compute.stream().synchronize()?;
        for slice in [slice_a, slice_b, slice_c] {
            ManuallyDrop::into_inner(slice).leak();
        }
        self.gpu.device().synchronize()?;
        Ok(product)
    }
}

impl Multiply<'_> {
    /// `c = a * b`, all in columns.
    fn run<A, B, C>(&self, a: &A, b: &B, c: &mut C) -> Result<(), Failed>
    where
        A: DevicePtr<f32>,
        B: DevicePtr<f32>,
        C: DevicePtrMut<f32>,
    {
        match self {
            Self::CuBlas(blas) => {
                let n = N as i32;
                let plain = cublasOperation_t::CUBLAS_OP_N;
                let transa = plain;
                let transb = plain;
                let m = n;
                let k = n;
                let lda = n;
                let ldb = n;
                let ldc = n;
                let alpha = 1.0;
                let beta = 0.0;
                let config = GemmConfig { transa, transb, m, n, k, alpha, lda, ldb, beta, ldc };
                // SAFETY: each matrix has `n * n` elements.
                unsafe { blas.gemm(config, a, b, c) }?;
            }
            Self::Simulated(kernel, stream) => {
                let (a, _read_a) = a.device_ptr(stream);
                let (b, _read_b) = b.device_ptr(stream);
                let (c, _written) = c.device_ptr_mut(stream);
                let config = LaunchConfig::for_num_elems((N * N) as u32);
                // SAFETY: each matrix has `n * n` elements.
                unsafe { stream.launch_builder(kernel).arg(&a).arg(&b).arg(&c).launch(config) }?;
            }
        }
        Ok(())
    }
}

/// The product of two matrices of the producer. All its values are integers below 2^24, so `f32`
/// has them exactly.
fn product(seed: u32) -> Vec<f32> {
    let x: Vec<f32> = (0..N * N).map(|i| (seed + i as u32 % 3) as f32).collect();
    let element = |i: usize| {
        let row = i % N;
        let column = i / N;
        (0..N).map(|k| x[k * N + row] * x[column * N + k]).sum()
    };
    (0..N * N).map(element).collect()
}
