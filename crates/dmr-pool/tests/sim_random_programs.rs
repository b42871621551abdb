//! Random programs on two to five streams: no race, no wrong byte, nothing lost.

mod support;

use dmr_sim::Policy;
use support::program::{Seen, play};
use support::{MIB, Upstream, rig};

const STEPS: u64 = 40;
/// Programs that share a simulated machine: it outlives their pools and streams.
const TOGETHER: u64 = 25;

fn programs(upstream: Upstream, policy: Policy, numbers: std::ops::Range<u64>) {
    let (mut seen, mut moved) = (Seen::default(), 0);
    for first in numbers.clone().step_by(TOGETHER as usize) {
        let rig = rig(policy, first, 256 * MIB);
        for number in first..numbers.end.min(first + TOGETHER) {
            seen.add(play(&rig, upstream, number, STEPS));
        }
        let calls = rig.universe().calls();
        moved += calls.count("cuMemMap").saturating_sub(calls.count("cuMemCreate"));
        rig.assert_clean();
    }
    let count = numbers.end - numbers.start;
    assert!(seen.allocated > 5 * count, "{seen:?}");
    assert!(seen.refused > count / 10 && seen.retired > count / 10, "{seen:?}");
    assert!(seen.grown > count / 10, "{seen:?}");
    // How often a page was mapped again.
    assert_eq!(moved > count / 10, upstream == Upstream::Virtual, "{moved} of {count}");
}

macro_rules! programs {
    ($($name:ident: $upstream:ident, $policy:ident, $numbers:expr;)*) => {
        $(#[test]
        fn $name() {
            programs(Upstream::$upstream, Policy::$policy, $numbers);
        })*
    };
}

programs! {
    are_in_order_over_direct_when_work_runs_at_once: Direct, Eager, 0..3000;
    are_in_order_over_direct_when_work_runs_late: Direct, Lazy, 3000..6500;
    are_in_order_over_direct_when_work_runs_at_any_time: Direct, Random, 6500..10_000;
    are_in_order_over_async_when_work_runs_at_once: Async, Eager, 10_000..13_000;
    are_in_order_over_async_when_work_runs_late: Async, Lazy, 13_000..16_500;
    are_in_order_over_async_when_work_runs_at_any_time: Async, Random, 16_500..20_000;
    are_in_order_over_pages_when_work_runs_at_once: Virtual, Eager, 20_000..23_000;
    are_in_order_over_pages_when_work_runs_late: Virtual, Lazy, 23_000..26_500;
    are_in_order_over_pages_when_work_runs_at_any_time: Virtual, Random, 26_500..30_000;
}
