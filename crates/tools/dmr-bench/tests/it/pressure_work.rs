//! W9 keeps every stack below the limit, whether the blocks fit or not, and says what it did.

use std::sync::LazyLock;
use std::time::Duration;

use dmr_bench::workload::{self, Plan};
use dmr_bench::{Line, Machine, stacks};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 128 * MIB;
const THREADS: u64 = 3;

/// The first share fits beside what is lost to pages and fragments, the second one never does.
const PERCENTS: [u64; 2] = [40, 130];

/// One run for all tests: on a GPU, one would see the other's memory.
static LINES: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let plan = Plan {
        scale: 0.02,
        budget: Duration::from_secs(10),
        pressure_threads: vec![THREADS as usize],
        percents: PERCENTS.to_vec(),
        limit: LIMIT,
        ..Plan::default()
    };
    let machine = Machine::open(0).unwrap();
    let mut lines = Vec::new();
    let failed = workload::run(&machine, &plan, "w9", &mut |line| lines.push(line)).unwrap();
    let errors: Vec<_> = lines.iter().filter_map(|line| line.get("error")).collect();
    assert_eq!((failed, errors), (0, vec![]));
    lines
});

fn number(line: &Line, field: &str) -> u64 {
    line.get(field).and_then(Value::as_u64).unwrap_or_else(|| panic!("{field} in {line}"))
}

fn percent(line: &Line) -> u64 {
    line.get("params").and_then(|params| params.get("percent")?.as_u64()).unwrap()
}

#[test]
fn every_stack_that_can_be_limited_has_a_line_for_each_share_of_the_limit() {
    let found: Vec<_> = LINES
        .iter()
        .map(|line| (percent(line), line.get("resource").and_then(Value::as_str).unwrap()))
        .collect();
    let limited: Vec<_> = stacks::names().filter(|name| stacks::can_be_limited(name)).collect();
    let of_share = |percent| limited.iter().map(move |name| (percent, *name));
    assert_eq!(found, PERCENTS.into_iter().flat_map(of_share).collect::<Vec<_>>());
}

#[test]
fn no_stack_takes_more_than_the_limit_from_the_device_and_all_of_it_is_returned() {
    for line in LINES.iter() {
        assert_eq!(number(line, "end_reserved_bytes"), 0, "{line}");
        assert!(number(line, "peak_reserved_bytes") <= LIMIT, "{line}");
        assert!(number(line, "peak_live_bytes") <= LIMIT, "{line}");
        // The device's used memory, as the driver reports it; some of it is the driver's own.
        assert!(number(line, "meminfo_delta_peak_bytes") <= LIMIT + 32 * MIB, "{line}");
    }
}

#[test]
fn each_step_is_counted_once_and_each_allocation_is_timed() {
    for line in LINES.iter() {
        let counted = |fields: &[&str]| fields.iter().map(|field| number(line, field)).sum::<u64>();
        assert_eq!(number(line, "ops"), counted(&["allocs", "frees", "reads", "passes"]), "{line}");
        // A refused allocation frees a block, if there is one.
        let truncated = line.get("truncated").and_then(Value::as_bool).unwrap();
        let steps = THREADS * 2_000;
        assert!(truncated || (steps - THREADS..=steps).contains(&number(line, "ops")), "{line}");
        assert_eq!(number(line, "allocs"), number(line, "alloc_n"), "{line}");
        for field in ["alloc_p50", "alloc_p99", "alloc_p999", "alloc_max", "total_ns"] {
            number(line, field);
        }
    }
}

#[test]
fn refusals_are_counted_and_timed_where_the_blocks_do_not_fit() {
    for line in LINES.iter() {
        let refused = number(line, "failed_allocs");
        assert!(refused > 0 || percent(line) < 100, "{line}");
        if refused > 0 {
            assert_eq!(number(line, "refused_n"), refused, "{line}");
            assert!(number(line, "refused_p50") <= number(line, "refused_max"), "{line}");
        }
    }
}
