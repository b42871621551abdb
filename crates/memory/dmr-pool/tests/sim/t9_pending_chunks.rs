//! T9: a trim returns memory whose work is done, however much is pending on work that is not.

use crate::support::stage::Stage;
use crate::support::{MIB, UPSTREAMS};
use dmr_core::DeviceMemoryResource;
use dmr_pool::PoolConfig;

#[test]
fn a_trim_finds_what_is_done_with_behind_many_chunks_that_are_not() {
    for upstream in UPSTREAMS {
        let config = PoolConfig::fast().with_page_size(2 * MIB).with_growth(2 * MIB);
        let stage = Stage::new(upstream, config);
        let [a, b, c] = stage.streams();
        let blocks: Vec<_> = (0..1500).map(|_| stage.allocate(a, 4096)).collect();
        for block in blocks {
            stage.write(b, &block, 1);
            stage.free(block);
        }
        let large = stage.allocate(a, 8 << 20);
        stage.write(c, &large, 1);
        stage.free(large);
        // All work of `b` is under way still.
        stage.rig.streams().synchronize(c).unwrap();
        stage.rig.streams().synchronize(a).unwrap();
        let before = stage.pool.stats();
        assert!(before.pending >= 1500 * 4096, "{}", before.pending);
        stage.pool.trim_to(0).unwrap();
        let after = stage.pool.stats();
        assert!(after.reserved + 6 * MIB <= before.reserved, "{upstream:?}: {before:?} {after:?}");
        assert!(after.pending >= 1400 * 4096, "{upstream:?}: {after:?}");
        stage.end();
    }
}
