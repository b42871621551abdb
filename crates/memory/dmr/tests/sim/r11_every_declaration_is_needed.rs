//! R11: each use that launches and operations of buffers declare is needed. One mistake is planted
//! in each run, a use that is not declared, declared as read only, or a byte too short, and the
//! simulated driver must find it.

#![cfg(feature = "pool")]
#![allow(unsafe_code, reason = "submits work by address")]
#![allow(clippy::print_stdout, reason = "prints the list of mistakes on request")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmr::cudarc::driver::DriverError;
use dmr::prelude::*;
use dmr_sim::DeclaredUse;
use dmr_sim::ReportKind::{UndeclaredRead, UndeclaredWrite};
use dmr_testkit::{Rig, block_on};

use crate::peers::{CopyWords, runtime};

const WORDS: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mistake {
    NotDeclared,
    DeclaredAsRead,
    WithoutFirstByte,
    WithoutLastByte,
}

const MISTAKES: [Mistake; 4] = [
    Mistake::NotDeclared,
    Mistake::DeclaredAsRead,
    Mistake::WithoutFirstByte,
    Mistake::WithoutLastByte,
];

impl Mistake {
    /// Makes the mistake in this use. Returns `false` if it is none there.
    fn plant(self, uses: &mut Vec<DeclaredUse>, index: usize) -> bool {
        let used = &mut uses[index];
        // The host's memory, which is no block.
        if used.block == 0 {
            return false;
        }
        let is_whole = used.end == u64::MAX;
        match self {
            Self::NotDeclared => drop(uses.remove(index)),
            Self::DeclaredAsRead if used.writes == 0 => return false,
            Self::DeclaredAsRead => {
                used.reads = 1;
                used.writes = 0;
            }
            Self::WithoutFirstByte if is_whole => {
                used.start = used.ptr + 1;
                used.end = u64::MAX - 1;
            }
            Self::WithoutFirstByte => used.start += 1,
            Self::WithoutLastByte if is_whole => return false,
            Self::WithoutLastByte => used.end -= 1,
        }
        true
    }
}

/// Plants each mistake in each use of each declaration of `program`, one in each run; returns the
/// number of mistakes that were found. Panics if one is not found, or if there is a finding without
/// a mistake.
fn plant_all(name: &str, program: impl Fn(&[Rig; 2])) -> usize {
    let uses: Arc<Mutex<Vec<usize>>> = Arc::default();
    let counted = Arc::clone(&uses);
    let rigs = Rig::simulated_pair();
    let universe = rigs[0].universe();
    universe.alter_declarations(move |uses| counted.lock().unwrap().push(uses.len()));
    program(&rigs);
    let reports = universe.reports();
    assert!(reports.is_empty(), "{name}: {}", reports[0]);
    let uses = uses.lock().unwrap().clone();
    let all = uses.iter().enumerate().flat_map(|(at, &uses)| (0..uses).map(move |used| (at, used)));
    let mut found = 0;
    for (at, used) in all {
        for mistake in MISTAKES {
            found += usize::from(is_found(name, &program, at, used, mistake));
        }
    }
    println!("{name}: {found} mistakes in {} declarations, all found", uses.len());
    found
}

/// Plants one mistake. Returns `false` if it is none there; panics if it is not found.
fn is_found(
    name: &str,
    program: impl Fn(&[Rig; 2]),
    at: usize,
    used: usize,
    mistake: Mistake,
) -> bool {
    let rigs = Rig::simulated_pair();
    let universe = rigs[0].universe();
    let seen = AtomicUsize::new(0);
    let planted = Arc::new(Mutex::new(None));
    let plant = Arc::clone(&planted);
    universe.alter_declarations(move |uses| {
        if seen.fetch_add(1, Ordering::Relaxed) == at {
            let block = uses[used].block;
            *plant.lock().unwrap() = mistake.plant(uses, used).then_some(block);
        }
    });
    program(&rigs);
    let reports = universe.reports();
    let Some(block) = *planted.lock().unwrap() else { return false };
    let is_it = |report: &dmr_sim::Report| {
        let undeclared = report.undeclared.as_ref().map(|undeclared| undeclared.block);
        [UndeclaredRead, UndeclaredWrite].contains(&report.kind) && undeclared == Some(block)
    };
    assert!(
        reports.iter().any(is_it),
        "{name}: declaration {at}, use {used}, {mistake:?} of block #{block}: {reports:?}"
    );
    assert!(reports.iter().all(is_it), "{name}: one mistake, one block: {reports:?}");
    println!("{name}: declaration {at}, use {used}, {mistake:?}: {}", reports[0]);
    true
}

fn words(gpu: &DeviceRuntime, stream: &StreamLease) -> DeviceBuffer<u32> {
    DeviceBuffer::zeroed(gpu, stream, WORDS).unwrap()
}

/// The operations of buffers, each of which declares what it does.
fn copies([rig, _]: &[Rig; 2], backend: Backend) {
    let gpu = runtime(rig, backend);
    let a = rig.stream();
    let b = rig.stream();
    let mut x = DeviceBuffer::from_host(&gpu, &a, &[1_u32; WORDS]).unwrap();
    let mut y = words(&gpu, &b);
    y.copy_from(&x, &b).unwrap();
    x.fill(3, &a).unwrap();
    assert_eq!(y.to_host(&a).unwrap(), [1; WORDS]);
    let pinned = block_on(x.to_host_async(&b)).unwrap();
    assert_eq!(pinned[..], [3; WORDS]);
    let source = PinnedBuffer::from_slice(&gpu, &a, &[5_u32; WORDS]).unwrap();
    source.copy_to_device(&mut y, &a).unwrap();
    let mut target = PinnedBuffer::<u32>::zeroed(&gpu, &a, WORDS).unwrap();
    target.copy_from_device(&y, &b).unwrap();
    // The elements move to a larger block.
    x.reserve(100 * WORDS, &b).unwrap();
    assert_eq!(x.to_host(&b).unwrap(), [3; WORDS]);
}

/// Copies of ranges, and launches with views: of a kernel, and of cudarc's copies.
fn views([rig, _]: &[Rig; 2], backend: Backend) {
    let gpu = runtime(rig, backend);
    let a = rig.stream();
    let b = rig.stream();
    let kernel = CopyWords::load(rig);
    let mut x = words(&gpu, &a);
    let mut y = words(&gpu, &b);
    x.slice_mut(8..24).unwrap().fill(7, &a).unwrap();
    y.slice_mut(..16).unwrap().copy_from(x.slice(8..24).unwrap(), &b).unwrap();
    assert_eq!(y.slice(4..12).unwrap().to_host(&a).unwrap(), [7; 8]);
    let mut launch = LaunchRecorder::new_strict(&b);
    let from = launch.read(&x.slice(8..24).unwrap());
    let to = launch.write(&mut y.slice_mut(32..48).unwrap());
    // SAFETY: both views have that many words.
    let copy = |_: &StreamGuard<'_>| unsafe {
        kernel.try_launch(&b, to.device_ptr(), from.device_ptr(), 16)
    };
    launch.launch(&gpu, copy).unwrap();
    let from = x.slice(40..80).unwrap();
    let mut to = y.slice_mut(50..90).unwrap();
    let launch = LaunchRecorder::new_strict(&a);
    let memory = (Reads(&from), Writes(&mut to));
    launch
        .launch_with(&gpu, memory, |stream, (from, mut to)| -> Result<(), DriverError> {
            stream.memcpy_dtod(&from, &mut to)
        })
        .unwrap();
}

/// Disjoint parts of one buffer on two streams.
fn parts([rig, _]: &[Rig; 2], backend: Backend) {
    let gpu = runtime(rig, backend);
    let streams = [rig.stream(), rig.stream()];
    let kernel = CopyWords::load(rig);
    let mut cache = words(&gpu, &streams[0]);
    let x = DeviceBuffer::from_host(&gpu, &streams[1], &[9_u32; 24]).unwrap();
    let mut all = cache.view_mut();
    for (mut page, stream) in all.chunks_mut(24).unwrap().zip(streams.iter().cycle()) {
        let mut launch = LaunchRecorder::new_strict(stream);
        let from = launch.read(&x);
        let to = launch.write(&mut page);
        let [to, from] = [to, from].map(|argument| argument.device_ptr());
        // SAFETY: both have that many words.
        launch.launch(&gpu, |_| unsafe { kernel.try_launch(stream, to, from, 24) }).unwrap();
    }
    let mut launch = LaunchRecorder::new_strict(&streams[0]);
    let (left, mut right) = all.split_at_mut(48).unwrap();
    let from = launch.read(&left);
    let to = launch.read_write(&mut right);
    let [to, from] = [to, from].map(|argument| argument.device_ptr());
    // SAFETY: both have that many words.
    launch.launch(&gpu, |_| unsafe { kernel.try_launch(&streams[0], to, from, 48) }).unwrap();
    assert_eq!(cache.to_host(&streams[1]).unwrap(), [9; WORDS]);
}

/// Memory that is adopted, and memory that is moved to the host and back.
fn adopted_and_spilled([rig, _]: &[Rig; 2]) {
    let streams = Arc::clone(rig.streams());
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(streams);
    let gpu = builder.spill().build().unwrap();
    let stream = rig.stream();
    let kernel = CopyWords::load(rig);
    let own = rig.device().context().new_stream().unwrap();
    let slice = own.alloc_zeros::<u32>(WORDS).unwrap();
    let mut adopted = DeviceBuffer::adopt(&gpu, &stream, slice).unwrap();
    let spill = gpu.spill().unwrap();
    let cold = spill.insert(words(&gpu, &stream)).unwrap();
    assert!(spill.free(1).unwrap() > 0);
    let warm = cold.on_device(&stream).unwrap();
    let mut launch = LaunchRecorder::new_strict(&stream);
    let from = launch.read(&*warm);
    let to = launch.write(&mut adopted);
    let [to, from] = [to, from].map(|argument| argument.device_ptr());
    // SAFETY: both have that many words.
    let copy = |_: &StreamGuard<'_>| unsafe { kernel.try_launch(&stream, to, from, WORDS as u32) };
    launch.launch(&gpu, copy).unwrap();
    stream.stream().synchronize().unwrap();
}

/// Work of one device on memory of two.
fn two_devices([rig, there]: &[Rig; 2], backend: Backend) {
    let [gpu, other] = [rig, there].map(|rig| runtime(rig, backend));
    let stream = rig.stream();
    let home = there.stream();
    let kernel = CopyWords::load(rig);
    gpu.enable_peer_access(&other).unwrap();
    let from = words(&other, &home);
    let mut to = words(&gpu, &stream);
    let mut copied = words(&gpu, &stream);
    kernel.launch_peer(&gpu, &stream, &mut to, (&other, &home), &from, WORDS as u32);
    copied.copy_from_peer(&from, &home, &stream).unwrap();
}

const TRACKING: [Backend; 3] = [Backend::Async, Backend::DirectTracked, Backend::Pool];

fn on_each_backend(name: &str, program: fn(&[Rig; 2], Backend)) {
    for backend in TRACKING {
        let found = plant_all(&format!("{name}, {backend:?}"), |rigs| program(rigs, backend));
        assert!(found >= 10, "{found}");
    }
}

#[test]
fn of_copies() {
    on_each_backend("copies", copies);
}

#[test]
fn of_views() {
    on_each_backend("views", views);
}

#[test]
fn of_parts() {
    on_each_backend("parts", parts);
}

#[test]
fn of_adopted_and_spilled_memory() {
    assert!(plant_all("adopted and spilled", adopted_and_spilled) >= 10);
}

#[test]
fn of_two_devices() {
    on_each_backend("two devices", two_devices);
}
