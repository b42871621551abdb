//! Eager and captured steps have the same bytes, and the simulated driver finds nothing.

use std::sync::Arc;

use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};

use super::*;

fn small() -> Decode {
    let sizes = Sizes::of_simulator();
    Decode { resource: "pool-pages".to_owned(), batches: vec![1, 2, 5], tokens: 4, sizes }
}

/// A pool that announces its blocks to the simulated driver, which then compares accesses with
/// recorded uses.
fn observed(machine: &Machine) -> Context {
    let streams = machine.streams().unwrap();
    let pages = VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new()).unwrap();
    let pool = PoolResource::new(pages, Arc::clone(&streams), PoolConfig::fast()).unwrap();
    let resource: Arc<dyn dmr_core::DeviceMemoryResource> = match machine.device().memory_observer()
    {
        Some(observer) => Arc::new(pool.with_observer(observer)),
        None => Arc::new(pool),
    };
    Context { resource, streams }
}

#[test]
fn a_captured_step_has_the_bytes_of_an_eager_one_and_races_with_nothing() {
    let machine = Machine::open(0).unwrap();
    let mut lines = Vec::new();
    let different = run_on(observed(&machine), &small(), &mut |line| lines.push(line)).unwrap();
    assert_eq!(different, 0, "{lines:?}");
    assert_eq!(machine.findings(), Vec::<String>::new());
    let variants: Vec<_> = lines.iter().filter_map(|line| line.get("variant")).collect();
    assert_eq!(variants.len(), 6, "{lines:?}");
    let pools = lines.last().unwrap();
    let alone = pools.get("alone_reserved_bytes").unwrap().as_array().unwrap();
    let most = alone.iter().max_by_key(|bytes| bytes.as_u64());
    assert!(most.is_some_and(|most| most.as_u64() > Some(0)), "{pools}");
    assert_eq!(pools.get("shared_reserved_bytes"), most, "the pool is as large as the largest");
}

#[test]
fn sizes_that_the_kernels_do_not_have_are_refused() {
    let machine = Machine::open(0).unwrap();
    let plan = Decode { tokens: 17, ..small() };
    let refused = run(&machine, &plan, &mut drop).unwrap_err();
    assert!(refused.to_string().contains("do not have these sizes"), "{refused}");
}
