//! U15: threads that use disjoint parts of one buffer on streams of their own are never refused.

#![cfg(all(feature = "async", feature = "direct", feature = "pool"))]

use std::sync::Arc;

use dmr::dmr_buffer::DeviceViewMut;
use dmr::dmr_launch::{LaunchError, PrepareError};
use dmr::prelude::*;
use dmr_testkit::Rig;

const STREAMS: usize = 4;
/// Elements of each part, and of the buffer.
const PART: usize = 256;
const ALL: usize = STREAMS * PART;
/// Launches of each thread.
const LAUNCHES: u32 = 500;

fn runtime(rig: &Rig, backend: Backend) -> DeviceRuntime {
    DeviceRuntime::builder(rig.ordinal()).backend(backend).build().unwrap()
}

/// Writes a part in launches on one stream; returns the number of launches that were refused
/// because of a window.
fn write(runtime: &DeviceRuntime, lease: &StreamLease, mut part: DeviceViewMut<'_, u32>) -> u32 {
    let mut refused = 0;
    for value in 1..=LAUNCHES {
        let mut launch = LaunchRecorder::new_strict(lease);
        launch.read_write(&mut part);
        match launch.launch(runtime, |_| part.fill(value, lease)) {
            Ok(()) => {}
            Err(LaunchError::Prepare(PrepareError::Resource {
                source: ResourceError::WindowConflict { .. },
                ..
            })) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

#[test]
fn four_threads_that_write_disjoint_slices_get_no_conflict_in_2000_launches() {
    for backend in [Backend::Pool, Backend::Async, Backend::DirectTracked] {
        let rig = Rig::new();
        let runtime = runtime(&rig, backend);
        let leases = [(); STREAMS].map(|()| runtime.streams().acquire().unwrap());
        let mut buffer = DeviceBuffer::<u32>::zeroed(&runtime, &leases[0], ALL).unwrap();
        let refused: u32 = std::thread::scope(|threads| {
            let parts = buffer.chunks_mut(PART).unwrap();
            let writers = parts.zip(&leases).map(|(part, lease)| {
                let runtime = &runtime;
                threads.spawn(move || write(runtime, lease, part))
            });
            let writers: Vec<_> = writers.collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        assert_eq!(refused, 0, "{backend:?}: refused launches of {}", 4 * LAUNCHES);
        // The reader comes after all of them.
        assert_eq!(buffer.to_host(&leases[1]).unwrap(), [LAUNCHES; ALL]);
        drop((buffer, leases, runtime));
        rig.assert_clean();
    }
}

#[test]
fn parts_on_four_streams_are_read_after_they_were_written_and_freed_after_they_were_read() {
    let rig = Rig::new();
    let runtime = runtime(&rig, Backend::Pool);
    let leases = [(); STREAMS].map(|()| runtime.streams().acquire().unwrap());
    let ops = PatternOps::new(Arc::clone(runtime.streams())).unwrap();
    for round in 0..20 {
        let mut buffer = DeviceBuffer::<u32>::uninit(&runtime, &leases[0], ALL).unwrap();
        let mut copy = DeviceBuffer::<u32>::uninit(&runtime, &leases[1], ALL).unwrap();
        for (part, (nth, lease)) in buffer.chunks_mut(PART).unwrap().zip(leases.iter().enumerate())
        {
            let mut part = part;
            ops.delay(lease.id(), 100_000).unwrap();
            part.fill(round + nth as u32, lease).unwrap();
        }
        // Parts of another size, on other streams: each reads what one or two of them have written.
        let targets = copy.chunks_mut(PART + PART / 2).unwrap();
        let sources = buffer.chunks(PART + PART / 2).unwrap();
        for ((mut target, source), lease) in targets.zip(sources).zip(leases.iter().rev()) {
            target.copy_from(source, lease).unwrap();
        }
        drop(buffer);
        let found = copy.to_host(&leases[3]).unwrap();
        let expected: Vec<u32> = (0..ALL).map(|at| round + (at / PART) as u32).collect();
        assert_eq!(found, expected);
    }
    drop((ops, leases, runtime));
    rig.assert_clean();
}
