//! U14: calls look for captures on streams that the program has had in its hands, and on no other.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED;
use dmr::cudarc::driver::{DeviceSlice, DriverError};
use dmr::prelude::*;
use dmr_testkit::Rig;

const TAG: AllocTag = AllocTag::new("lent");
const LOOK: &str = "cuStreamIsCapturing";

struct Stage {
    rig: Rig,
    gpu: DeviceRuntime,
    stream: StreamLease,
}

impl Stage {
    fn new(backend: Backend) -> Self {
        let rig = Rig::simulated();
        let streams = Arc::clone(rig.streams());
        let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(streams);
        let gpu = builder.backend(backend).build().unwrap();
        let stream = rig.stream();
        Self { rig, gpu, stream }
    }

    /// Returns the looks for captures during `calls`.
    fn looks(&self, calls: impl FnOnce()) -> u64 {
        self.rig.universe().reset_calls();
        calls();
        self.rig.universe().calls().count(LOOK)
    }

    /// Allocates, copies, waits for another stream and frees.
    fn work(&self, other: &StreamLease) {
        let x = DeviceBuffer::from_host(&self.gpu, &self.stream, &[1_u8; 64]).unwrap();
        assert_eq!(x.to_host(other).unwrap(), [1; 64]);
        let mut launch = LaunchRecorder::new_strict(&self.stream);
        launch.read(&x);
        launch.launch(&self.gpu, |_| Ok::<_, DriverError>(())).unwrap();
        let mut prepared = LaunchRecorder::new_strict(&self.stream);
        prepared.read(&x);
        prepared.prepare(&self.gpu).unwrap().finish().unwrap();
        drop(x);
        self.gpu.streams().synchronize(self.stream.id()).unwrap();
    }
}

#[test]
fn a_stream_that_never_left_the_library_is_not_looked_at() {
    for backend in [Backend::DirectTracked, Backend::Async, Backend::Pool] {
        let stage = Stage::new(backend);
        let other = stage.rig.stream();
        stage.work(&other);
        assert_eq!(stage.looks(|| stage.work(&other)), 0, "{backend:?}");
        // The other stream, too: the calls of each look at their own.
        drop(Arc::clone(stage.stream.stream()));
        assert!(stage.looks(|| stage.work(&other)) > 0, "{backend:?}");
    }
}

/// A way in which a program gets a stream into its hands.
type Take = fn(&Stage) -> Arc<CudaStream>;

const WAYS: [(&str, Take); 6] = [
    ("its lease", |stage| Arc::clone(stage.stream.stream())),
    ("its id", |stage| stage.gpu.streams().resolve(stage.stream.id()).unwrap()),
    ("a guard", |stage| Arc::clone(stage.gpu.streams().enter(stage.stream.id()).unwrap().stream())),
    ("a launch", |stage| {
        let launch = LaunchRecorder::new_strict(&stage.stream);
        launch.launch(&stage.gpu, |stream| Ok::<_, DriverError>(Arc::clone(stream))).unwrap()
    }),
    ("a launch with views", |stage| {
        let x = DeviceBuffer::<u8>::zeroed(&stage.gpu, &stage.stream, 64).unwrap();
        let launch = LaunchRecorder::new_strict(&stage.stream);
        let stream = launch.launch_with(&stage.gpu, Reads(&x), |_, view| {
            Ok::<_, DriverError>(Arc::clone(view.stream()))
        });
        stream.unwrap()
    }),
    ("a slice of cudarc", |stage| {
        let x = DeviceBuffer::<u8>::zeroed(&stage.gpu, &stage.stream, 0).unwrap();
        Arc::clone(x.into_cuda_slice().unwrap().stream())
    }),
];

#[test]
fn a_capture_is_noticed_whichever_way_the_program_has_got_the_stream() {
    for backend in [Backend::DirectTracked, Backend::Async, Backend::Pool] {
        for (way, take) in WAYS {
            let stage = Stage::new(backend);
            let memory = stage.gpu.resource();
            let before = memory.allocate(64, stage.stream.id(), TAG).unwrap();
            let stream = take(&stage);
            stream.begin_capture(RELAXED).unwrap();
            let allocated = memory.allocate(64, stage.stream.id(), TAG).map(drop);
            assert!(
                matches!(allocated, Err(ResourceError::StreamCapturing { .. })),
                "{way}: {allocated:?}"
            );
            let refused = memory.deallocate(before).unwrap_err();
            assert!(
                matches!(refused.error, ResourceError::StreamCapturing { .. }),
                "{way}: {refused}"
            );
            let before = refused.block;
            let waited = stage.gpu.streams().synchronize(stage.stream.id());
            assert!(matches!(waited, Err(ResourceError::StreamCapturing { .. })), "{way}");
            drop(stream.end_capture(CUgraphInstantiate_flags(0)).unwrap());
            memory.deallocate(before).unwrap();
        }
    }
}
