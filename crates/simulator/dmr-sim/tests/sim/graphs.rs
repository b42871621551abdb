//! Graphs, captured and made node by node: their launches, their order, and their races.
#![allow(unsafe_code)] // the driver is called directly

use std::ptr::{null, null_mut};

use crate::support::gpu::{self, Gpu, fill, kinds, machine, malloc, order, record, wait};
use crate::support::graphs::{begin, end, fill_node, graph, instantiate, run};
use cudarc::driver::sys::{self, CUresult};
use dmr_sim::{Policy, ReportKind, Universe};

use CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS};

#[test]
fn sim_captured_work_runs_at_each_launch() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let universe = Universe::builder().policy(policy).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let from = malloc(64).unwrap();
        let to = malloc(64).unwrap();
        begin(a);
        fill(from, 7, 64, a).unwrap();
        gpu::copy(to, from, 64, a).unwrap();
        let executable = instantiate(end(a).unwrap()).unwrap();
        for _ in 0..3 {
            fill(to, 0, 64, a).unwrap();
            assert_eq!(gpu::sync(a), Ok(()));
            assert_eq!(gpu::read(to, 64).unwrap(), [0; 64]);
            run(executable, a);
            assert_eq!(gpu::sync(a), Ok(()));
            assert_eq!(gpu::read(to, 64).unwrap(), [7; 64]);
        }
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn sim_a_launch_is_one_operation_of_its_stream() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    begin(a);
    fill(block, 7, 64, a).unwrap();
    let executable = instantiate(end(a).unwrap()).unwrap();
    fill(block, 1, 64, b).unwrap();
    run(executable, b);
    fill(block, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [], "the launch is on b, where it was captured has no effect");
    gpu::sync(b).unwrap();
    run(executable, b);
    fill(block, 3, 64, a).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_work_that_waits_for_the_stream_of_a_launch_comes_after_all_its_nodes() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let first = malloc(64).unwrap();
    let second = malloc(64).unwrap();
    let graph = graph();
    fill_node(graph, &[], first, 1, 64);
    fill_node(graph, &[], second, 1, 64);
    run(instantiate(graph).unwrap(), a);
    order(a, b);
    fill(first, 2, 64, b).unwrap();
    fill(second, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
    gpu::sync(b).unwrap();
    assert_eq!(gpu::read(first, 64).unwrap(), [2; 64]);
}

#[test]
fn sim_nodes_without_an_edge_between_them_race() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let racy = graph();
    fill_node(racy, &[], block, 1, 64);
    fill_node(racy, &[], block, 2, 64);
    let ordered = graph();
    let first = fill_node(ordered, &[], block, 1, 64);
    fill_node(ordered, &[first], block, 2, 64);
    run(instantiate(ordered).unwrap(), a);
    assert_eq!(kinds(&universe), []);
    run(instantiate(racy).unwrap(), a);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_a_node_waits_for_all_of_its_dependencies() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let graph = graph();
    let left = fill_node(graph, &[], block, 1, 32);
    let right = fill_node(graph, &[], block + 32, 2, 32);
    let both = fill_node(graph, &[left, right], block, 3, 64);
    let mut from = [null_mut(); 4];
    let mut to = [null_mut(); 4];
    let mut count = 4;
    // SAFETY: as above.
    let code = unsafe {
        let from = from.as_mut_ptr();
        let to = to.as_mut_ptr();
        sys::cuGraphGetEdges_v2(graph, from, to, null_mut(), &mut count)
    };
    assert_eq!((code, count), (CUDA_SUCCESS, 2));
    assert_eq!((&from[..2], &to[..2]), (&[left, right][..], &[both, both][..]));
    run(instantiate(graph).unwrap(), a);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [3; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_a_stream_that_joined_a_capture_is_ordered_by_its_events_only() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let forked = gpu::event();
    let joined = gpu::event();
    let first = malloc(64).unwrap();
    let second = malloc(64).unwrap();
    let capture = |on_b: u64| {
        begin(a);
        fill(first, 1, 64, a).unwrap();
        record(forked, a).unwrap();
        wait(b, forked).unwrap();
        fill(first, 2, 64, a).unwrap();
        fill(on_b, 3, 64, b).unwrap();
        record(joined, b).unwrap();
        wait(a, joined).unwrap();
        fill(on_b, 4, 64, a).unwrap();
        instantiate(end(a).unwrap()).unwrap()
    };
    let disjoint = capture(second);
    let racy = capture(first);
    run(disjoint, a);
    run(disjoint, a);
    assert_eq!(kinds(&universe), []);
    run(racy, a);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_a_capture_with_work_that_was_not_joined_fails() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let forked = gpu::event();
    let block = malloc(64).unwrap();
    begin(a);
    record(forked, a).unwrap();
    wait(b, forked).unwrap();
    fill(block, 3, 64, b).unwrap();
    assert_eq!(end(a), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    begin(a);
    assert!(end(a).is_ok(), "the capture has ended");
}

#[test]
fn sim_launches_of_one_executable_graph_come_after_each_other() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    let graph = graph();
    let other = malloc(64).unwrap();
    let root = fill_node(graph, &[], block, 1, 64);
    fill_node(graph, &[root], other, 2, 64);
    fill_node(graph, &[root], block, 3, 64); // which the root of the next launch comes after
    let first = instantiate(graph).unwrap();
    let second = instantiate(graph).unwrap();
    run(first, a);
    run(first, b);
    assert_eq!(kinds(&universe), []);
    run(second, a);
    assert!(!kinds(&universe).is_empty(), "another executable graph is not ordered with it");
}

#[test]
fn sim_a_graph_that_follows_a_destroyed_one_is_not_ordered_after_its_work() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    let launched_on = |stream, byte| {
        let one = graph();
        fill_node(one, &[], block, byte, 64);
        let executable = instantiate(one).unwrap();
        run(executable, stream);
        // SAFETY: as above.
        assert_eq!(unsafe { sys::cuGraphExecDestroy(executable) }, CUDA_SUCCESS);
    };
    launched_on(a, 1);
    launched_on(b, 2);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    // The host has waited for the work of both.
    gpu::sync_context().unwrap();
    launched_on(a, 3);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_flags_that_exclude_each_other_are_refused() {
    let (_universe, _gpu) = machine();
    let graph = graph();
    let mut executable = null_mut();
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    for (flags, expected) in [
        (0, CUDA_SUCCESS),
        (1 | 2 | 8, CUDA_SUCCESS),
        (16, CUDA_ERROR_INVALID_VALUE),
        (1 | 4, CUDA_ERROR_INVALID_VALUE),
        (4, unsupported),
    ] {
        // SAFETY: as above.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, flags) };
        assert_eq!(code, expected, "flags {flags}");
    }
}

#[test]
fn sim_a_cycle_is_refused() {
    let (_universe, _gpu) = machine();
    let block = malloc(64).unwrap();
    let graph = graph();
    let first = fill_node(graph, &[], block, 1, 64);
    let second = fill_node(graph, &[first], block, 2, 64);
    // SAFETY: as above.
    let code = unsafe { sys::cuGraphAddDependencies_v2(graph, &second, &first, null(), 1) };
    assert_eq!(code, CUDA_SUCCESS);
    assert_eq!(instantiate(graph), Err(CUDA_ERROR_INVALID_VALUE));
}
