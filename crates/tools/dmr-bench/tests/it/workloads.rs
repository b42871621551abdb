//! Every workload runs on every stack, and says so in the peers' fields.

use std::time::Duration;

use dmr_bench::workload::{self, Plan};
use dmr_bench::{Line, Machine, stacks, table};
use serde_json::Value;

fn plan() -> Plan {
    Plan {
        threads: vec![1, 3],
        blocks: vec![100],
        max_mib: vec![1],
        budget: Duration::from_secs(2),
        scale: 0.05,
        quick: true,
        rounds: 7,
        ..Plan::default()
    }
}

fn run(plan: &Plan, name: &str) -> Vec<Line> {
    let machine = Machine::open(0).unwrap();
    let mut lines = Vec::new();
    let failed = workload::run(&machine, plan, name, &mut |line| lines.push(line)).unwrap();
    let errors: Vec<_> = lines.iter().filter_map(|line| line.get("error")).collect();
    assert_eq!((failed, errors), (0, vec![]), "{name}");
    lines
}

fn text<'a>(line: &'a Line, field: &str) -> &'a str {
    line.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn number(line: &Line, field: &str) -> f64 {
    line.get(field).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn of<'a>(lines: &'a [Line], resource: &str) -> Vec<&'a Line> {
    lines.iter().filter(|line| text(line, "resource") == resource).collect()
}

#[test]
fn sequences_run_on_every_stack_and_no_allocation_fails() {
    for name in ["w1", "w2", "w3"] {
        let lines = run(&plan(), name);
        for resource in stacks::names() {
            let lines = of(&lines, resource);
            assert!(!lines.is_empty(), "{name} on {resource}");
            for line in lines {
                assert_eq!(number(line, "failed_allocs"), 0.0, "{line}");
                assert!(number(line, "ns_per_op") > 0.0 && number(line, "p50") > 0.0, "{line}");
                assert!(number(line, "peak_reserved_bytes") > 0.0, "{line}");
                assert_eq!(text(line, "opseq_fnv").len(), 16, "{line}");
            }
        }
    }
}

#[test]
fn a_pair_of_the_drivers_own_calls_stands_beside_the_stacks() {
    let lines = run(&plan(), "w1");
    assert_eq!(of(&lines, workload::RAW).len(), 4);
}

#[test]
fn work_without_allocation_stands_beside_the_stacks_where_blocks_are_touched() {
    let lines = run(&Plan { touch: 256, ..plan() }, "w3");
    assert_eq!(of(&lines, workload::NONE).len(), 2);
}

#[test]
fn a_trace_is_replayed_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let rows = "action,ptr,bytes,stream\nallocate,1,1024,7\nallocate,2,4096,9\nfree,1,,7\n";
    std::fs::write(&path, rows).unwrap();
    for line in run(&Plan { traces: vec![path.clone()], ..plan() }, "w4") {
        assert_eq!((number(&line, "ops"), number(&line, "streams")), (3.0, 2.0), "{line}");
        assert_eq!(number(&line, "peak_live_bytes"), 5120.0, "{line}");
    }
}

#[test]
fn a_file_that_is_no_trace_leaves_a_line_that_says_so() {
    let plan = Plan { traces: vec!["no-such-trace.csv".into()], ..plan() };
    let machine = Machine::open(0).unwrap();
    let mut lines = Vec::new();
    let failed = workload::run(&machine, &plan, "w4", &mut |line| lines.push(line)).unwrap();
    assert_eq!(failed, lines.len());
    assert!(text(&lines[0], "error").contains("no-such-trace.csv"), "{}", lines[0]);
}

#[test]
fn the_bytes_of_cross_stream_work_arrive_and_each_round_has_its_ratio() {
    for name in ["w5", "w6"] {
        for line in run(&plan(), name) {
            assert_eq!(number(&line, "bad_bytes"), 0.0, "{line}");
            let ratios = line.get("ratios").map_or(7, |ratios| ratios.as_array().unwrap().len());
            assert_eq!(ratios, 7, "{line}");
        }
    }
}

#[test]
fn every_layer_is_measured_over_its_base_and_its_log_has_every_call() {
    let lines = run(&plan(), "w7");
    for name in stacks::layered() {
        let (base, layer) = stacks::parts(&name);
        let lines = of(&lines, &name);
        // W1 with four sizes and W3, with one thread and with three.
        let expected = if base == stacks::BARE { 4 * 2 + 2 } else { 4 + 2 + 2 };
        assert_eq!(lines.len(), expected, "{name}");
        for line in lines {
            assert!(number(line, "ns_per_op") > 0.0 && number(line, "p50") > 0.0, "{line}");
            assert_eq!(line.get("ns_over_base").is_some(), layer.is_some(), "{line}");
            assert!(line.get("failed_allocs").is_none_or(|failed| failed == 0), "{line}");
            let logs = matches!(layer, Some("logging" | "all"));
            assert_eq!(line.get("log_rows").is_some(), logs, "{line}");
            if logs {
                assert_eq!(number(line, "log_dropped"), 0.0, "{line}");
                assert!(number(line, "log_rows") > number(line, "ops"), "{line}");
            }
        }
    }
}

#[test]
fn a_stack_is_named_by_its_base_and_its_layer() {
    let machine = Machine::open(0).unwrap();
    let streams = machine.streams().unwrap();
    let described = |name: &str| format!("{:?}", stacks::make(name, &streams).unwrap());
    for name in stacks::layered() {
        described(&name);
    }
    let all = described("async+all");
    let order = ["Statistics(", "Logging(", "Budget(", "Async("].map(|layer| all.find(layer));
    assert!(order.is_sorted() && order[0].is_some(), "{all}");
    for unknown in ["async+", "async+all+all", "budget", "heap+budget"] {
        assert!(stacks::make(unknown, &streams).is_err(), "{unknown}");
    }
}

#[test]
fn the_table_has_a_row_for_each_size_and_a_column_for_each_stack() {
    let lines: String = run(&plan(), "w1").iter().map(|line| format!("{line}\n")).collect();
    let table = table::render(&lines);
    for name in stacks::names() {
        assert!(table.contains(&format!("dmr-{name}")), "{name}\n{table}");
    }
    assert!(table.contains("| W1 256 ") && table.contains("errors: 0"), "{table}");
}

#[test]
fn an_unknown_workload_is_refused_with_those_that_there_are() {
    let machine = Machine::open(0).unwrap();
    let error = workload::run(&machine, &plan(), "w10", &mut |_| ()).unwrap_err();
    assert_eq!(error.to_string(), "no workload w10: there are w1, w2, w3, w4, w5, w6, w7, w8, w9");
}
