//! Random programs of one thread over pools. Each byte of the blocks is checked while blocks grow,
//! are refused and retired, and pages move.

use dmr_programs::generate::{Shape, program};
use dmr_programs::player::Options;
use dmr_programs::run::Runner;
use dmr_programs::shrink::shrink;
use dmr_programs::{Conflict, Stack};
use dmr_sim::Policy;

fn programs(stack: Stack, policy: Policy, numbers: std::ops::Range<u64>) {
    let mut runner = Runner::new(Options::default());
    let count = numbers.end - numbers.start;
    for number in numbers {
        let program = program(number, stack, policy, Shape::PLAIN);
        if let Err(failure) = runner.play(&program) {
            let (small, failure) = shrink(&program, &failure, &Options::default());
            panic!("{failure}\nThe smallest program that shows it:\n{small}");
        }
    }
    runner.end().unwrap_or_else(|failure| panic!("{failure}"));
    let counts = &runner.counts;
    let moved = runner.pages_moved;
    assert!(counts.allocated > 5 * count, "{counts}");
    for conflict in [Conflict::OutOfMemory, Conflict::FreeInWindow, Conflict::GrowGranted] {
        assert!(counts.of(conflict) > count / 10, "{}\n{counts}", conflict.text());
    }
    assert_eq!(moved > count / 10, stack.has_pages(), "{moved} pages moved in {count} programs");
}

macro_rules! programs {
    ($($name:ident: $stack:ident, $policy:ident, $numbers:expr;)*) => {
        $(#[test]
        fn $name() {
            programs(Stack::$stack, Policy::$policy, $numbers);
        })*
    };
}

programs! {
    are_in_order_over_direct_when_work_runs_at_once: PoolDirect, Eager, 0..3000;
    are_in_order_over_direct_when_work_runs_late: PoolDirect, Lazy, 3000..6500;
    are_in_order_over_direct_when_work_runs_at_any_time: PoolDirect, Random, 6500..10_000;
    are_in_order_over_async_when_work_runs_at_once: PoolAsync, Eager, 10_000..13_000;
    are_in_order_over_async_when_work_runs_late: PoolAsync, Lazy, 13_000..16_500;
    are_in_order_over_async_when_work_runs_at_any_time: PoolAsync, Random, 16_500..20_000;
    are_in_order_over_pages_when_work_runs_at_once: PoolPages, Eager, 20_000..21_500;
    are_in_order_over_pages_when_work_runs_late: PoolPages, Lazy, 21_500..23_000;
    are_in_order_over_pages_when_work_runs_at_any_time: PoolPages, Random, 23_000..25_000;
    are_in_order_over_pages_that_wait_first_when_work_runs_at_once: PoolCompact, Eager, 25_000..26_500;
    are_in_order_over_pages_that_wait_first_when_work_runs_late: PoolCompact, Lazy, 26_500..28_000;
    are_in_order_over_pages_that_wait_first_when_work_runs_at_any_time: PoolCompact, Random, 28_000..30_000;
}
