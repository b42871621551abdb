//! G4: memory that is allocated in a capture has the same address in each replay, is used again
//! inside where the order allows it, and is no other memory's meanwhile.

use std::sync::Arc;

use dmr_core::{AllocTag, ResourceError};
use dmr_graphs::{Capture, CaptureError, CaptureOptions, Graph, GraphMemory, GraphPool};
use dmr_streams::{StreamPool, StreamPoolConfig};
use dmr_testkit::Rig;

use crate::scene::{BYTES, Context, Scene, capture, copy_bytes, fill_bytes};

const TAG: AllocTag = AllocTag::new("decode");

/// Captures, on stream `b`: `x` to memory of the graph, `steps` times to other such memory, then to
/// `y`.
fn relay(scene: &mut Scene, options: CaptureOptions, steps: usize) -> Graph {
    let Scene { ctx, b, x, y, .. } = scene;
    let work = |capture: &mut Capture<'_>| {
        capture.read(x);
        capture.write(y);
        let stream = Arc::clone(capture.stream());
        let mut from = capture.allocate(BYTES)?;
        copy_bytes(&stream, x.ptr(), from.device_ptr()).unwrap();
        for _ in 0..steps {
            let to = capture.allocate(BYTES)?;
            copy_bytes(&stream, from.device_ptr(), to.device_ptr()).unwrap();
            capture.free(std::mem::replace(&mut from, to));
        }
        copy_bytes(&stream, from.device_ptr(), y.ptr()).unwrap();
        Ok::<_, ResourceError>(())
    };
    // SAFETY: the work uses the blocks that it records, and memory of the capture.
    unsafe { Graph::capture(ctx, &*b, options, work) }.unwrap()
}

#[test]
fn intermediate_results_are_used_again_inside_and_nothing_else_has_their_memory() {
    let mut scene = Scene::new(Rig::new);
    let graph = relay(&mut scene, CaptureOptions::new(), 100);
    assert_eq!(graph.pool().reserved_bytes(), 2 << 20, "two at a time");
    assert_eq!(graph.recorded_count(), 3, "x, y, the slab");
    for pattern in 1..=4 {
        scene.fill(pattern);
        graph.launch(&scene.b).unwrap();
        // Other memory is allocated, written and freed at the same time.
        let other = scene.ctx.block(&scene.a);
        fill_bytes(scene.a.stream(), other.ptr(), 0xff).unwrap();
        scene.check(pattern);
        scene.ctx.resource.deallocate(other).unwrap();
    }
    drop(graph);
    scene.assert_clean();
}

#[test]
fn graphs_that_share_a_pool_have_the_memory_of_the_largest_and_run_one_after_the_other() {
    let mut scene = Scene::new(Rig::new);
    let pool = GraphPool::new(&scene.ctx, TAG);
    let shared = || CaptureOptions::new().with_pool(&pool);
    let small = relay(&mut scene, shared(), 1);
    let large = relay(&mut scene, shared(), 7);
    assert_eq!(pool.reserved_bytes(), 2 << 20);
    let third = scene.rig.stream();
    for pattern in 1..=4 {
        scene.fill(pattern);
        small.launch(&scene.b).unwrap();
        large.launch(&third).unwrap();
        small.launch(&scene.a).unwrap();
        scene.check(pattern);
    }
    // The pool's memory is freed with its last user, after the last replay.
    drop((pool, small));
    scene.fill(9);
    large.launch(&third).unwrap();
    drop(large);
    scene.check(9);
    drop(third);
    scene.assert_clean();
}

#[test]
fn memory_that_a_fork_may_use_is_not_used_again_before_it_is_joined() {
    let mut scene = Scene::new(Rig::new);
    let Scene { ctx, a, b, x, y, .. } = &mut scene;
    let graph = capture(ctx, b, |capture| {
        capture.read(x);
        capture.write(y);
        let main = Arc::clone(capture.stream());
        let first = capture.allocate(BYTES)?;
        fill_bytes(&main, first.device_ptr(), 3).unwrap();
        let fork = capture.fork(&*a)?;
        copy_bytes(fork.stream(), first.device_ptr(), y.ptr()).unwrap();
        let address = first.device_ptr();
        capture.free(first);
        let second = capture.allocate(BYTES)?;
        assert_ne!(second.device_ptr(), address);
        fill_bytes(&main, second.device_ptr(), 4).unwrap();
        let of_the_fork = capture.allocate_on(&fork, BYTES)?;
        assert_ne!(of_the_fork.device_ptr(), address);
        capture.join(fork)?;
        let third = capture.allocate(BYTES)?;
        assert_eq!(third.device_ptr(), address);
        fill_bytes(&main, third.device_ptr(), 5).map_err(|_| ResourceError::not_tracked(b.id()))
    });
    let graph = graph.unwrap();
    graph.launch(&scene.b).unwrap();
    scene.check(0x0303_0303);
    drop(graph);
    scene.assert_clean();
}

#[test]
fn a_capture_whose_memory_is_refused_ends_and_loses_nothing() {
    let scene = Scene::new(Rig::new);
    let refused = capture(&scene.ctx, &scene.b, |capture| {
        let _kept = capture.allocate(BYTES)?;
        assert!(matches!(capture.allocate(0), Err(ResourceError::InvalidSize { .. })));
        let _more: GraphMemory<'_> = capture.allocate(usize::MAX)?;
        Ok(())
    });
    assert!(matches!(refused, Err(CaptureError::Work(ResourceError::InvalidSize { .. }))));
    let held = scene.ctx.resource.bytes_outstanding();
    assert_eq!(held, 2 * BYTES as u64, "the slab was freed with the capture");
    scene.assert_clean();
}

/// Each has all slabs that the pool has when it begins.
#[test]
fn captures_at_the_same_time_have_the_same_memory_and_their_replays_are_ordered() {
    let mut scene = Scene::new(Rig::new);
    let pool = GraphPool::new(&scene.ctx, TAG);
    let options = || CaptureOptions::new().with_pool(&pool);
    let Scene { ctx, a, b, y, .. } = &mut scene;
    let mut inner = None;
    let work = |outer: &mut Capture<'_>| {
        outer.write(y);
        let memory = outer.allocate(BYTES)?;
        fill_bytes(outer.stream(), memory.device_ptr(), 1).unwrap();
        let work = |capture: &mut Capture<'_>| {
            let same = capture.allocate(BYTES)?;
            assert_eq!(same.device_ptr(), memory.device_ptr());
            fill_bytes(capture.stream(), same.device_ptr(), 2).unwrap();
            // A slab that the other capture does not have.
            let more = capture.allocate(4 << 20)?;
            copy_bytes(capture.stream(), same.device_ptr(), more.device_ptr()).unwrap();
            Ok::<_, ResourceError>(())
        };
        // SAFETY: the work uses memory of its capture.
        inner = Some(unsafe { Graph::capture(&*ctx, &*a, options(), work) }.unwrap());
        copy_bytes(outer.stream(), memory.device_ptr(), y.ptr()).unwrap();
        Ok::<_, ResourceError>(())
    };
    // SAFETY: the work uses the block that it records, and memory of its capture.
    let outer = unsafe { Graph::capture(&*ctx, &*b, options(), work) }.unwrap();
    let inner = inner.unwrap();
    assert_eq!(outer.recorded_count(), 2, "y, one slab");
    assert_eq!(inner.recorded_count(), 2, "both slabs");
    for _ in 0..3 {
        outer.launch(&scene.b).unwrap();
        inner.launch(&scene.a).unwrap();
    }
    scene.check(0x0101_0101);
    drop((outer, inner, pool));
    scene.assert_clean();
}

/// No launch on a stream of the graph's pool could use its memory.
#[test]
fn a_pool_of_other_streams_is_refused_before_the_capture_begins() {
    let scene = Scene::new(Rig::new);
    let others = StreamPool::new(scene.rig.device().clone(), StreamPoolConfig::default());
    let other = Context { resource: Arc::clone(&scene.ctx.resource), streams: others.unwrap() };
    let options = CaptureOptions::new().with_pool(&GraphPool::new(&other, TAG));
    let work = |_: &mut Capture<'_>| -> Result<(), ()> { panic!("it does not run") };
    // SAFETY: nothing is captured.
    let refused = unsafe { Graph::capture(&scene.ctx, &scene.b, options, work) };
    let Err(CaptureError::Begin(ResourceError::StreamMisuse { .. })) = refused else {
        panic!("{refused:?}");
    };
    drop((refused, other));
    scene.assert_clean();
}
