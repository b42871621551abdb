//! Memory from upstream: blocks are as aligned as the pool says whatever upstream aligns to, and
//! what upstream refuses keeps no other from being freed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError,
    ResourceResult, StreamId, WholeBlock,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

/// Allocates memory that is aligned to 256 bytes and to no more, and refuses the first frees.
#[derive(Debug)]
struct Awkward {
    inner: DirectCudaResource,
    refuses: AtomicUsize,
    whole: Mutex<Vec<WholeBlock>>,
    /// The sizes of all allocations, good or failed.
    requests: Mutex<Vec<usize>>,
}

impl DeviceMemoryResource for Awkward {
    fn allocate(&self, n: usize, at: StreamId, tag: AllocTag) -> ResourceResult<DeviceBlock> {
        self.requests.lock().unwrap().push(n);
        let whole = self.inner.allocate(n + 512, at, tag)?;
        let offset = if whole.ptr() % 512 == 0 { 256 } else { 0 };
        let (part, whole) = whole.narrow(offset, n).expect("it is inside and aligned");
        self.whole.lock().unwrap().push(whole);
        Ok(part)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let left = self.refuses.load(Ordering::SeqCst);
        if left > 0 {
            self.refuses.store(left - 1, Ordering::SeqCst);
            let error = ResourceError::driver("cuMemFree", 999, "CUDA_ERROR_UNKNOWN", 0);
            return Err(DeallocateError::new(error, block));
        }
        let mut wholes = self.whole.lock().unwrap();
        let is_its = |whole: &WholeBlock| whole.has_part(&block);
        let at = wholes.iter().position(is_its).expect("allocated here");
        let whole = wholes.swap_remove(at).restore(block).expect("its part");
        self.inner.deallocate(whole)
    }

    dmr_core::forward!(
        inner: is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending, trim_to,
    );
}

fn pool(rig: &Rig, refuses: usize, config: PoolConfig) -> PoolResource<Awkward> {
    let inner = DirectCudaResource::new(Arc::clone(rig.streams()));
    let upstream = Awkward {
        inner,
        refuses: refuses.into(),
        whole: Mutex::default(),
        requests: Mutex::default(),
    };
    PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap()
}

#[test]
fn blocks_are_as_aligned_as_the_pool_says_whatever_upstream_aligns_to() {
    let rig = Rig::new();
    for dedicated_from in [u64::MAX, 1 << 20] {
        let config = PoolConfig::fast().with_alignment(4096).with_dedicated_from(dedicated_from);
        let pool = pool(&rig, 0, config);
        let stream = rig.streams().default_stream();
        let blocks: Vec<_> = [1, 5000, 2 << 20, 4096, (2 << 20) + 1]
            .map(|bytes| pool.allocate(bytes, stream, AllocTag::UNTAGGED).unwrap())
            .into();
        for block in blocks {
            assert_eq!((block.ptr() % 4096, block.alignment()), (0, 4096), "{block:?}");
            pool.deallocate(block).unwrap();
        }
        pool.trim_to(0).unwrap();
        assert_eq!(pool.usage().reserved, 0);
    }
}

#[test]
fn a_segment_that_upstream_refuses_keeps_no_other_from_going_back() {
    let rig = Rig::new();
    let streams: Vec<_> = (0..3).map(|_| rig.stream()).collect();
    let pool = pool(&rig, 1, PoolConfig::fast());
    let blocks: Vec<_> = streams
        .iter()
        .map(|stream| pool.allocate(4 << 20, stream.id(), AllocTag::UNTAGGED).unwrap())
        .collect();
    let all = pool.usage().reserved;
    for block in blocks {
        pool.deallocate(block).unwrap();
    }
    assert!(pool.trim_to(0).is_err());
    assert_eq!(pool.usage().reserved, all / 3);
    pool.trim_to(0).unwrap();
    assert_eq!(pool.usage().reserved, 0);
}

/// It gets the request again when memory may have gone back to the driver meanwhile.
#[test]
fn a_size_that_upstream_refuses_is_requested_again_only_after_a_reap() {
    let rig = Rig::new();
    let stream = rig.streams().default_stream();
    let pool = pool(&rig, 0, PoolConfig::fast());
    let too_much = rig.device().memory_info().unwrap().0 as usize / 3 * 2;
    let block = pool.allocate(too_much, stream, AllocTag::UNTAGGED).unwrap();
    pool.upstream().requests.lock().unwrap().clear();
    assert!(pool.allocate(too_much, stream, AllocTag::UNTAGGED).is_err());
    let requests = pool.upstream().requests.lock().unwrap().clone();
    assert!(requests.len() <= 2, "{requests:?}");
    pool.deallocate(block).unwrap();
}
