//! S2, U6: a token counts for the stream that it was prepared on, whatever set it is put into.

use std::sync::Arc;

use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceMemoryResource, DeviceOps, ResourceError, ResourceResult,
    UseTokens,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 1 << 20;
const TAG: AllocTag = AllocTag::UNTAGGED;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn problem(outcome: ResourceResult<()>) -> Option<StreamProblem> {
    match outcome {
        Err(ResourceError::StreamMisuse { problem, .. }) => Some(problem),
        _ => None,
    }
}

/// Otherwise the stream's owner could destroy it before the launch is finished, and its use would be
/// forgotten then.
#[test]
fn a_token_of_another_stream_does_not_end_the_hold_of_a_launch_on_an_adopted_one() {
    let rig = Rig::simulated();
    let (resource, own) = (tracked(&rig), rig.stream());
    let adopted = rig.streams().adopt(rig.device().context().new_stream().unwrap()).unwrap();
    let [used, other] = [(); 2].map(|()| resource.allocate(BYTES, own.id(), TAG).unwrap());
    let prepare = |block: &dmr_core::DeviceBlock, on| {
        resource.prepare_uses(&[BlockUse::new(block.id(), Access::Write)], on).unwrap()
    };
    let (launch, strangers) = (prepare(&used, adopted.id()), prepare(&other, own.id()));
    let mut mixed = UseTokens::new(adopted.id());
    strangers.into_iter().for_each(|token| mixed.push(token));
    let cancelled = resource.cancel_uses(mixed);
    let id = used.id().generation().get();
    let retired = rig.streams().retire_stream(&adopted);
    assert_eq!(problem(retired), Some(StreamProblem::open_window(id)));
    assert_eq!(problem(cancelled), Some(StreamProblem::OtherStreamsToken));
    resource.cancel_uses(launch).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
}

#[test]
fn a_use_is_not_recorded_on_a_stream_that_it_is_not_on() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [home, user] = [(); 2].map(|()| rig.stream());
    let block = resource.allocate(BYTES, home.id(), TAG).unwrap();
    let tokens = resource.prepare_uses(&[BlockUse::new(block.id(), Access::Write)], user.id());
    rig.ops().fill_pattern(&block, 0..BYTES, 7, user.id()).unwrap();
    let mut mixed = UseTokens::new(home.id());
    tokens.unwrap().into_iter().for_each(|token| mixed.push(token));
    let finished = resource.finish_uses(mixed);
    assert_eq!(problem(finished), Some(StreamProblem::OtherStreamsToken));
    // The window stays open: the work in flight keeps its block.
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().retired, BYTES as u64);
}
