//! The bytes by which a block grows are fresh memory on its home stream: other streams come after
//! what its last owner did there.

use crate::support::stage::{ALL, Stage};
use crate::support::{MIB, UPSTREAMS, shadow_of};
use dmr_core::{Access, DeviceMemoryResource, UseTrackingExt};
use dmr_pool::PoolConfig;

/// The home stream works with two neighbours; the second is freed, the first grows over it and is
/// then used on another stream.
fn play(stage: &Stage) {
    let [a, b, _] = stage.streams();
    let x = stage.allocate(a, ALL / 2);
    let y = stage.allocate(a, ALL / 2);
    let (mut lower, upper) = if x.ptr() < y.ptr() { (x, y) } else { (y, x) };
    assert_eq!(lower.ptr() + ALL as u64 / 2, upper.ptr());
    stage.write(a, &lower, 1);
    // The other stream is after what was recorded so far.
    stage.read(b, &lower, 1);
    stage.fill(a, &upper, 2);
    stage.free(upper);
    let ptr = lower.ptr();
    assert!(stage.pool.try_grow(&mut lower, ALL).unwrap());
    stage.universe().region_freed(ptr);
    stage.universe().region_allocated(ptr, ALL, "block");
    stage.write(b, &lower, 3);
    stage.free(lower);
}

#[test]
fn another_stream_waits_before_it_uses_what_is_new() {
    for upstream in UPSTREAMS {
        let config = PoolConfig::fast().with_growth(2 * MIB).with_maximum_size(2 * MIB);
        let stage = Stage::new(upstream, config);
        let waits = stage.calls("cuStreamWaitEvent", || play(&stage));
        // The reader's for the writer; the growing stream's for the reader; and this one.
        assert_eq!(waits, 3, "{upstream:?}");
        stage.end();
        let stage = Stage::new(upstream, config);
        stage.universe().swallow_nth("cuStreamWaitEvent", 3);
        play(&stage);
        let reports = stage.universe().reports();
        assert!(reports.iter().any(|report| report.kind.is_race()), "{upstream:?}");
    }
}

/// The neighbour is the lender's, which still works with it: there would have to be a wait.
#[test]
fn a_borrowed_block_does_not_grow_into_what_its_stream_is_not_after() {
    for upstream in UPSTREAMS {
        let config = PoolConfig::fast().with_growth(2 * MIB).with_maximum_size(2 * MIB);
        let stage = Stage::new(upstream, config);
        let [a, b, _] = stage.streams();
        let mut halves = [stage.allocate(a, ALL / 2), stage.allocate(a, ALL / 2)];
        halves.sort_by_key(|half| half.ptr());
        let [lower, upper] = halves;
        stage.free(lower);
        let mut lent = stage.allocate(b, ALL / 2);
        assert_eq!(lent.ptr() + ALL as u64 / 2, upper.ptr());
        stage.fill(a, &upper, 1);
        stage.free(upper);
        assert!(!stage.pool.try_grow(&mut lent, ALL).unwrap(), "{upstream:?}");
        assert_eq!((lent.bytes(), stage.pool.usage().live), (ALL / 2, ALL as u64 / 2));
        // Once it is after that, it grows.
        let other = shadow_of(&lent);
        stage.write(a, &other, 2);
        stage.read(b, &other, 2);
        let ptr = lent.ptr();
        assert!(stage.pool.try_grow(&mut lent, ALL).unwrap(), "{upstream:?}");
        stage.universe().region_freed(ptr);
        stage.universe().region_allocated(ptr, ALL, "block");
        let window = stage.open(b, &lent, Access::Write);
        stage.fill(b, &lent, 3);
        stage.pool.finish_uses(window).unwrap();
        stage.free(lent);
        stage.end();
    }
}
