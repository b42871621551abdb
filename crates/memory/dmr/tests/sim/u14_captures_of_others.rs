//! U14: no call of the library ends the capture of a stream that it does not use.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode as Mode};
use dmr::DeviceRuntimeBuilder;
use dmr::dmr_pinned::PinnedPool;
use dmr::prelude::*;
use dmr_core::{Access, BlockUse, DeviceOps};
use dmr_slices::CudaSlices;
use dmr_testkit::Rig;

const BYTES: usize = 1 << 20;
const TAG: AllocTag = AllocTag::new("captures");

type Choose = fn(DeviceRuntimeBuilder) -> DeviceRuntimeBuilder;

const BACKENDS: [(&str, Choose); 5] = [
    ("tracked direct", |builder| builder.backend(Backend::DirectTracked)),
    ("async", |builder| builder.backend(Backend::Async)),
    ("pool over pages", |builder| builder.backend(Backend::Pool)),
    ("pool without pages", |builder| {
        builder.backend(Backend::Pool).pool_config(PoolConfig::fast().with_page_size(0))
    }),
    ("debug guard", |builder| builder.backend(Backend::Pool).debug_guard()),
];

struct Stage {
    rig: Rig,
    runtime: DeviceRuntime,
    home: StreamLease,
    other: StreamLease,
}

impl Stage {
    fn new(choose: Choose) -> Self {
        let rig = Rig::simulated();
        let builder = DeviceRuntime::builder(rig.ordinal());
        let builder = builder.with_streams(Arc::clone(rig.streams()));
        let runtime = choose(builder).build().unwrap();
        let home = rig.stream();
        let other = rig.stream();
        Self { rig, runtime, home, other }
    }

    /// Returns a block that the other stream has just written.
    fn block_in_use(&self) -> DeviceBlock {
        let memory = self.runtime.resource();
        let block = memory.allocate(BYTES, self.home.id(), TAG).unwrap();
        let uses = [BlockUse::new(block.id(), Access::Write)];
        let tokens = memory.prepare_uses(&uses, self.other.id()).unwrap();
        self.rig.ops().fill_pattern(&block, 0..BYTES, 7, self.other.id()).unwrap();
        memory.finish_uses(tokens).unwrap();
        block
    }

    fn free(&self, block: DeviceBlock) {
        self.runtime.resource().deallocate(block).unwrap();
    }

    /// Makes calls of cudarc that end captures unless their thread is relaxed.
    fn as_cudarc<T>(&self, calls: impl FnOnce() -> T) -> T {
        self.rig.device().relaxed(|_| Ok(calls())).unwrap()
    }

    fn end(self) {
        let Self { rig, runtime, home, other } = self;
        runtime.shutdown().unwrap();
        drop((runtime, home, other));
        rig.assert_clean();
    }
}

/// A step that is made while a stream of the program captures.
type Step = fn(&Stage);

const STEPS: &[(&str, Step)] = &[
    ("allocate and free", |stage| {
        stage.free(stage.runtime.resource().allocate(BYTES, stage.home.id(), TAG).unwrap());
    }),
    ("free what another stream uses", |stage| stage.free(stage.block_in_use())),
    ("free many that another stream uses", |stage| {
        let blocks: Vec<_> = (0..64).map(|_| stage.block_in_use()).collect();
        blocks.into_iter().for_each(|block| stage.free(block));
    }),
    ("reap what is free", |stage| {
        stage.free(stage.block_in_use());
        stage.runtime.resource().try_reap().unwrap();
    }),
    ("reap what is pending", |stage| {
        stage.free(stage.block_in_use());
        stage.runtime.resource().reap_pending().unwrap();
    }),
    ("trim", |stage| {
        stage.free(stage.block_in_use());
        stage.runtime.trim_to(0).unwrap();
    }),
    ("out of memory", |stage| {
        stage.free(stage.block_in_use());
        let live = stage.block_in_use();
        let bytes = stage.rig.device().total_memory() as usize - 1;
        assert!(stage.runtime.resource().allocate(bytes, stage.other.id(), TAG).is_err());
        stage.free(live);
    }),
    ("pinned memory", |stage| {
        let mut pinned = PinnedBuffer::<u8>::zeroed(&stage.runtime, stage.home.id(), 64).unwrap();
        let buffer = DeviceBuffer::<u8>::zeroed(&stage.runtime, stage.home.id(), 64).unwrap();
        pinned.copy_from_device(&buffer, stage.other.id()).unwrap();
        assert_eq!(pinned.as_slice().unwrap(), [0; 64]);
        drop(pinned);
        PinnedPool::of(stage.runtime.streams()).reap_pending().unwrap();
        drop(PinnedBuffer::<u8>::zeroed(&stage.runtime, stage.home.id(), 64).unwrap());
        PinnedPool::of(stage.runtime.streams()).try_reap().unwrap();
    }),
    ("copies from and to the host", |stage| {
        let buffer = DeviceBuffer::from_host(&stage.runtime, stage.home.id(), &[1u8; 64]).unwrap();
        assert_eq!(buffer.to_host(stage.other.id()).unwrap(), [1; 64]);
    }),
    ("a copy from the host whose wait fails", |stage| {
        let buffer = DeviceBuffer::from_host(&stage.runtime, stage.home.id(), &[1u8; 64]).unwrap();
        stage.rig.universe().fail_nth("cuStreamSynchronize", 1, 999);
        assert_eq!(buffer.to_host(stage.other.id()).unwrap(), [1; 64]);
    }),
    ("wait for a stream", |stage| {
        stage.rig.delay(stage.home.id());
        stage.rig.streams().synchronize(stage.home.id()).unwrap();
    }),
    ("wait for all streams", |stage| {
        stage.rig.delay(stage.home.id());
        assert_eq!(stage.rig.streams().synchronize_all(), Ok(true));
        let until = Instant::now() + Duration::from_secs(20);
        assert_eq!(stage.rig.streams().synchronize_until(until), Ok(true));
    }),
    ("patterns", |stage| {
        let block = stage.runtime.resource().allocate(BYTES, stage.home.id(), TAG).unwrap();
        stage.rig.ops().fill_pattern(&block, 0..BYTES, 7, stage.home.id()).unwrap();
        stage.rig.ops().check_pattern(&block, 0..BYTES, 7, stage.home.id(), 0).unwrap();
        assert!(stage.rig.ops().collect().unwrap().is_empty());
        stage.free(block);
    }),
    ("a record that fails", |stage| {
        let memory = stage.runtime.resource();
        let block = stage.block_in_use();
        let uses = [BlockUse::new(block.id(), Access::Read)];
        let tokens = memory.prepare_uses(&uses, stage.other.id()).unwrap();
        stage.rig.universe().fail_nth("cuEventRecord", 1, 999);
        // The work is waited for instead.
        memory.finish_uses(tokens).unwrap();
        stage.free(block);
    }),
    ("new and adopted streams", |stage| {
        drop(stage.rig.streams().acquire_with_priority(-1).unwrap());
        let stream = stage.rig.device().context().new_stream().unwrap();
        let adopted = stage.rig.streams().adopt(stream).unwrap();
        stage.rig.streams().retire_stream(&adopted).unwrap();
    }),
    ("shutdown", |stage| {
        stage.free(stage.block_in_use());
        stage.runtime.shutdown().unwrap();
    }),
    ("a runtime begins and ends", |stage| {
        let builder = DeviceRuntime::builder(stage.rig.ordinal()).backend(Backend::Async);
        let runtime = builder.with_streams(Arc::clone(stage.rig.streams())).build().unwrap();
        let block = runtime.resource().allocate(BYTES, stage.home.id(), TAG).unwrap();
        runtime.resource().deallocate(block).unwrap();
    }),
    ("slices of cudarc", |stage| {
        let gpu = &stage.runtime;
        let home = stage.home.id();
        let own = stage.rig.device().context().new_stream().unwrap();
        let slice = || stage.as_cudarc(|| own.clone_htod(&[1u8; 64]).unwrap());
        drop(DeviceBuffer::adopt(gpu, home, slice()).unwrap());
        let given = DeviceBuffer::adopt(gpu, home, slice()).unwrap().into_cuda_slice().unwrap();
        stage.as_cudarc(|| drop(given));
        drop(DeviceBuffer::<u8>::zeroed(&CudaSlices::of(gpu), home, 64).unwrap());
        let none = DeviceBuffer::<u8>::uninit(gpu, home, 0).unwrap();
        let none = none.into_cuda_slice().unwrap();
        stage.as_cudarc(|| drop(none));
    }),
    ("a runtime with streams of its own begins and ends", |stage| {
        for (_, choose) in BACKENDS {
            let runtime = choose(DeviceRuntime::builder(stage.rig.ordinal())).build().unwrap();
            let home = runtime.streams().acquire().unwrap();
            drop(DeviceBuffer::<u8>::zeroed(&runtime, &home, 64).unwrap());
            runtime.shutdown().unwrap();
        }
    }),
];

fn end_capture(stream: &Arc<CudaStream>) -> bool {
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    match stream.end_capture(flags) {
        Ok(_) => true,
        // Ended as valid, and the simulator instantiates no graph.
        Err(error) => error.0 == cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_SUPPORTED,
    }
}

#[test]
fn no_call_ends_the_capture_of_another_thread_in_global_mode() {
    for (name, choose) in BACKENDS {
        for (step, act) in STEPS {
            let stage = Stage::new(choose);
            let stream = stage.rig.device().context().new_stream().unwrap();
            stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            std::thread::scope(|scope| scope.spawn(|| act(&stage)).join()).unwrap();
            assert!(end_capture(&stream), "{name}: {step}");
            drop(stream);
            stage.end();
        }
    }
}

#[test]
fn no_call_ends_the_capture_of_its_own_thread() {
    for mode in [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL] {
        for (name, choose) in BACKENDS {
            for (step, act) in STEPS {
                let stage = Stage::new(choose);
                let stream = stage.rig.device().context().new_stream().unwrap();
                stream.begin_capture(mode).unwrap();
                act(&stage);
                assert!(end_capture(&stream), "{name}: {step}");
                assert!(dmr_sim::is_capture_mode_global());
                drop(stream);
                stage.end();
            }
        }
    }
}

/// A capture that begins when the launch was prepared, and its event is about to be recorded.
#[test]
fn an_event_that_a_graph_has_captured_is_discarded() {
    let stage = Stage::new(|builder| builder.backend(Backend::Async));
    let memory = stage.runtime.resource();
    let block = memory.allocate(BYTES, stage.home.id(), TAG).unwrap();
    let uses = [BlockUse::new(block.id(), Access::Write)];
    let tokens = memory.prepare_uses(&uses, stage.other.id()).unwrap();
    stage.rig.delay(stage.other.id());
    stage.rig.ops().fill_pattern(&block, 0..BYTES, 7, stage.other.id()).unwrap();
    let stream = stage.other.stream();
    std::thread::scope(|scope| {
        let hold = stage.rig.universe().hold_nth("cuEventRecord", 1);
        let finished = scope.spawn(|| memory.finish_uses(tokens));
        hold.wait_until_held();
        stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        hold.release();
        let capturing = ResourceError::stream_capturing(stage.other.id());
        assert_eq!(finished.join().unwrap(), Err(capturing));
    });
    assert!(end_capture(stream));
    // The use is in the ledger, and its reader waits for an event that is recorded now.
    let uses = [BlockUse::new(block.id(), Access::Read)];
    let tokens = memory.prepare_uses(&uses, stage.home.id()).unwrap();
    stage.rig.ops().check_pattern(&block, 0..BYTES, 7, stage.home.id(), 0).unwrap();
    memory.finish_uses(tokens).unwrap();
    stage.free(block);
    stage.end();
}
