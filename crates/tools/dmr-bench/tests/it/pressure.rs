//! W8 keeps every stack below the limit, and says what that costs.

use std::sync::LazyLock;
use std::time::Duration;

use dmr_bench::workload::{self, Plan};
use dmr_bench::{Line, Machine, stacks};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// One run for all tests: on a GPU, one would see the other's memory.
static LINES: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let plan = Plan { scale: 0.05, budget: Duration::from_secs(2), ..Plan::default() };
    let machine = Machine::open(0).unwrap();
    let mut lines = Vec::new();
    let failed = workload::run(&machine, &plan, "w8", &mut |line| lines.push(line)).unwrap();
    let errors: Vec<_> = lines.iter().filter_map(|line| line.get("error")).collect();
    assert_eq!((failed, errors), (0, vec![]));
    lines
});

fn number(line: &Line, field: &str) -> u64 {
    line.get(field).and_then(Value::as_u64).unwrap_or_else(|| panic!("{field} in {line}"))
}

#[test]
fn no_stack_takes_more_than_the_limit_from_the_device() {
    for line in LINES.iter() {
        // A pool of NVIDIA's driver takes whole 32 MiB, and rounds its maximum size up to that.
        let limit = number(line, "limit_bytes").next_multiple_of(32 * MIB);
        assert!(number(line, "peak_reserved_bytes") <= limit, "{line}");
        // The device's used memory, as the driver reports it; some of it is the driver's own.
        let seen = number(line, "meminfo_delta_peak_bytes");
        assert!(seen <= limit + 32 * MIB, "{line}");
        // Far less than the limit would be no pressure.
        let truncated = line.get("truncated").and_then(Value::as_bool).unwrap();
        assert!(truncated || number(line, "peak_reserved_bytes") > limit / 10 * 8, "{line}");
    }
}

#[test]
fn every_stack_that_can_be_limited_has_a_line_with_the_fields_of_the_peers() {
    let found: Vec<_> = LINES.iter().map(|line| line.get("resource").unwrap().as_str()).collect();
    let limited = stacks::names().filter(|name| stacks::can_be_limited(name));
    let expected: Vec<_> = limited.map(Some).collect();
    assert_eq!(found, expected);
    for line in LINES.iter() {
        assert_eq!(line.get("workload").unwrap(), "pressure");
        let counted = number(line, "alloc_n") + number(line, "free_n");
        assert_eq!(number(line, "ops"), counted - number(line, "failed_allocs"), "{line}");
        for field in ["p50", "p99", "p999", "max", "alloc_p99", "total_ns", "trims", "trims_ns"] {
            number(line, field);
        }
        assert_eq!(number(line, "lock_step_live_bytes"), 1_017_583_657, "{line}");
        // Two trims of each thread, unless it was cut short.
        let truncated = line.get("truncated").and_then(Value::as_bool).unwrap();
        assert!(truncated || number(line, "trims") == 32, "{line}");
    }
}
