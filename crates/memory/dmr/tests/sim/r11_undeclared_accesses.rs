//! R11: what the work of a strict launch accesses is compared with what the launch declares, on the
//! simulated driver.

#![cfg(feature = "pool")]
#![allow(unsafe_code, reason = "submits work by address")]

use std::convert::Infallible;
use std::sync::Arc;

use dmr::cudarc::driver::DriverError;
use dmr::cudarc::driver::result::{memcpy_htod_async, memset_d8_async};
use dmr::prelude::*;
use dmr_sim::ReportKind::{UndeclaredRead, UndeclaredWrite};
use dmr_sim::{Report, ReportKind};
use dmr_testkit::Rig;

use crate::peers::{CopyWords, TRACKING, runtime};

const WORDS: usize = 100;

/// Two buffers on a simulated device.
struct Scene {
    rig: Rig,
    gpu: DeviceRuntime,
    stream: StreamLease,
    kernel: CopyWords,
    x: DeviceBuffer<u32>,
    y: DeviceBuffer<u32>,
}

impl Scene {
    fn new(backend: Backend) -> Self {
        let rig = Rig::simulated();
        let gpu = runtime(&rig, backend);
        let stream = rig.stream();
        let kernel = CopyWords::load(&rig);
        let buffer = |tag| {
            let tag = AllocTag::new(tag);
            let mut buffer = DeviceBuffer::uninit_tagged(&gpu, &stream, WORDS, tag).unwrap();
            buffer.fill(0, &stream).unwrap();
            buffer
        };
        let x = buffer("x");
        let y = buffer("y");
        Self { x, y, rig, gpu, stream, kernel }
    }

    /// Launches `y[..words] = x[..words]`, and declares nothing of its own.
    fn copy(&self, words: usize) -> Result<(), DriverError> {
        let [to, from] = [&self.y, &self.x].map(address);
        // SAFETY: on the simulated driver, which reports what is wrong.
        unsafe { self.kernel.try_launch(&self.stream, to, from, words as u32) }
    }

    fn set(&self, at: u64, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: on the simulated driver, which reports what is wrong.
        unsafe { memset_d8_async(at, 1, bytes, self.stream.stream().cu_stream()) }
    }

    fn strict(&self) -> LaunchRecorder {
        LaunchRecorder::new_strict(&self.stream)
    }

    /// Returns the findings so far, as the kind, the tag and the bytes.
    fn found(&self) -> Vec<(ReportKind, String, u64)> {
        let named = |report: Report| {
            (report.kind, report.tag.as_deref().unwrap_or_default().to_owned(), report.bytes)
        };
        self.rig.universe().reports().into_iter().map(named).collect()
    }

    fn only(&self) -> Report {
        let mut reports = self.rig.universe().reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.remove(0)
    }
}

fn address(buffer: &DeviceBuffer<u32>) -> u64 {
    buffer.block().unwrap().ptr()
}

fn on_each_backend(test: impl Fn(Scene)) {
    TRACKING.into_iter().for_each(|backend| test(Scene::new(backend)));
}

const BYTES: u64 = 4 * WORDS as u64;

#[test]
fn a_write_to_what_was_declared_as_read_is_found() {
    on_each_backend(|mut scene| {
        let mut launch = scene.strict();
        launch.read(&scene.x);
        launch.read(&scene.y);
        launch.launch(&scene.gpu, |_| scene.copy(WORDS)).unwrap();
        let report = scene.only();
        let undeclared = report.undeclared.clone().unwrap();
        assert_eq!(report.kind, UndeclaredWrite);
        assert_eq!((report.tag.as_deref(), report.bytes), (Some("y"), BYTES));
        assert!(undeclared.as_read);
        assert_eq!(undeclared.block, scene.y.block().unwrap().generation().get());
        assert_eq!(&*report.second.operation, "kernel copy_words");
        assert_eq!(report.second.place.unwrap().line(), 22, "{report}");
        let numbers = [&scene.x, &scene.y].map(|it| it.block().unwrap().generation().get());
        let [x, y] = numbers;
        let declared =
            format!("the launch declares: reads \"x\" (block #{x}), reads \"y\" (block #{y}); ");
        assert!(report.to_string().contains(&declared), "{report}");
        scene.y.fill(1, &scene.stream).unwrap();
        assert_eq!(scene.found().len(), 1, "a buffer's own operations are right");
    });
}

#[test]
fn an_input_that_was_not_declared_is_found() {
    on_each_backend(|mut scene| {
        let mut launch = scene.strict();
        launch.write(&mut scene.y);
        launch.launch(&scene.gpu, |_| scene.copy(WORDS)).unwrap();
        assert_eq!(scene.found(), [(UndeclaredRead, "x".to_owned(), BYTES)]);
    });
}

#[test]
fn each_block_that_was_not_declared_is_found_once() {
    on_each_backend(|scene| {
        scene.strict().launch(&scene.gpu, |_| scene.copy(WORDS)).unwrap();
        let expected = [(UndeclaredRead, "x"), (UndeclaredWrite, "y")];
        assert_eq!(scene.found(), expected.map(|(kind, tag)| (kind, tag.to_owned(), BYTES)));
    });
}

#[test]
fn what_is_declared_is_no_finding() {
    on_each_backend(|mut scene| {
        let mut launch = scene.strict();
        launch.read(&scene.x);
        launch.write(&mut scene.y);
        launch.launch(&scene.gpu, |_| scene.copy(WORDS)).unwrap();
        // What a launch writes, it may read: the order is the same.
        let mut launch = scene.strict();
        launch.write(&mut scene.x);
        launch.read_write(&mut scene.y);
        launch.launch(&scene.gpu, |_| scene.copy(WORDS)).unwrap();
        assert_eq!(scene.found(), []);
    });
}

#[test]
fn views_are_compared_by_their_bytes() {
    on_each_backend(|mut scene| {
        let words = WORDS / 2;
        let mut launch = scene.strict();
        launch.read(&scene.x.slice(..words).unwrap());
        launch.write(&mut scene.y.slice_mut(..words).unwrap());
        launch.launch(&scene.gpu, |_| scene.copy(words)).unwrap();
        assert_eq!(scene.found(), [], "of exactly these bytes");

        let mut launch = scene.strict();
        launch.read(&scene.x);
        launch.write(&mut scene.y.slice_mut(..words).unwrap());
        launch.launch(&scene.gpu, |_| scene.copy(words + 1)).unwrap();
        let report = scene.only();
        let at = address(&scene.y) + 4 * words as u64;
        assert_eq!((report.kind, report.address, report.bytes), (UndeclaredWrite, at, 4));
    });
}

#[test]
fn copies_and_sets_in_a_launch_are_compared() {
    on_each_backend(|scene| {
        let mut launch = scene.strict();
        launch.read(&scene.x);
        let y = address(&scene.y);
        launch.launch(&scene.gpu, |_| scene.set(y, 8)).unwrap();
        let copy = |stream: &StreamGuard<'_>| {
            let stream: &dmr::cudarc::driver::CudaStream = stream;
            // SAFETY: on the simulated driver, which reports what is wrong.
            unsafe { memcpy_htod_async(y, &[1_u8; 4], stream.cu_stream()) }
        };
        scene.strict().launch(&scene.gpu, copy).unwrap();
        let found = [8, 4].map(|bytes| (UndeclaredWrite, "y".to_owned(), bytes));
        assert_eq!(scene.found(), found);
    });
}

#[test]
fn pinned_memory_that_was_not_declared_is_found() {
    on_each_backend(|mut scene| {
        let mut pinned =
            PinnedBuffer::from_slice(&scene.gpu, &scene.stream, &[7_u32; WORDS]).unwrap();
        let from = pinned.as_mut_slice().unwrap().as_ptr() as u64;
        let copy = |scene: &Scene| {
            let to = address(&scene.y);
            let stream = scene.stream.stream().cu_stream();
            // SAFETY: on the simulated driver, which reports what is wrong.
            let result = unsafe {
                dmr::cudarc::driver::sys::cuMemcpyHtoDAsync_v2(
                    to,
                    from as _,
                    BYTES as usize,
                    stream,
                )
            };
            result.result()
        };
        let mut launch = scene.strict();
        launch.write(&mut scene.y);
        launch.launch(&scene.gpu, |_| copy(&scene)).unwrap();
        assert_eq!(scene.found(), [(UndeclaredRead, "pinned".to_owned(), BYTES)]);
        let mut launch = scene.strict();
        launch.read(&pinned);
        launch.write(&mut scene.y);
        launch.launch(&scene.gpu, |_| copy(&scene)).unwrap();
        assert_eq!(scene.found().len(), 1);
    });
}

#[test]
fn buffers_are_copied_from_and_to_slices_of_pinned_memory() {
    on_each_backend(|mut scene| {
        let mut pinned =
            PinnedBuffer::from_slice(&scene.gpu, &scene.stream, &[7_u32; WORDS]).unwrap();
        let host = pinned.as_mut_slice().unwrap();
        scene.y.copy_from_host(host, &scene.stream).unwrap();
        scene.x.copy_to_host(host, &scene.stream).unwrap();
        assert_eq!(scene.found(), []);
    });
}

#[test]
fn an_adopted_slice_that_was_not_declared_is_found_and_one_that_was_given_back_is_no_block() {
    on_each_backend(|scene| {
        let own = scene.rig.device().context().new_stream().unwrap();
        let slice = own.alloc_zeros::<u32>(WORDS).unwrap();
        let adopted = DeviceBuffer::adopt(&scene.gpu, &scene.stream, slice).unwrap();
        let at = address(&adopted);
        scene.strict().launch(&scene.gpu, |_| scene.set(at, 16)).unwrap();
        assert_eq!(scene.found(), [(UndeclaredWrite, "cudarc".to_owned(), 16)]);
        let slice = adopted.into_cuda_slice().unwrap();
        scene.strict().launch(&scene.gpu, |_| scene.set(at, 16)).unwrap();
        assert_eq!(scene.found().len(), 1, "cudarc's memory is not compared");
        scene.stream.stream().synchronize().unwrap();
        drop(slice);
    });
}

#[test]
fn memory_of_a_peer_that_was_not_declared_is_found() {
    for backend in TRACKING {
        let [here, there] = Rig::simulated_pair();
        let [gpu, other] = [&here, &there].map(|rig| runtime(rig, backend));
        let stream = here.stream();
        let home = there.stream();
        let kernel = CopyWords::load(&here);
        gpu.enable_peer_access(&other).unwrap();
        let from = DeviceBuffer::<u32>::zeroed(&other, &home, WORDS).unwrap();
        let mut to = DeviceBuffer::<u32>::zeroed(&gpu, &stream, WORDS).unwrap();
        kernel.launch_peer(&gpu, &stream, &mut to, (&other, &home), &from, WORDS as u32);
        assert!(here.universe().reports().is_empty());
        there.device().synchronize().unwrap();
        let [target, source] = [&to, &from].map(address);
        let mut launch = LaunchRecorder::new_strict(&stream);
        launch.write(&mut to);
        // SAFETY: on the simulated driver, which reports what is wrong.
        let copy = |_: &StreamGuard<'_>| unsafe {
            kernel.try_launch(&stream, target, source, WORDS as u32)
        };
        launch.launch(&gpu, copy).unwrap();
        let reports = here.universe().reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert_eq!((reports[0].kind, reports[0].device), (UndeclaredRead, Some(1)));
        here.device().synchronize().unwrap();
    }
}

#[test]
fn the_buffer_of_a_spillable_one_is_compared() {
    let rig = Rig::simulated();
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    let gpu = builder.spill().build().unwrap();
    let stream = rig.stream();
    let kernel = CopyWords::load(&rig);
    let spill = gpu.spill().unwrap();
    let buffer = || DeviceBuffer::<u32>::zeroed(&gpu, &stream, WORDS).unwrap();
    let from = spill.insert(buffer()).unwrap();
    let mut to = buffer();
    assert!(spill.free(1).unwrap() > 0);
    let restored = from.on_device(&stream).unwrap();
    let [target, source] = [&to, &*restored].map(address);
    // SAFETY: on the simulated driver, which reports what is wrong.
    let copy =
        |_: &StreamGuard<'_>| unsafe { kernel.try_launch(&stream, target, source, WORDS as u32) };
    let mut launch = LaunchRecorder::new_strict(&stream);
    launch.read(&*restored);
    launch.write(&mut to);
    launch.launch(&gpu, copy).unwrap();
    assert!(rig.universe().reports().is_empty());
    let mut launch = LaunchRecorder::new_strict(&stream);
    launch.write(&mut to);
    launch.launch(&gpu, copy).unwrap();
    let reports = rig.universe().reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].kind, UndeclaredRead);
}

#[test]
fn work_on_another_stream_is_the_launchs_if_its_closure_submits_it() {
    on_each_backend(|scene| {
        let other = scene.rig.stream();
        let y = address(&scene.y);
        scene.rig.device().synchronize().unwrap();
        // SAFETY: on the simulated driver, which reports what is wrong.
        let set =
            |_: &StreamGuard<'_>| unsafe { memset_d8_async(y, 1, 4, other.stream().cu_stream()) };
        scene.strict().launch(&scene.gpu, set).unwrap();
        assert_eq!(scene.found(), [(UndeclaredWrite, "y".to_owned(), 4)]);
    });
}

#[test]
fn the_work_of_a_prepared_launch_is_compared_on_its_stream_until_it_ends() {
    on_each_backend(|mut scene| {
        let mut launch = scene.strict();
        launch.read(&scene.x);
        let prepared = launch.prepare(&scene.gpu).unwrap();
        let mut inner = scene.strict();
        inner.write(&mut scene.y);
        let inner = inner.prepare(&scene.gpu).unwrap();
        scene.copy(WORDS).unwrap();
        assert_eq!(scene.found(), [], "declared by the two launches together");
        inner.finish().unwrap();
        scene.set(address(&scene.y), 4).unwrap();
        assert_eq!(scene.found(), [(UndeclaredWrite, "y".to_owned(), 4)]);
        prepared.finish().unwrap();
        scene.set(address(&scene.y), 4).unwrap();
        assert_eq!(scene.found().len(), 1, "work outside of a launch is not compared");
    });
}

#[test]
fn permissive_launches_and_work_outside_of_launches_are_not_compared() {
    on_each_backend(|scene| {
        scene.copy(WORDS).unwrap();
        let launch = LaunchRecorder::new_permissive(&scene.stream);
        launch.launch(&scene.gpu, |_| scene.copy(WORDS)).unwrap();
        let launch = LaunchRecorder::new_permissive(&scene.stream).prepare(&scene.gpu).unwrap();
        scene.copy(WORDS).unwrap();
        launch.finish().unwrap();
        // What another thread submits meanwhile belongs to no launch.
        let meanwhile = |_: &StreamGuard<'_>| {
            std::thread::scope(|scope| scope.spawn(|| scene.copy(WORDS).unwrap()).join().unwrap());
            Ok::<_, Infallible>(())
        };
        scene.strict().launch(&scene.gpu, meanwhile).unwrap();
        assert_eq!(scene.found(), []);
    });
}

#[test]
fn memory_that_the_closure_allocates_needs_no_declaration() {
    on_each_backend(|mut scene| {
        let mut launch = scene.strict();
        launch.write(&mut scene.y);
        launch
            .launch(&scene.gpu, |_| {
                let scratch =
                    DeviceBuffer::<u32>::zeroed(&scene.gpu, &scene.stream, WORDS).unwrap();
                let [to, from] = [&scene.y, &scratch].map(address);
                // SAFETY: both have that many words; the scratch memory is freed after the work on
                // its home stream.
                unsafe { scene.kernel.try_launch(&scene.stream, to, from, WORDS as u32) }
            })
            .unwrap();
        assert_eq!(scene.found(), []);
    });
}

#[test]
fn a_debug_guard_that_fills_memory_in_a_launch_is_no_finding() {
    let rig = Rig::simulated();
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    let gpu = builder.debug_guard().build().unwrap();
    let stream = rig.stream();
    let allocate = |_: &StreamGuard<'_>| {
        drop(DeviceBuffer::<u32>::zeroed(&gpu, &stream, WORDS).unwrap());
        Ok::<_, Infallible>(())
    };
    LaunchRecorder::new_strict(&stream).launch(&gpu, allocate).unwrap();
    assert!(rig.universe().reports().is_empty(), "{:?}", rig.universe().reports());
}
