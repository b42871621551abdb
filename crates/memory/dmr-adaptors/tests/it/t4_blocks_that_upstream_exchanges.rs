//! T4: an adaptor that returns parts takes no other block for one that its upstream has kept.
#![cfg(all(feature = "aligned", feature = "debug-guard"))]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::{Exchanging, Rig};

const BYTES: usize = 5000;
const TAG: AllocTag = AllocTag::UNTAGGED;

fn upstream(rig: &Rig) -> Exchanging<AsyncCudaResource> {
    let streams = Arc::clone(rig.streams());
    Exchanging::new(AsyncCudaResource::new(streams, AsyncConfig::new()).unwrap())
}

#[test]
fn the_aligned_resource_returns_the_other_block_whole() {
    let rig = Rig::new();
    let aligned = AlignedLayer::new(4096).unwrap().layer(upstream(&rig));
    let stream = rig.stream();
    let other = aligned.upstream().allocate(4 * BYTES, stream.id(), TAG).unwrap();
    let block = aligned.allocate(BYTES, stream.id(), TAG).unwrap();
    let passed = block.generation();
    let id = other.id();
    aligned.upstream().refuse_with(other);
    let refused = aligned.deallocate(block).unwrap_err();
    assert!(matches!(refused.error, ResourceError::WrongMemory { .. }), "{}", refused.error);
    let block = refused.block;
    assert_eq!((block.id(), block.bytes(), block.part_depth()), (id, 4 * BYTES, 0));
    assert_eq!(aligned.usage().live, BYTES as u64, "upstream has kept the block");
    let kept = aligned.upstream().take_kept();
    assert_eq!((kept.len(), kept[0].generation()), (1, passed));
    for block in kept.into_iter().chain([block]) {
        aligned.upstream().deallocate(block).unwrap();
    }
    aligned.reap_pending().unwrap();
    assert_eq!(aligned.upstream().usage().outstanding(), 0);
}

#[test]
fn the_debug_guard_reports_the_exchange_once_and_passes_the_block_to_upstream_no_more() {
    for quarantine in [0, 8] {
        let rig = Rig::new();
        let layer = DebugGuardLayer::new(Arc::clone(rig.ops()) as _);
        let guard = layer.with_quarantine(quarantine << 20, quarantine).layer(upstream(&rig));
        let stream = rig.stream();
        let other = guard.upstream().allocate(4 * BYTES, stream.id(), TAG).unwrap();
        let block = guard.allocate(BYTES, stream.id(), TAG).unwrap();
        let passed = block.generation();
        let name = format!("block {} ", other.generation());
        guard.upstream().refuse_with(other);
        guard.deallocate(block).unwrap();
        let reported = guard.reap_pending().unwrap_err();
        assert!(matches!(reported, ResourceError::WrongMemory { .. }), "{reported}");
        assert!(reported.to_string().contains(&name), "{reported}");
        guard.reap_pending().unwrap();
        assert_eq!((guard.upstream().deallocations(), guard.usage().live), (1, BYTES as u64));
        let kept = guard.upstream().take_kept();
        assert_eq!((kept.len(), kept[0].generation()), (1, passed));
        // A second `deallocate` of the whole, by its owner.
        for block in kept {
            guard.upstream().deallocate(block).unwrap();
        }
        drop(guard);
    }
}
