//! G2: a replay waits for what its memory is used for, and is waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use dmr_core::{DeviceOps, ResourceError};
use dmr_launch::{LaunchError, LaunchRecorder, PrepareError};
use dmr_testkit::{HeldStream, Rig};

use crate::scene::{BYTES, Scene, capture, copy, fill};

#[test]
fn a_replay_waits_for_writers_and_readers_wait_for_it() {
    let mut scene = Scene::new(Rig::new);
    let graph = scene.copy();
    for pattern in 1..=5 {
        scene.fill(pattern);
        graph.launch(&scene.b).unwrap();
        scene.check(pattern);
    }
    drop(graph);
    scene.assert_clean();
}

/// The captured work reads `x`, which only the replay records.
#[test]
fn a_replay_is_ordered_with_memory_that_it_records_beside_the_capture() {
    let mut scene = Scene::new(Rig::new);
    let Scene { ctx, b, x, y, .. } = &mut scene;
    let graph = capture(ctx, b, |capture| {
        capture.write(y);
        copy(capture.stream(), x, y)
    });
    let graph = graph.unwrap();
    for pattern in 1..=5 {
        scene.fill(pattern);
        let mut replay = graph.replay(&scene.b);
        replay.read(&scene.x);
        scene.rig.delay(&scene.b);
        replay.launch().unwrap();
        scene.fill(100 + pattern);
        scene.check(pattern);
    }
    assert_eq!(graph.recorded_count(), 1, "a replay records for itself only");
    let mut replay = graph.replay(&scene.b);
    replay.read(&scene.x);
    let next = scene.ctx.block(&scene.a);
    let freed = std::mem::replace(&mut scene.x, next);
    let generation = freed.generation();
    scene.ctx.resource.deallocate(freed).unwrap();
    let Err(LaunchError::Prepare(PrepareError::Resource { source, .. })) = replay.launch() else {
        panic!("the block is gone");
    };
    assert_eq!(source, ResourceError::use_after_free(generation));
    drop(graph);
    scene.assert_clean();
}

#[test]
fn memory_that_is_freed_right_after_a_replay_is_not_overwritten_before_it_is_done() {
    let mut scene = Scene::new(Rig::new);
    for pattern in 1..=5 {
        let Scene { ctx, a, b, x, y, rig, .. } = &mut scene;
        let from = ctx.block(a);
        let graph = capture(ctx, b, |capture| {
            capture.read(&from);
            capture.write(y);
            copy(capture.stream(), &from, y)
        });
        let graph = graph.unwrap();
        rig.ops().fill_pattern(&from, 0..BYTES, pattern, a.id()).unwrap();
        rig.delay(&*b);
        graph.launch(&*b).unwrap();
        ctx.resource.deallocate(from).unwrap();
        // The next block of this size is likely to have its memory.
        let mut next = ctx.block(a);
        let mut launch = LaunchRecorder::new_strict(&*a);
        launch.write(&mut next);
        launch.launch(ctx, |on| fill(on, &mut next, 0xff)).unwrap();
        ctx.resource.deallocate(next).unwrap();
        let _ = x;
        scene.check(pattern);
    }
    scene.assert_clean();
}

#[test]
fn a_replay_after_a_block_was_freed_is_refused_by_name() {
    let mut scene = Scene::new(Rig::new);
    let graph = scene.copy();
    let next = scene.ctx.block(&scene.a);
    let freed = std::mem::replace(&mut scene.x, next);
    let generation = freed.generation();
    scene.ctx.resource.deallocate(freed).unwrap();
    for _ in 0..2 {
        let Err(LaunchError::Prepare(PrepareError::Resource { source, columns, .. })) =
            graph.launch(&scene.b)
        else {
            panic!("the block is gone");
        };
        assert_eq!(source, ResourceError::use_after_free(generation));
        assert_eq!(columns[0].0.name(), "from");
    }
    drop(graph);
    scene.assert_clean();
}

#[test]
fn replays_of_one_graph_by_several_threads_are_ordered_or_refused() {
    let mut scene = Scene::new(Rig::new);
    scene.fill(9);
    let graph = scene.copy();
    let streams: Vec<_> = (0..4).map(|_| scene.rig.stream()).collect();
    let barrier = &Barrier::new(streams.len());
    let replayed = &graph;
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..50 {
                    match replayed.launch(stream) {
                        Ok(()) => {}
                        Err(LaunchError::Prepare(PrepareError::Resource { source, .. })) => {
                            let is_conflict =
                                matches!(source, ResourceError::WindowConflict { .. });
                            assert!(is_conflict, "{source}");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let graph = graph.with_timeout(std::time::Duration::from_secs(20));
    let replayed = &graph;
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(move || (0..50).for_each(|_| replayed.launch(stream).unwrap()));
        }
    });
    scene.check(9);
    drop((graph, streams));
    scene.assert_clean();
}

#[test]
fn a_graph_may_be_dropped_while_a_replay_is_in_flight() {
    let mut scene = Scene::new(Rig::new);
    let graph = scene.copy();
    scene.fill(4);
    graph.launch(&scene.b).unwrap();
    drop(graph);
    scene.check(4);
    scene.assert_clean();
}

/// Sets a flag when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_a_graph_keeps_outlives_its_last_replay() {
    let mut scene = Scene::new(Rig::new);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let Scene { ctx, b, x, y, .. } = &mut scene;
    let graph = capture(ctx, b, |capture| {
        capture.keep(Flag(Arc::clone(&is_dropped)));
        capture.read(x);
        capture.write(y);
        copy(capture.stream(), x, y)
    });
    let graph = graph.unwrap();
    let held = HeldStream::hold(scene.rig.streams(), &scene.b);
    graph.launch(&scene.b).unwrap();
    thread::scope(|scope| {
        let drops = scope.spawn(|| drop(graph));
        // Long enough for a drop that does not wait.
        thread::sleep(Duration::from_millis(50));
        assert!(!is_dropped.load(Ordering::SeqCst), "the replay has not run");
        held.release();
        drops.join().unwrap();
    });
    assert!(is_dropped.load(Ordering::SeqCst));
    drop(held);
    scene.assert_clean();
}
