//! A recorded training run on mapped pages: what is reserved stays within a few percent of what is
//! live, and once the pool is warm hardly a page moves.

#![allow(clippy::print_stdout, reason = "how much is moved is worth reading")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use dmr_core::record::RecordAction;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_sim::{CallCounts, Policy, Universe};
use dmr_testkit::{Rig, RigConfig, repository};
use dmr_trace::TraceReader;

/// One allocation or free: the row of the allocation, its bytes, or none for a free, and the
/// stream.
type Step = (usize, Option<usize>, usize);

fn steps(path: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut live = HashMap::new();
    let mut streams = HashMap::new();
    for row in TraceReader::open(path).unwrap() {
        let record = row.unwrap().record;
        let next = streams.len();
        let stream = *streams.entry(record.stream).or_insert(next);
        let at = steps.len();
        match record.action {
            RecordAction::Allocate => {
                live.insert(record.ptr, at);
                steps.push((at, Some(record.bytes as usize), stream));
            }
            _ => steps.push((live.remove(&record.ptr).unwrap(), None, stream)),
        }
    }
    steps
}

/// Bytes: most that was live, most that was reserved. And the driver's calls of each round.
fn replay(path: &Path, rounds: usize, config: PoolConfig) -> (u64, u64, Vec<CallCounts>) {
    let steps = steps(path);
    let streams = 1 + steps.iter().map(|(.., stream)| *stream).max().unwrap();
    let builder = Universe::builder().devices(1).policy(Policy::Eager).capacity(140 << 30);
    let rig =
        Rig::with(RigConfig { universe: Some(builder.build().unwrap()), ..Default::default() });
    let upstream =
        VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap();
    let pool = PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap();
    let leases: Vec<_> = (0..streams).map(|_| rig.stream()).collect();
    let mut peak = 0;
    let mut calls = Vec::new();
    for _ in 0..rounds {
        rig.universe().reset_calls();
        let mut live = 0;
        let mut blocks = HashMap::new();
        for &(at, bytes, stream) in &steps {
            if let Some(bytes) = bytes {
                let block = pool.allocate(bytes, leases[stream].id(), AllocTag::UNTAGGED).unwrap();
                live += bytes as u64;
                blocks.insert(at, block);
            } else {
                let block = blocks.remove(&at).unwrap();
                live -= block.bytes() as u64;
                pool.deallocate(block).unwrap();
            }
            peak = peak.max(live);
        }
        for block in blocks.into_values() {
            pool.deallocate(block).unwrap();
        }
        calls.push(rig.universe().calls());
    }
    let reserved = pool.reserved_high();
    assert_eq!(pool.usage().outstanding(), 0);
    (peak, reserved, calls)
}

#[test]
fn a_training_run_takes_hardly_more_than_it_has_live() {
    let path = repository::trace("gpt_train.csv.gz");
    let (peak, reserved, calls) = replay(&path, 3, PoolConfig::compact());
    println!("reserved {} MiB, live {} MiB", reserved >> 20, peak >> 20);
    assert!(reserved * 100 <= peak * 103, "{reserved} of {peak}");
    // 50 microseconds each, for 21,039 operations.
    let moved = calls[2].count("cuMemMap");
    assert!(moved <= 150, "{moved} pages were mapped by a warm pool");
}
