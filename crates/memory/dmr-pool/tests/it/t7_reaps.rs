//! T7: a reap puts back what was retired and is done with, and returns its bytes.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockState, BlockUse, DeviceMemoryResource, ResourceResult, Usage,
    UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

type Pool = PoolResource<DirectCudaResource>;

fn pool(rig: &Rig) -> Pool {
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    PoolResource::new(upstream, Arc::clone(rig.streams()), PoolConfig::fast()).unwrap()
}

/// A launch through one pool that uses blocks of another: the other one is not called when the
/// launch is finished.
#[test]
fn a_reap_returns_the_bytes_of_blocks_whose_windows_have_closed() {
    let reaps: [fn(&Pool) -> ResourceResult<u64>; 2] = [Pool::try_reap, Pool::reap_pending];
    for reap in reaps {
        let rig = Rig::new();
        let [pool, launches] = [pool(&rig), pool(&rig)];
        let stream = rig.streams().default_stream();
        let blocks = [1000, 300].map(|n| pool.allocate(n, stream, AllocTag::UNTAGGED).unwrap());
        let uses = [0, 1].map(|nth: usize| BlockUse::new(blocks[nth].id(), Access::Write));
        let windows = launches.prepare_uses(&uses, stream).unwrap();
        for block in blocks {
            assert_eq!(pool.deallocate(block).unwrap(), BlockState::Retired);
        }
        assert_eq!(reap(&pool), Ok(0), "the windows are open");
        launches.finish_uses(windows).unwrap();
        let Usage { live, retired, .. } = pool.usage();
        assert_eq!((live, retired), (0, 1300));
        assert_eq!(reap(&pool), Ok(1300));
        assert_eq!((reap(&pool), pool.bytes_outstanding()), (Ok(0), 0));
        drop((pool, launches));
        rig.assert_clean();
    }
}
