//! Captures and their replays: forks, memory of a capture, updates, graphs that share memory.

#![allow(unsafe_code, reason = "captures of kernels")]

use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_buffer::DeviceBuffer;
use dmr_core::{AllocTag, ResourceError};
use dmr_graphs::{Capture, CaptureMode, CaptureOptions, Graph, GraphPool};
use dmr_launch::{LaunchError, PrepareError};
use dmr_sanitize::Outcome;
use dmr_streams::{KernelArg, StreamLease};

use crate::stage::Stage;
use crate::{SIZES, Test};

/// Left out on the driver's pool: memcheck's order of streams does not reach the branches of a
/// graph. Their accesses are reported as before the allocation and after the free, although the
/// host waits between them.
pub(crate) const FORK: &str = "a_fork_and_memory_of_the_capture_are_in_every_replay";

pub(crate) const TESTS: &[Test] = &[
    (FORK, fork),
    ("an_updated_graph_accesses_its_new_buffers", update),
    ("two_graphs_that_share_memory_run_in_order", shared),
    ("a_buffer_that_is_freed_right_after_a_replay_is_whole_until_then", freed),
    ("a_replay_accesses_what_it_records_for_itself", recorded),
];

/// Captures work that uses what it records.
fn capture(
    stage: &Stage,
    stream: &StreamLease,
    options: impl Into<CaptureOptions>,
    work: impl FnOnce(&mut Capture<'_>) -> Outcome,
) -> Outcome<Graph> {
    // SAFETY: the work of these tests uses what it, or each replay, has recorded.
    Ok(unsafe { Graph::capture(&stage.ctx, stream, options, work) }.map_err(|e| e.to_string())?)
}

/// Captures on the stream: each byte of `to` becomes that of `from` plus `number`.
fn add(
    stage: &Stage,
    stream: &Arc<CudaStream>,
    memory: (KernelArg, KernelArg),
    bytes: usize,
    number: u8,
) -> Outcome {
    // SAFETY: both have this number of bytes, and are recorded.
    Ok(unsafe { stage.kernels.add(stream, memory, bytes, number) }?)
}

fn fork(stage: &Stage) -> Outcome {
    let [a, b, c] = [stage.rig.stream(), stage.rig.stream(), stage.rig.stream()];
    for &len in SIZES {
        let mut x = DeviceBuffer::<u8>::zeroed(&stage.ctx, &a, len)?;
        let mut y = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, len)?;
        let mut z = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, len)?;
        let graph = capture(stage, &b, CaptureMode::default(), |capture| {
            let from = capture.read(&x);
            let [y, z] = [capture.write(&mut y), capture.write(&mut z)];
            let fork = capture.fork(&c)?;
            let aside = capture.allocate_on(&fork, len)?;
            add(stage, fork.stream(), (from, aside.arg()), len, 1)?;
            add(stage, fork.stream(), (aside.arg(), y), len, 1)?;
            // The fork may use it still, so `between` is elsewhere.
            capture.free(aside);
            let between = capture.allocate(len)?;
            add(stage, capture.stream(), (from, between.arg()), len, 10)?;
            capture.join(fork)?;
            let next = capture.allocate(len)?;
            add(stage, capture.stream(), (between.arg(), next.arg()), len, 10)?;
            add(stage, capture.stream(), (next.arg(), z), len, 10)
        })?;
        for byte in 1..4 {
            x.fill(byte, &a)?;
            graph.launch(&b)?;
            assert_eq!(y.to_host(&a)?, vec![byte + 2; len]);
            assert_eq!(z.to_host(&c)?, vec![byte + 30; len]);
        }
    }
    Ok(())
}

fn update(stage: &Stage) -> Outcome {
    let [a, b] = [stage.rig.stream(), stage.rig.stream()];
    let x = DeviceBuffer::from_host(&stage.ctx, &a, &[1_u8; 1001])?;
    let mut y = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, 1001)?;
    let mut z = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, 257)?;
    let mut graph = capture(stage, &b, CaptureMode::default(), |capture| {
        let memory = (capture.read(&x), capture.write(&mut y));
        add(stage, capture.stream(), memory, 1001, 1)
    })?;
    graph.launch(&b)?;
    let work = |capture: &mut Capture<'_>| {
        let memory = (capture.read(&y), capture.write(&mut z));
        add(stage, capture.stream(), memory, 257, 5)
    };
    // SAFETY: the work uses the two buffers that it records.
    unsafe { graph.update(&b, CaptureMode::default(), work) }.map_err(|e| e.to_string())?;
    // No longer a buffer of the graph.
    drop(x);
    graph.launch(&b)?;
    assert_eq!(y.to_host(&a)?, [2; 1001]);
    assert_eq!(z.to_host(&a)?, [7; 257]);
    Ok(())
}

fn shared(stage: &Stage) -> Outcome {
    let [a, b] = [stage.rig.stream(), stage.rig.stream()];
    let pool = GraphPool::new(&stage.ctx, AllocTag::new("shapes"));
    let mut shapes = Vec::new();
    for (number, len) in [(1, 257), (2, 70_001)] {
        let x = DeviceBuffer::from_host(&stage.ctx, &a, &vec![number; len])?;
        let mut y = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, len)?;
        let options = CaptureOptions::new().with_pool(&pool);
        let graph = capture(stage, &a, options, |capture| {
            let [from, to] = [capture.read(&x), capture.write(&mut y)];
            let between = capture.allocate(len)?;
            add(stage, capture.stream(), (from, between.arg()), len, number)?;
            add(stage, capture.stream(), (between.arg(), to), len, number)
        })?;
        shapes.push((graph, x, y));
    }
    for _ in 0..3 {
        shapes[0].0.launch(&a)?;
        shapes[1].0.launch(&b)?;
    }
    assert_eq!(shapes[0].2.to_host(&b)?, [3; 257]);
    assert_eq!(shapes[1].2.to_host(&a)?, [6; 70_001]);
    Ok(())
}

fn freed(stage: &Stage) -> Outcome {
    let [a, b] = [stage.rig.stream(), stage.rig.stream()];
    for &len in SIZES {
        let x = DeviceBuffer::from_host(&stage.ctx, &a, &vec![1_u8; len])?;
        let mut y = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, len)?;
        let graph = capture(stage, &b, CaptureMode::default(), |capture| {
            let memory = (capture.read(&x), capture.write(&mut y));
            add(stage, capture.stream(), memory, len, 1)
        })?;
        stage.rig.delay(&b);
        graph.launch(&b)?;
        drop(x);
        let mut next = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, len)?;
        next.fill_bytes(9, &a)?;
        let Err(LaunchError::Prepare(PrepareError::Resource { source, .. })) = graph.launch(&b)
        else {
            return Err("a buffer of the graph is gone".into());
        };
        assert!(matches!(source, ResourceError::UseAfterFree { .. }), "{source}");
        assert_eq!(y.to_host(&a)?, vec![2; len]);
        assert_eq!(next.to_host(&b)?, vec![9; len]);
    }
    Ok(())
}

fn recorded(stage: &Stage) -> Outcome {
    let [a, b] = [stage.rig.stream(), stage.rig.stream()];
    let mut x = DeviceBuffer::<u8>::zeroed(&stage.ctx, &a, 1001)?;
    let mut y = DeviceBuffer::<u8>::uninit(&stage.ctx, &a, 1001)?;
    let graph = capture(stage, &b, CaptureMode::default(), |capture| {
        let memory = (KernelArg::of(&x), capture.write(&mut y));
        add(stage, capture.stream(), memory, 1001, 1)
    })?;
    for byte in 1..4 {
        x.fill(byte, &a)?;
        let mut replay = graph.replay(&b);
        replay.read(&x);
        replay.launch()?;
        x.fill(100, &a)?;
        assert_eq!(y.to_host(&a)?, [byte + 1; 1001]);
    }
    Ok(())
}
