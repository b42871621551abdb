//! T4: the pool takes no memory from upstream that it has not asked for, in no call, and loses
//! none.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pinned::{PinnedKind, PinnedResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::{Exchanging, Rig};

const MIB: usize = 1 << 20;
const TAG: AllocTag = AllocTag::UNTAGGED;

type Pool = PoolResource<Exchanging<DirectCudaResource>>;

fn pool(rig: &Rig) -> Pool {
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let config = PoolConfig::fast().with_page_size(0);
    PoolResource::new(Exchanging::new(direct), Arc::clone(rig.streams()), config).unwrap()
}

/// A block that the pool has not asked for.
fn other(rig: &Rig, pool: &Pool, bytes: usize, stream: StreamId, is_pinned: bool) -> DeviceBlock {
    let pinned = PinnedResource::new(Arc::clone(rig.streams()), PinnedKind::Cached);
    match is_pinned {
        true => pinned.allocate(bytes, stream, TAG).unwrap(),
        false => pool.upstream().upstream().allocate(bytes, stream, TAG).unwrap(),
    }
}

/// D5: of host memory, too, which is ordered by the use slot of the whole block only.
#[test]
fn another_block_in_the_refusal_of_a_segment_is_no_segment() {
    for is_pinned in [false, true] {
        for bytes in [MIB, 64 * MIB] {
            let rig = Rig::new();
            let pool = pool(&rig);
            let lease = rig.stream();
            let stream = lease.id();
            let block = pool.allocate(4 * MIB, stream, TAG).unwrap();
            pool.deallocate(block).unwrap();
            let other = other(&rig, &pool, bytes, stream, is_pinned);
            let name = format!("block {} ", other.generation());
            let start = other.ptr();
            let end = other.ptr() + bytes as u64;
            pool.upstream().refuse_with(other);
            let refused = pool.trim_to(0).unwrap_err();
            assert!(matches!(refused, ResourceError::WrongMemory { .. }), "{refused}");
            assert!(refused.to_string().contains(&name), "{refused}");
            assert_eq!(pool.stats().reserved, 0, "the segment is upstream's");
            assert_eq!(pool.upstream().take_kept().len(), 1);
            let block = pool.allocate(MIB - 4096, stream, TAG).unwrap();
            assert!(!(start..end).contains(&block.ptr()), "{bytes} bytes, pinned: {is_pinned}");
            pool.deallocate(block).unwrap();
        }
    }
}

/// The pool asks again, as for any error of the first growth.
#[test]
fn a_segment_of_another_size_or_home_stream_goes_back_to_upstream() {
    let rig = Rig::new();
    let [home, away] = [rig.stream(), rig.stream()];
    for (bytes, stream) in [(MIB, &home), (1000 * MIB, &home), (64 * MIB, &away)] {
        let pool = pool(&rig);
        let other = other(&rig, &pool, bytes, stream.id(), false);
        let name = other.generation();
        pool.upstream().allocate_instead(other);
        let block = pool.allocate(4 * MIB, home.id(), TAG).unwrap();
        assert_eq!(pool.upstream().deallocations(), 1, "{name}");
        assert_eq!(pool.stats().reserved, pool.upstream().usage().live);
        pool.deallocate(block).unwrap();
        pool.trim_to(0).unwrap();
        assert_eq!((pool.stats().reserved, pool.upstream().usage().live), (0, 0));
    }
}
