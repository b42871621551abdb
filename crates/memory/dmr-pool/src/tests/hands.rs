//! A hand that no thread waits for wakes none when it is closed.

use dmr_core::DeviceMemoryResource;
use dmr_sim::Policy;

use super::{MIB, Stage};
use crate::PoolConfig;
use crate::tests::work::wakes;

#[test]
fn growing_and_trimming_make_no_call_to_wake_threads_where_none_waits() {
    for is_paged in [false, true] {
        let config = PoolConfig::fast().with_page_size(2 * MIB);
        let stage = Stage::new(is_paged, Policy::Eager, config);
        let [a, _] = stage.streams();
        let woken = wakes(|| {
            let block = stage.allocate(a, 4 << 20).unwrap();
            stage.free(block);
            assert!(stage.pool.trim_to(0).unwrap() > 0);
        });
        assert_eq!(woken, 0);
        stage.end(Vec::new());
    }
}
