//! Commits one planted fault, for Compute Sanitizer to report: `nvtx_faults NAME`, without a name it
//! lists them. Each fault `x` has a counterpart `clean-x` that does the same without the fault.
//!
//! The context is `Pool(Direct)`, or with a second argument `direct` it is `Tracked(Direct)`.

#![allow(unsafe_code, reason = "launches kernels that do wrong on purpose")]
#![allow(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::ffi::CStr;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::{LaunchError, LaunchRecorder};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{Device, DeviceContext, StreamLease, StreamPool, StreamPoolConfig, Tracked};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A planted fault, and the tool that reports it.
struct Fault {
    name: &'static str,
    tool: &'static str,
    run: fn(&Gpu, bool) -> Outcome,
}

const FAULTS: &[Fault] = &[
    Fault { name: "overrun", tool: "memcheck", run: overrun },
    Fault { name: "use-after-free", tool: "memcheck", run: use_after_free },
    Fault { name: "recycled", tool: "initcheck", run: recycled },
    Fault { name: "not-writable", tool: "memcheck", run: not_writable },
    Fault { name: "undeclared-read", tool: "memcheck", run: undeclared_read },
    Fault { name: "undeclared-write", tool: "memcheck", run: undeclared_write },
];

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        FAULTS.iter().for_each(|fault| println!("{}\t{}", fault.name, fault.tool));
        return Ok(());
    };
    let is_direct = arguments.next().is_some_and(|stack| stack == "direct");
    let (bare, is_fault) = name.strip_prefix("clean-").map_or((&*name, true), |it| (it, false));
    let fault = FAULTS.iter().find(|fault| fault.name == bare).ok_or("no such fault")?;
    let gpu = Gpu::new(is_direct)?;
    println!("stack: {:?}", gpu.resource);
    println!("tool: {}", dmr_nvtx::memory_observer().is_some());
    (fault.run)(&gpu, is_fault)
}

/// A kernel writes one byte past a block of 1000 bytes, in front of another block of the pool.
fn overrun(gpu: &Gpu, is_fault: bool) -> Outcome {
    let (first, second) = (gpu.block("first")?, gpu.block("second")?);
    gpu.poke(gpu.stream.stream(), first.ptr() + if is_fault { 1000 } else { 999 })?;
    gpu.end([first, second])
}

/// A kernel writes a block that was given back, and whose work was done then.
fn use_after_free(gpu: &Gpu, is_fault: bool) -> Outcome {
    let (kept, freed) = (gpu.block("kept")?, gpu.block("freed")?);
    let address = freed.ptr();
    gpu.resource.deallocate(freed)?;
    gpu.settle()?;
    gpu.poke(gpu.stream.stream(), if is_fault { address } else { kept.ptr() })?;
    gpu.end([kept])
}

/// A kernel reads a new block, whose memory another block had written.
fn recycled(gpu: &Gpu, is_fault: bool) -> Outcome {
    let (kept, freed) = (gpu.block("kept")?, gpu.block("freed")?);
    let address = freed.ptr();
    gpu.resource.deallocate(freed)?;
    gpu.settle()?;
    let block = gpu.resource.allocate(1000, gpu.stream.id(), AllocTag::new("new"))?;
    assert_eq!(block.ptr(), address, "the memory is recycled");
    if !is_fault {
        gpu.fill(&block)?;
    }
    gpu.peek(gpu.stream.stream(), block.ptr(), kept.ptr())?;
    gpu.end([kept, block])
}

/// A launch declares that it reads a block, and writes it.
fn not_writable(gpu: &Gpu, is_fault: bool) -> Outcome {
    let (from, mut to) = (gpu.block("from")?, gpu.block("to")?);
    let at = if is_fault { from.ptr() } else { to.ptr() };
    gpu.launch(&from, &mut to, |stream| gpu.poke(stream, at))?;
    gpu.end([from, to])
}

/// A launch reads a block that it did not declare.
fn undeclared_read(gpu: &Gpu, is_fault: bool) -> Outcome {
    let (from, mut to, other) = (gpu.block("from")?, gpu.block("to")?, gpu.block("other")?);
    let at = if is_fault { other.ptr() } else { from.ptr() };
    let written = to.ptr();
    gpu.launch(&from, &mut to, |stream| gpu.peek(stream, at, written))?;
    gpu.end([from, to, other])
}

/// A launch writes a block that it did not declare.
fn undeclared_write(gpu: &Gpu, is_fault: bool) -> Outcome {
    let (from, mut to, other) = (gpu.block("from")?, gpu.block("to")?, gpu.block("other")?);
    let at = if is_fault { other.ptr() } else { to.ptr() };
    gpu.launch(&from, &mut to, |stream| gpu.poke(stream, at))?;
    gpu.end([from, to, other])
}

/// A device, a stream, memory that the attached tool is told of, and two kernels.
struct Gpu {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
    stream: StreamLease,
    poke: sys::CUfunction,
    peek: sys::CUfunction,
}

impl DeviceContext for Gpu {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// `dmr_poke(at)` writes one byte; `dmr_peek(at, out)` copies one byte.
const PTX: &CStr = c"
.version 7.0
.target sm_50
.address_size 64
.visible .entry dmr_poke(.param .u64 at)
{
    .reg .b32 %v;
    .reg .b64 %a;
    ld.param.u64 %a, [at];
    mov.u32 %v, 1;
    st.global.u8 [%a], %v;
    ret;
}
.visible .entry dmr_peek(.param .u64 at, .param .u64 out)
{
    .reg .b32 %v;
    .reg .b64 %a, %o;
    ld.param.u64 %a, [at];
    ld.param.u64 %o, [out];
    ld.global.u8 %v, [%a];
    st.global.u8 [%o], %v;
    ret;
}
";

impl Gpu {
    fn new(is_direct: bool) -> Outcome<Self> {
        let streams = StreamPool::new(Device::open(0)?, StreamPoolConfig::new())?;
        let observer = dmr_nvtx::memory_observer();
        let direct = DirectCudaResource::new(Arc::clone(&streams));
        let resource: Arc<dyn DeviceMemoryResource> = if is_direct {
            let direct = match observer {
                Some(observer) => direct.with_observer(observer),
                None => direct,
            };
            Arc::new(Tracked::new(direct, Arc::clone(&streams))?)
        } else {
            let pool = PoolResource::new(direct, Arc::clone(&streams), PoolConfig::fast())?;
            Arc::new(match observer {
                Some(observer) => pool.with_observer(observer),
                None => pool,
            })
        };
        let stream = streams.acquire()?;
        streams.device().bind()?;
        // SAFETY: PTX text that ends with a zero byte; the module is loaded until the process ends.
        let (poke, peek) = unsafe {
            let module = result::module::load_data(PTX.as_ptr().cast())?;
            let function = |name: &CStr| result::module::get_function(module, name.to_owned());
            (function(c"dmr_poke")?, function(c"dmr_peek")?)
        };
        Ok(Self { resource, streams, stream, poke, peek })
    }

    /// A block of 1000 bytes, all written.
    fn block(&self, tag: &'static str) -> Outcome<DeviceBlock> {
        let block = self.resource.allocate(1000, self.stream.id(), AllocTag::new(tag))?;
        self.fill(&block)?;
        Ok(block)
    }

    fn fill(&self, block: &DeviceBlock) -> Outcome {
        let stream = self.stream.stream().cu_stream();
        // SAFETY: the block is live and this long; the work is ordered on its home stream.
        unsafe { result::memset_d8_async(block.ptr(), 1, block.bytes(), stream) }?;
        Ok(())
    }

    fn launch(
        &self,
        from: &DeviceBlock,
        to: &mut DeviceBlock,
        enqueue: impl FnOnce(&Arc<CudaStream>) -> Result<(), result::DriverError>,
    ) -> Result<(), LaunchError<result::DriverError>> {
        let mut recorder = LaunchRecorder::new_strict(&self.stream);
        recorder.read(from);
        recorder.write(to);
        recorder.launch(self, enqueue)
    }

    fn poke(&self, stream: &CudaStream, mut at: u64) -> Result<(), result::DriverError> {
        self.run(self.poke, stream, &mut [(&raw mut at).cast()])
    }

    fn peek(
        &self,
        stream: &CudaStream,
        mut at: u64,
        mut out: u64,
    ) -> Result<(), result::DriverError> {
        self.run(self.peek, stream, &mut [(&raw mut at).cast(), (&raw mut out).cast()])
    }

    fn run(
        &self,
        function: sys::CUfunction,
        stream: &CudaStream,
        parameters: &mut [*mut std::ffi::c_void],
    ) -> Result<(), result::DriverError> {
        let one = (1, 1, 1);
        // SAFETY: the parameters are those of the kernel. It touches one or two bytes inside of an
        // allocation of this program, whatever they are to the tool.
        unsafe { result::launch_kernel(function, one, one, 0, stream.cu_stream(), parameters) }
    }

    /// Waits for all work, and lets the memory that was given back be free.
    fn settle(&self) -> Outcome {
        self.streams.synchronize(self.stream.id())?;
        self.resource.reap_pending()?;
        Ok(())
    }

    /// Gives everything back. After a fault the device may be lost, which is no error here.
    fn end<const N: usize>(&self, blocks: [DeviceBlock; N]) -> Outcome {
        let done = self.streams.synchronize(self.stream.id());
        for block in blocks {
            self.resource.deallocate(block)?;
        }
        let reaped = self.resource.reap_pending();
        println!("work: {done:?}, reaped: {reaped:?}");
        Ok(())
    }
}
