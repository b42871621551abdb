//! Programs of cuda-core and cuda-async on memory of dmr. They need a driver: run them on dmr's
//! simulator as a shared library.
#![allow(missing_docs)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cuda_async::cuda_graph::CudaGraph;
use cuda_async::device_operation::DeviceOp;
use cuda_async::launch::{AsyncKernelLaunch, AsyncKernelLaunchBuilder};
use cuda_core::{CudaFunction, LaunchConfig};
use dmr::prelude::*;
use dmr_core::Access;
use dmr_cuda_core::{AdoptedStream, Lent, ReclaimError, stream_of};

const N: usize = 1 << 12;

/// Adds `k` to each of `n` numbers.
const ADD: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 k, .param .u32 n)
{
  .reg .pred %q;
  .reg .b32 %r<8>;
  .reg .b64 %a<4>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [n];
  setp.ge.u32 %q, %r4, %r5;
  @%q bra DONE;
  ld.param.u64 %a1, [p];
  cvta.to.global.u64 %a1, %a1;
  mul.wide.u32 %a2, %r4, 4;
  add.s64 %a3, %a1, %a2;
  ld.global.u32 %r6, [%a3];
  ld.param.u32 %r7, [k];
  add.u32 %r6, %r6, %r7;
  st.global.u32 [%a3], %r6;
DONE:
  ret;
}
";

/// One test at a time: they share the device's runtime and its adopted streams.
static ONE: Mutex<()> = Mutex::new(());

struct Program {
    gpu: &'static DeviceRuntime,
    context: Arc<cuda_core::Context>,
    add: cuda_core::Function,
}

impl Program {
    fn new() -> Self {
        let gpu = DeviceRuntime::try_get(0).unwrap();
        let context = cuda_core::Context::new(0).unwrap();
        let module = context.load_module_from_ptx_src(ADD).unwrap();
        Self { gpu, add: module.load_function("add").unwrap(), context }
    }

    fn adopt(&self) -> Arc<AdoptedStream> {
        Arc::new(
            AdoptedStream::new(self.gpu.streams(), self.context.new_stream().unwrap()).unwrap(),
        )
    }

    fn launch_add(
        &self,
        stream: &cuda_core::Stream,
        mut p: u64,
        mut k: u32,
    ) -> Result<(), cuda_core::DriverError> {
        let mut n = N as u32;
        let mut params = [(&raw mut p).cast(), (&raw mut k).cast(), (&raw mut n).cast()];
        let blocks = (N as u32).div_ceil(128);
        // SAFETY: the three parameters of the kernel, which stays inside the buffer.
        unsafe {
            cuda_core::launch_kernel_on_stream(
                &self.add,
                (blocks, 1, 1),
                (128, 1, 1),
                0,
                stream,
                &mut params,
            )
        }
    }

    /// An operation of cuda-async that retains the buffer.
    fn add_op(&self, lent: &Lent<u32>, k: u32) -> AsyncKernelLaunch<'static> {
        let mut launch =
            AsyncKernelLaunchBuilder::new(Arc::new(self.add.clone()) as Arc<CudaFunction>);
        launch.retain_buffer(lent.storage().clone(), true);
        launch.push_arg(lent.storage().cu_deviceptr()).push_arg(k).push_arg(N as u32);
        let config = LaunchConfig {
            grid_dim: ((N as u32).div_ceil(128), 1, 1),
            block_dim: (128, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: as above.
        unsafe { launch.finalize_unchecked(config) }
    }
}

/// A kernel of cuda-core in a launch of dmr, on a stream of dmr and on one of cuda-core.
#[test]
fn a_recorder_orders_kernels_of_cuda_core() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let work = Arc::new(gpu.streams().acquire().unwrap());
    let theirs = program.adopt();
    let mut x = DeviceBuffer::from_host(gpu, &load, &vec![1_u32; N]).unwrap();
    for round in 0..10 {
        x.fill(round, &load).unwrap();
        let mut launch = LaunchRecorder::new_strict(&*work);
        let _ = launch.read_write(&mut x);
        let ptr = x.block().unwrap().ptr();
        let stream = stream_of(&work);
        launch.launch(gpu, |_| program.launch_add(&stream, ptr, 10)).unwrap();
        let mut launch = LaunchRecorder::new_strict(&*theirs);
        let _ = launch.read_write(&mut x);
        launch.launch(gpu, |_| program.launch_add(theirs.stream(), ptr, 100)).unwrap();
        assert_eq!(x.to_host(&load).unwrap(), vec![round + 110; N]);
    }
}

/// Lent, used by cuda-core, cuda-async and dmr, and taken back, with no wait of the host.
#[test]
fn a_buffer_is_lent_and_comes_back() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let theirs = program.adopt();
    let mut x = DeviceBuffer::<u32>::uninit(gpu, &load, N).unwrap();
    let mut want = 0;
    for round in 0..10 {
        x.fill(round, &load).unwrap();
        let lent = Lent::new(gpu, x, &theirs).unwrap();
        // SAFETY: the operation retains the buffer; the stream orders it.
        unsafe { program.add_op(&lent, 10).async_on(theirs.stream()) }.unwrap();
        lent.launch(gpu, &theirs, Access::ReadWrite, |stream, _| {
            program.launch_add(stream, lent.storage().cu_deviceptr(), 100)
        })
        .unwrap();
        x = lent.reclaim(gpu, &theirs).unwrap();
        want = round + 110;
    }
    assert_eq!(x.to_host(&load).unwrap(), vec![want; N]);
}

/// cuda-core's own safe methods, on its typed buffer.
#[test]
fn cuda_core_copies_a_lent_buffer() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let theirs = program.adopt();
    let other = program.adopt();
    let x = DeviceBuffer::from_host(gpu, &load, &vec![7_u32; N]).unwrap();
    let lent = Lent::new(gpu, x, &theirs).unwrap();
    let mut typed = lent.typed().unwrap();
    assert_eq!(typed.to_host_vec(theirs.stream()).unwrap(), vec![7; N]);
    typed.zero_async(theirs.stream()).unwrap();
    theirs.stream().synchronize().unwrap();
    assert_eq!(typed.to_host_vec(other.stream()).unwrap(), vec![0; N]);
    // A view is left.
    let refused = lent.reclaim(gpu, &theirs).unwrap_err();
    assert!(matches!(refused.error, ReclaimError::Held));
    drop(typed);
    let x = refused.buffer.reclaim(gpu, &theirs).unwrap();
    assert_eq!(x.to_host(&load).unwrap(), vec![0; N]);
}

/// A captured graph holds the buffer, and its replays are ordered with dmr's uses.
#[test]
fn a_graph_replays_on_a_lent_buffer() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let theirs = program.adopt();
    let mut x = DeviceBuffer::<u32>::uninit(gpu, &load, N).unwrap();
    x.fill(0, &load).unwrap();
    let lent = Lent::new(gpu, x, &theirs).unwrap();
    theirs.stream().synchronize().unwrap();
    let graph = CudaGraph::capture(Arc::clone(theirs.stream()), program.add_op(&lent, 1)).unwrap();
    for _ in 0..5 {
        graph.launch().sync_on(theirs.stream()).unwrap();
        lent.launch(gpu, &theirs, Access::ReadWrite, |stream, _| {
            program.launch_add(stream, lent.storage().cu_deviceptr(), 10)
        })
        .unwrap();
    }
    let refused = lent.reclaim(gpu, &theirs).unwrap_err();
    assert!(matches!(refused.error, ReclaimError::Held), "the graph holds it: {:?}", refused.error);
    drop(graph);
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut lent = refused.buffer;
    let x = loop {
        match lent.reclaim(gpu, &theirs) {
            Ok(x) => break x,
            Err(refused) if Instant::now() < deadline => {
                lent = refused.buffer;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(refused) => panic!("{:?}", refused.error),
        }
    };
    assert_eq!(x.to_host(&load).unwrap(), vec![55; N]);
}

/// A dropped loan with work under way: cuda-core's worker returns the memory to dmr afterwards.
#[test]
fn memory_comes_back_after_the_work() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let theirs = program.adopt();
    let before = gpu.resource().usage().live;
    let x = DeviceBuffer::<u32>::zeroed(gpu, &load, N).unwrap();
    let lent = Lent::new(gpu, x, &theirs).unwrap();
    let op = program.add_op(&lent, 1);
    drop(lent);
    op.sync_on(theirs.stream()).unwrap();
    let start = Instant::now();
    while gpu.resource().usage().live > before && start.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
    assert_eq!(gpu.resource().usage().live, before);
    println!("the memory came back after {:?}", start.elapsed());
}

/// Three threads and two streams of cuda-core: refused uses are tried again, and no addition is
/// lost.
#[test]
fn threads_use_a_lent_buffer() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let streams = [program.adopt(), program.adopt()];
    let mut x = DeviceBuffer::<u32>::uninit(gpu, &load, N).unwrap();
    x.fill(0, &load).unwrap();
    let lent = Lent::new(gpu, x, &streams[0]).unwrap();
    let program = &program;
    let lent_ref = &lent;
    let streams_ref = &streams;
    let refusals: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    let mut refusals = 0;
                    for round in 0..60 {
                        let stream = &streams_ref[(thread + round) % 2];
                        loop {
                            let done = match (thread + round) % 3 {
                                0 => program.add_op(lent_ref, 1).sync_on(stream.stream()).is_ok(),
                                _ => lent_ref
                                    .launch(program.gpu, stream, Access::ReadWrite, |stream, _| {
                                        program.launch_add(
                                            stream,
                                            lent_ref.storage().cu_deviceptr(),
                                            1,
                                        )
                                    })
                                    .is_ok(),
                            };
                            if done {
                                break;
                            }
                            refusals += 1;
                            std::thread::yield_now();
                        }
                    }
                    refusals
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{refusals} uses were refused and tried again");
    for stream in &streams {
        stream.stream().synchronize().unwrap();
    }
    let x = lent.reclaim(gpu, &streams[1]).unwrap();
    assert_eq!(x.to_host(&load).unwrap(), vec![180; N]);
}

/// `async_on` ends cuda-async's leases when the work is submitted. The loan is dropped, and the
/// memory is used again. If the work were not done by then, the simulator would report it.
#[test]
fn memory_is_not_reused_before_untracked_work_is_done() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let theirs = program.adopt();
    let mut x = DeviceBuffer::<u32>::uninit(gpu, &load, N).unwrap();
    x.fill(1, &load).unwrap();
    let lent = Lent::new(gpu, x, &theirs).unwrap();
    let op = program.add_op(&lent, 1);
    drop(lent);
    load.stream().synchronize().unwrap();
    let freed = gpu.resource().usage().total_freed;
    // SAFETY: the loan frees the memory after the stream's work.
    unsafe { op.async_on(theirs.stream()) }.unwrap();
    // cuda-core's worker ends the lease of `new`, and frees the memory.
    let deadline = Instant::now() + Duration::from_secs(5);
    while gpu.resource().usage().total_freed == freed && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(gpu.resource().usage().total_freed > freed, "the memory was not freed");
    // More than the pool has reserved.
    let blocks = gpu.resource().usage().reserved as usize / (N * size_of::<u32>()) + 100;
    let new = || DeviceBuffer::<u32>::uninit(gpu, &load, N).unwrap();
    let mut others: Vec<_> = (0..blocks).map(|_| new()).collect();
    for y in &mut others {
        y.fill(7, &load).unwrap();
    }
}

/// Work of `async_on` on a second stream is under no lease when the buffer is reclaimed on the
/// first.
#[test]
fn a_reclaimed_buffer_comes_after_all_streams() {
    let _one = ONE.lock();
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let theirs = program.adopt();
    let other = program.adopt();
    let mut x = DeviceBuffer::<u32>::uninit(gpu, &load, N).unwrap();
    x.fill(1, &load).unwrap();
    let lent = Lent::new(gpu, x, &theirs).unwrap();
    theirs.stream().synchronize().unwrap();
    let add = |stream: &cuda_core::Stream, _| {
        program.launch_add(stream, lent.storage().cu_deviceptr(), 10)
    };
    lent.launch(gpu, &other, Access::ReadWrite, add).unwrap();
    other.stream().synchronize().unwrap();
    // SAFETY: the loan orders the end of this stream's work.
    unsafe { program.add_op(&lent, 100).async_on(other.stream()) }.unwrap();
    let x = lent.reclaim(gpu, &theirs).unwrap();
    assert_eq!(x.to_host(&load).unwrap(), vec![111; N]);
}

/// A program without the loan, in a process of its own: the simulator reports two races.
#[test]
fn a_kernel_without_the_loan_races() {
    let program = std::env::current_exe().unwrap();
    let name = ["--exact", "without_the_loan", "--ignored", "--nocapture"];
    let output = std::process::Command::new(program).args(name).output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{report}");
    assert!(report.contains("dmr-sim: 2 findings"), "{report}");
}

#[test]
#[ignore = "run by a_kernel_without_the_loan_races"]
fn without_the_loan() {
    let program = Program::new();
    let gpu = program.gpu;
    let load = gpu.streams().acquire().unwrap();
    let theirs = program.adopt();
    let mut x = DeviceBuffer::<u32>::uninit(gpu, &load, N).unwrap();
    x.fill(1, &load).unwrap();
    program.launch_add(theirs.stream(), x.block().unwrap().ptr(), 1).unwrap();
    theirs.stream().synchronize().unwrap();
}

/// The slot of a dropped stream is used again.
#[test]
fn streams_are_adopted_one_after_the_other() {
    let _one = ONE.lock();
    let program = Program::new();
    for _ in 0..200 {
        drop(program.adopt());
    }
}
