//! T10: the pool refuses a part of its block. The part grows over no neighbour, is not counted
//! twice, and does not leave the rest of its block counted for ever.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

const BYTES: usize = 4096;

type Pool = PoolResource<Box<dyn DeviceMemoryResource>>;

fn over_blocks(rig: &Rig) -> Pool {
    let upstream = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    PoolResource::new(Box::new(upstream) as _, Arc::clone(rig.streams()), PoolConfig::fast())
        .unwrap()
}

fn over_pages(rig: &Rig) -> Pool {
    let upstream =
        VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap();
    PoolResource::new(Box::new(upstream) as _, Arc::clone(rig.streams()), PoolConfig::fast())
        .unwrap()
}

/// Plays on both kinds of pool, with a block of [`BYTES`] bytes and its neighbour behind it.
fn each(play: impl Fn(&Rig, &Pool, DeviceBlock) -> DeviceBlock) {
    for make in [over_blocks, over_pages] {
        let rig = Rig::new();
        let pool = make(&rig);
        let home = pool.streams().default_stream();
        let take = || pool.allocate(BYTES, home, AllocTag::UNTAGGED).unwrap();
        let first = take();
        let second = take();
        let (block, neighbour) =
            if first.ptr() < second.ptr() { (first, second) } else { (second, first) };
        assert_eq!(block.ptr() + BYTES as u64, neighbour.ptr());
        rig.ops().fill_pattern(&neighbour, 0..BYTES, 7, home).unwrap();
        let block = play(&rig, &pool, block);
        assert_eq!((block.bytes(), block.part_depth()), (BYTES, 0));
        assert_eq!(pool.usage().live, 2 * BYTES as u64);
        rig.ops().fill_pattern(&block, 0..BYTES, 8, home).unwrap();
        rig.ops().check_pattern(&neighbour, 0..BYTES, 7, home, 1).unwrap();
        assert_eq!(rig.ops().collect().unwrap(), []);
        pool.deallocate(block).unwrap();
        pool.deallocate(neighbour).unwrap();
        pool.reap_pending().unwrap();
        assert_eq!(pool.usage().outstanding(), 0);
        drop(pool);
        rig.assert_clean();
    }
}

#[test]
fn a_part_does_not_grow_over_its_neighbour() {
    each(|_, pool, block| {
        let (mut part, whole) = block.narrow(BYTES / 2, BYTES / 2).unwrap();
        let grown = pool.try_grow(&mut part, BYTES);
        assert!(matches!(grown, Err(ResourceError::PartOfBlock { .. })), "{grown:?}");
        assert_eq!(part.bytes(), BYTES / 2);
        whole.restore(part).unwrap()
    });
}

#[test]
fn a_part_does_not_grow_and_is_not_counted_twice() {
    each(|_, pool, block| {
        let (mut part, whole) = block.narrow(0, BYTES / 2).unwrap();
        let before = pool.usage();
        let grown = pool.try_grow(&mut part, BYTES);
        assert!(matches!(grown, Err(ResourceError::PartOfBlock { .. })), "{grown:?}");
        assert_eq!(pool.usage(), before);
        whole.restore(part).unwrap()
    });
}

#[test]
fn a_part_is_not_deallocated_instead_of_its_block() {
    each(|_, pool, block| {
        let before = pool.usage();
        let (part, whole) = block.narrow(0, BYTES / 2).unwrap();
        let refused = pool.deallocate(part).unwrap_err();
        assert!(matches!(refused.error, ResourceError::PartOfBlock { .. }), "{}", refused.error);
        assert_eq!(pool.usage(), before);
        whole.restore(refused.block).unwrap()
    });
}

#[test]
fn the_whole_under_a_part_is_looked_at_and_not_freed() {
    each(|_, pool, block| {
        let id = block.id();
        let (part, whole) = block.narrow(256, 256).unwrap();
        let refused = pool.deallocate(part).unwrap_err();
        // The memory is the block's still: the next one is elsewhere.
        let next = pool.allocate(BYTES, id.alloc_stream(), AllocTag::UNTAGGED).unwrap();
        assert_eq!((whole.id(), whole.ptr(), whole.bytes()), (id, id.ptr(), BYTES));
        assert!(
            next.ptr() >= whole.ptr() + BYTES as u64 || next.ptr() + BYTES as u64 <= whole.ptr()
        );
        pool.deallocate(next).unwrap();
        whole.restore(refused.block).unwrap()
    });
}
