//! G2, G4: without any one of the records and waits that captures and replays make, a race.

#![allow(clippy::print_stdout, reason = "what each scenario needs is worth reading")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::DriverError;
use dmr_core::{AllocTag, ResourceError};
use dmr_graphs::{CaptureOptions, Graph, GraphPool};
use dmr_launch::LaunchRecorder;
use dmr_pool::PoolConfig;
use dmr_sim::{Policy, Universe};
use dmr_testkit::Rig;

use crate::scene::{BYTES, Scene, capture, copy_bytes, fill, fill_bytes};

/// The calls that order work.
const ORDERING: [&str; 2] = ["cuEventRecord", "cuStreamWaitEvent"];

/// The pool has two: one for the blocks, one for the slab.
const PAGE: u64 = 2 << 20;

struct Scenario {
    name: &'static str,
    play: fn(&mut Scene),
    /// The number of these calls, at least, that order work before something that conflicts.
    needed: [u64; 2],
}

fn write(scene: &mut Scene) {
    let mut launch = LaunchRecorder::new_strict(&scene.a);
    launch.write(&mut scene.x);
    launch.launch(&scene.ctx, |on| fill(on, &mut scene.x, 1)).unwrap();
}

/// Captures, on stream `b`, a fill of memory of the pool and a copy of it to `y`.
fn relay(scene: &mut Scene, pool: &GraphPool, byte: u8) -> Graph {
    let Scene { ctx, b, y, .. } = scene;
    let options = CaptureOptions::new().with_pool(pool);
    // SAFETY: the work uses the block that it records, and memory of the capture.
    let graph = unsafe {
        Graph::capture(ctx, &*b, options, |capture| {
            capture.write(y);
            let between = capture.allocate(BYTES)?;
            fill_bytes(capture.stream(), between.device_ptr(), byte).unwrap();
            copy_bytes(capture.stream(), between.device_ptr(), y.ptr()).unwrap();
            Ok::<_, ResourceError>(())
        })
    };
    graph.unwrap()
}

/// Captures a fill of memory of the pool on stream `b`: nothing but the pool orders it.
fn scratch(scene: &Scene, pool: &GraphPool) -> Graph {
    let options = CaptureOptions::new().with_pool(pool);
    // SAFETY: the work uses memory of the capture.
    let graph = unsafe {
        Graph::capture(&scene.ctx, &scene.b, options, |capture| {
            let memory = capture.allocate(BYTES)?;
            fill_bytes(capture.stream(), memory.device_ptr(), 1).unwrap();
            Ok::<_, ResourceError>(())
        })
    };
    graph.unwrap()
}

/// Allocates all memory that there is, and writes it on stream `a`.
fn write_all(scene: &Scene, bytes: usize) {
    let allocate = || scene.ctx.resource.allocate(bytes, scene.a.id(), AllocTag::new("next"));
    let mut blocks: Vec<_> = std::iter::from_fn(|| allocate().ok()).collect();
    for block in &mut blocks {
        let mut launch = LaunchRecorder::new_strict(&scene.a);
        launch.write(block);
        launch.launch(&scene.ctx, |on| fill(on, block, 1)).unwrap();
    }
    for block in blocks {
        scene.ctx.resource.deallocate(block).unwrap();
    }
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a replay after a write on another stream",
        play: |scene| {
            let graph = scene.copy();
            write(scene);
            graph.launch(&scene.b).unwrap();
        },
        needed: [1, 1],
    },
    Scenario {
        name: "a write after a replay on another stream",
        play: |scene| {
            let graph = scene.copy();
            graph.launch(&scene.b).unwrap();
            write(scene);
        },
        needed: [1, 1],
    },
    Scenario {
        name: "memory that is freed after a replay and has another use",
        play: |scene| {
            let graph = scene.copy();
            graph.launch(&scene.b).unwrap();
            let mut new = scene.ctx.block(&scene.a);
            std::mem::swap(&mut scene.x, &mut new);
            scene.ctx.resource.deallocate(new).unwrap();
            write_all(scene, BYTES);
        },
        needed: [1, 1],
    },
    Scenario {
        name: "two graphs of one pool on two streams",
        play: |scene| {
            let pool = GraphPool::new(&scene.ctx, AllocTag::new("shared"));
            let graphs = [scratch(scene, &pool), scratch(scene, &pool)];
            graphs[0].launch(&scene.b).unwrap();
            graphs[1].launch(&scene.a).unwrap();
            graphs[0].launch(&scene.b).unwrap();
        },
        needed: [2, 2],
    },
    Scenario {
        name: "a fork and a join",
        play: |scene| {
            let Scene { ctx, a, b, x, y, .. } = scene;
            let graph = capture(ctx, b, |capture| {
                capture.read_write(x);
                capture.write(y);
                fill(capture.stream(), x, 1)?;
                let fork = capture.fork(&*a).unwrap();
                copy_bytes(fork.stream(), x.ptr(), y.ptr())?;
                capture.join(fork).unwrap();
                fill(capture.stream(), x, 2)?;
                Ok::<_, DriverError>(())
            });
            graph.unwrap().launch(&scene.b).unwrap();
        },
        needed: [2, 2],
    },
    Scenario {
        name: "slabs that are freed after the last replay",
        play: |scene| {
            let pool = GraphPool::new(&scene.ctx, AllocTag::new("short"));
            let graph = relay(scene, &pool, 1);
            graph.launch(&scene.b).unwrap();
            drop((graph, pool));
            write_all(scene, BYTES);
        },
        needed: [1, 1],
    },
];

struct Played {
    calls: [u64; 2],
    is_red: bool,
}

/// Plays a scenario with one call swallowed, or none.
fn play(scenario: &Scenario, swallow: Option<(&str, u64)>) -> Played {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let config = PoolConfig::default().with_page_size(PAGE).with_maximum_size(2 * PAGE);
    let mut scene = Scene::with(|| Rig::in_universe(&universe), config);
    universe.reset_calls();
    if let Some((call, nth)) = swallow {
        universe.swallow_nth(call, nth);
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| (scenario.play)(&mut scene)));
    let calls = universe.calls();
    universe.clear_faults();
    scene.rig.device().synchronize().unwrap();
    let raced = universe.reports().iter().any(|report| report.kind.is_race());
    Played {
        calls: ORDERING.map(|call| calls.count(call)),
        // A capture that lacks an edge to a fork is refused.
        is_red: raced || outcome.is_err(),
    }
}

#[test]
fn without_a_record_or_a_wait_that_is_needed_there_is_a_race() {
    for scenario in SCENARIOS {
        let name = scenario.name;
        let Played { calls, is_red } = play(scenario, None);
        assert!(!is_red, "{name}");
        for ((call, count), needed) in ORDERING.into_iter().zip(calls).zip(scenario.needed) {
            let red = (1..=count).filter(|&nth| play(scenario, Some((call, nth))).is_red);
            let red: Vec<_> = red.collect();
            println!("{name}: {count} of {call}, red without {red:?}");
            assert!(red.len() as u64 >= needed, "{name}: {call}: {red:?} of {count}");
        }
    }
}
