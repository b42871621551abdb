//! A refused allocation on a device that is out of memory changes nothing.

use dmr_core::{DeviceOps, ResourceError};
use dmr_sanitize::Outcome;
use dmr_sanitize::stacks::Stack;
use libtest_mimic::Trial;

use crate::api_errors;
use crate::stage::Stage;

/// The driver calls that fail when a block as large as the device is requested. The async backend
/// retries after a trim. Pools are left out: one over blocks refuses without a driver call, one
/// over pages fills the device first, which takes minutes under a tool.
const FAILING: [(&str, &str, u64); 2] =
    [("direct-tracked", "cuMemAlloc_v2", 1), ("async", "cuMemAllocFromPoolAsync", 2)];

const ERROR: &str = "CUDA_ERROR_OUT_OF_MEMORY";

pub(crate) fn trials(stack: Stack) -> Vec<Trial> {
    let failing = FAILING.into_iter().filter(|(name, ..)| *name == stack.name);
    let trial = |(_, call, count)| {
        let name = "a_block_as_large_as_the_device_is_refused_and_changes_nothing";
        Trial::test(format!("{}::refusals::{name}", stack.name), move || {
            Ok(refuses(stack, call, count)?)
        })
    };
    failing.map(trial).collect()
}

fn refuses(stack: Stack, call: &'static str, count: u64) -> Outcome {
    let stage = Stage::new(stack)?;
    let stream = stage.rig.stream();
    let block = stage.allocate(1001, stream.id())?;
    stage.rig.ops().fill_pattern(&block, 0..1001, 8, stream.id())?;
    let before = stage.resource().usage();
    stage.rig.simulator().inspect(|universe| universe.reset_calls());

    let bytes = usize::try_from(stage.rig.device().total_memory())?;
    let refused = stage.resource().allocate(bytes, stream.id(), block.tag());
    assert!(matches!(refused, Err(ResourceError::OutOfMemory { .. })), "{refused:?}");
    if let Some(universe) = stage.rig.simulator() {
        assert_eq!(universe.calls().count(call), count, "{:?}", universe.calls());
    }
    api_errors::provoked(call, ERROR, count);

    let after = stage.resource().usage();
    assert_eq!((after.live, after.total_allocated), (before.live, before.total_allocated));
    // A driver's pool keeps the memory that it has reserved for the failed allocation.
    stage.resource().trim_to(0)?;
    stage.rig.ops().check_pattern(&block, 0..1001, 8, stream.id(), 0)?;
    stage.free(block)?;
    drop(stream);
    stage.finish()
}
