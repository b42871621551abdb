//! D8: ten thousand futures at once, in a process of their own, where threads can be counted.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::sync::Arc;
use std::task::Poll;

use dmr_streams::Completed;
use dmr_testkit::{CountedWakes, HeldStream, Rig, block_on};

/// A device has 8 queues unless `CUDA_DEVICE_MAX_CONNECTIONS` says more. With more streams than
/// queues a held stream holds another one, too.
const STREAMS: usize = 8;

/// Returns the number of threads of this test and of the library. The threads of other tests have
/// names of their own, and may end at any time; a thread without a name has that of its parent.
fn threads() -> usize {
    let name = |task: &Path| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    let own = name(Path::new("/proc/thread-self"));
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| name(&task.unwrap().path()));
    names.filter(|name| *name == own || name.starts_with("dmr-")).count()
}

#[test]
fn ten_thousand_futures_at_once_take_one_thread_and_no_stream() {
    let _alone = crate::ALONE.lock();
    let rig = Rig::new();
    let streams: Vec<_> = (0..STREAMS).map(|_| rig.stream()).collect();
    let threads_at_first = threads();
    block_on(rig.streams().completed(&streams[0])).unwrap();
    let threads_before = threads();
    assert_eq!(threads_before, threads_at_first + 1);
    let streams_before = format!("{:?}", rig.streams());
    if let Some(universe) = rig.simulator() {
        universe.reset_calls();
    }
    let held: Vec<_> =
        streams.iter().map(|stream| HeldStream::hold(rig.streams(), stream)).collect();
    let wakes = Arc::new(CountedWakes::default());
    let mut waits: Vec<Option<Completed>> =
        (0..10_000).map(|at| Some(rig.streams().completed(&streams[at % STREAMS]))).collect();
    for wait in waits.iter_mut().flatten() {
        assert_eq!(wakes.poll(wait), Poll::Pending);
    }
    assert_eq!(threads(), threads_before);
    assert_eq!(format!("{:?}", rig.streams()), streams_before);
    if let Some(universe) = rig.simulator() {
        let calls = universe.calls();
        let created = calls.iter().find(|(call, _)| call.contains("StreamCreate"));
        assert_eq!(created, None);
    }
    // Half of them, of any stream and in any order, are of no interest any more.
    let mut random = 1u64;
    for wait in &mut waits {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if random >> 63 == 1 {
            *wait = None;
        }
    }
    for (at, held) in held.iter().enumerate().rev() {
        held.release();
        for wait in waits.iter_mut().skip(at).step_by(STREAMS) {
            if let Some(wait) = wait.take() {
                block_on(wait).unwrap();
            }
        }
    }
    drop((held, streams));
    rig.assert_clean();
}
