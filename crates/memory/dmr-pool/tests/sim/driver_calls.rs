//! No driver call for an allocation or a free that finds what it needs, beside the two looks
//! (which context is current, whether the stream captures); and few for those that others use.

use crate::support::stage::{ALL, Stage, tight};
use crate::support::{MIB, UPSTREAMS, rig};
use dmr_core::{Access, UseTrackingExt};
use dmr_pool::PoolConfig;
use dmr_programs::random::Random;
use dmr_sim::{CallCounts, Policy};

const LOOKS: [&str; 3] =
    ["cuCtxGetCurrent", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"];

fn but_looks(calls: &CallCounts) -> u64 {
    calls.total() - LOOKS.iter().map(|call| calls.count(call)).sum::<u64>()
}

/// The calls that are made meanwhile.
fn calls_of(stage: &Stage, act: impl FnOnce()) -> CallCounts {
    stage.universe().reset_calls();
    act();
    stage.universe().calls()
}

#[test]
fn the_same_size_again_and_again_costs_none() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, PoolConfig::fast());
        for stream in stage.streams() {
            for bytes in [1, 256, 5000, 1 << 20, 40 << 20] {
                let once = || stage.free(stage.allocate(stream, bytes));
                once();
                let calls = calls_of(&stage, || (0..100).for_each(|_| once()));
                assert_eq!(but_looks(&calls), 0, "{upstream:?}, {bytes} bytes: {calls:?}");
                assert!(calls.total() <= 200, "{calls:?}");
            }
        }
        stage.end();
    }
}

#[test]
fn random_sizes_cost_none_once_the_pool_is_warm() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, PoolConfig::fast());
        let mut rng = Random::new(1);
        let mut live = [const { Vec::new() }; 3];
        let mut round = |live: &mut [Vec<_>; 3]| {
            let streams = stage.streams();
            for _ in 0..2000 {
                let nth = rng.below(3) as usize;
                if live[nth].len() > 20 || rng.one_in(2) && !live[nth].is_empty() {
                    let at = rng.below(live[nth].len() as u64) as usize;
                    stage.free(live[nth].swap_remove(at));
                } else {
                    let most = 256 << rng.below(12);
                    let bytes = 1 + rng.below(most);
                    live[nth].push(stage.allocate(streams[nth], bytes as usize));
                }
            }
        };
        (0..3).for_each(|_| round(&mut live));
        let calls = calls_of(&stage, || round(&mut live));
        assert_eq!(but_looks(&calls), 0, "{upstream:?}: {calls:?}");
        live.into_iter().flatten().for_each(|block| stage.free(block));
        stage.end();
    }
}

/// Recording each use, and the reader's wait for the writer: nothing for the pool.
#[test]
fn blocks_that_another_stream_reads_cost_what_tracking_needs_and_a_question_now_and_then() {
    const BLOCKS: u64 = 400;
    for policy in [Policy::Eager, Policy::Random] {
        for upstream in UPSTREAMS {
            let stage = Stage::on(rig(policy, 1, 256 * MIB), upstream, PoolConfig::fast());
            let [a, b, _] = stage.streams();
            let pass = || {
                let block = stage.allocate(a, 4096);
                for (stream, access) in [(a, Access::Write), (b, Access::Read)] {
                    let tokens = stage.open(stream, &block, access);
                    stage.pool.finish_uses(tokens).unwrap();
                }
                stage.free(block);
            };
            (0..100).for_each(|_| pass());
            let calls = calls_of(&stage, || (0..BLOCKS).for_each(|_| pass()));
            assert_eq!(calls.count("cuEventRecord"), 2 * BLOCKS, "{calls:?}");
            assert_eq!(calls.count("cuStreamWaitEvent"), BLOCKS, "{calls:?}");
            // Two for every 16 blocks.
            let questions = calls.count("cuEventQuery");
            assert!(questions <= BLOCKS / 8, "{questions} questions: {calls:?}");
            let rest = but_looks(&calls) - 3 * BLOCKS - questions;
            assert_eq!(rest, calls.count("cuEventCreate"), "{calls:?}");
            assert!(rest < BLOCKS / 4, "{calls:?}");
            stage.end();
        }
    }
}

#[test]
fn a_block_that_another_stream_borrows_costs_a_record_and_a_wait() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        stage.pass(a, ALL, 1);
        stage.pass(b, ALL, 1);
        for (stream, from) in [(a, b), (b, a), (a, b)] {
            let mut held = None;
            let calls = calls_of(&stage, || held = Some(stage.allocate(stream, ALL)));
            assert_eq!(calls.count("cuEventRecord"), 1, "on {from:?}: {calls:?}");
            assert_eq!(calls.count("cuStreamWaitEvent"), 1, "{calls:?}");
            // A query whether the other is done comes before the wait.
            let more = but_looks(&calls) - 2 - calls.count("cuEventCreate");
            assert_eq!(more, calls.count("cuEventQuery"), "{calls:?}");
            assert!(more <= 1, "{calls:?}");
            stage.free(held.unwrap());
        }
        stage.end();
    }
}

#[test]
fn a_refusal_queries_the_memory_of_the_device_once() {
    let stage = Stage::new(UPSTREAMS[1], tight());
    let [a, b, _] = stage.streams();
    let all = stage.allocate(a, ALL);
    let calls = calls_of(&stage, || assert!(stage.try_allocate(b, 256).is_err()));
    assert_eq!(but_looks(&calls), calls.count("cuMemGetInfo_v2"), "{calls:?}");
    assert_eq!(but_looks(&calls), 1, "{calls:?}");
    stage.free(all);
    stage.end();
}
