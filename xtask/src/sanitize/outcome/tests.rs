//! Tests of the verdict on one row.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::*;
use crate::sanitize::rows::{self, Build};

const PRINTED: &str = "dmr-sanitize: canary: memcheck ran\n\
                       dmr-sanitize: backends: direct\n\
                       dmr-sanitize: stack: Tracked(Direct(device 0))\n\
                       test result: ok. 42 passed; 0 failed; 0 ignored\n";
const CANARY: &str = include_str!("../samples/overrun.xml");
const LOG: &str = "=========     Access to 0x7fc33ca003e8 is out of bounds\n\
                   =========     and is 1 bytes after the nearest allocation at 0x1\n";
const KERNEL: &str = "<record><kind>LaunchInfo</kind><what><kernel>k</kernel></what></record>";

fn ended(code: i32) -> End {
    End::Exited(ExitStatus::from_raw(code << 8))
}

/// The canary's record, one kernel, and what is given.
fn xml(given: &str) -> String {
    let canary = CANARY.replace("write_at", "dmr_canary_write");
    canary
        .replace("</ComputeSanitizerOutput>", &format!("{KERNEL}{given}</ComputeSanitizerOutput>"))
}

/// The records of a sample.
fn records(sample: &str) -> String {
    let from = sample.find("<record>").unwrap();
    sample[from..].replace("</ComputeSanitizerOutput>", "")
}

/// Judges with a log that ends as the tool ends it, with the number of records.
fn judge(row: &Row, evidence: Evidence<'_>) -> Outcome {
    let records = evidence.xml.unwrap_or_default().matches("<record>").count();
    let log = format!("{}\n========= ERROR SUMMARY: {records} errors\n", evidence.log);
    super::judge(row, Evidence { log: &log, ..evidence })
}

fn tests_row() -> Row {
    rows::tests().remove(0)
}

fn judge_with(printed: &str, xml: &str) -> Outcome {
    let evidence = Evidence { end: ended(0), printed, log: LOG, xml: Some(xml) };
    judge(&tests_row(), evidence)
}

/// Judges a row that is red for one reason, which is returned.
fn problem(printed: &str, xml: &str) -> String {
    let outcome = judge_with(printed, xml);
    assert_eq!(outcome.problems.len(), 1, "{outcome:?}");
    outcome.problems[0].clone()
}

#[test]
fn a_row_with_canary_tests_and_kernels_and_without_findings_is_clean() {
    let outcome = judge_with(PRINTED, &xml(""));
    assert!(outcome.is_clean(), "{outcome:?}");
    assert_eq!((outcome.tests, outcome.kernels), (42, 1));
    assert_eq!(outcome.canary.as_deref(), Some("overrun"));
}

#[test]
fn any_finding_is_red() {
    for sample in [
        include_str!("../samples/leak.xml"),
        include_str!("../samples/use-after-free.xml"),
        include_str!("../samples/use-before-alloc.xml"),
        include_str!("../samples/api-errors.xml"),
        "<record><kind>New</kind></record>",
    ] {
        let problem = problem(PRINTED, &xml(&records(sample)));
        assert!(problem.contains("findings: "), "{problem}");
    }
}

#[test]
fn a_canary_that_is_not_reported_is_red() {
    let without = format!("<ComputeSanitizerOutput>{KERNEL}</ComputeSanitizerOutput>");
    assert_eq!(problem(PRINTED, &without), "the tool did not report the canary");
    let printed = PRINTED.replace("memcheck ran", "initcheck ran");
    assert_eq!(problem(&printed, &xml("")), "the canary did not run");
}

#[test]
fn a_canary_of_another_class_is_red() {
    let evidence = Evidence { end: ended(0), printed: PRINTED, log: "", xml: Some(&xml("")) };
    let problems = judge(&tests_row(), evidence).problems;
    assert_eq!(problems, ["the canary was reported as not-allocated, expected overrun"]);
}

#[test]
fn a_log_that_does_not_end_or_counts_other_records_than_the_results_is_red() {
    let xml = xml("");
    let problems = |log: &str| {
        let log = format!("{LOG}{log}");
        let evidence = Evidence { end: ended(0), printed: PRINTED, log: &log, xml: Some(&xml) };
        super::judge(&tests_row(), evidence).problems
    };
    assert_eq!(problems("========= ERROR SUMMARY: 3 errors\n"), [""; 0]);
    assert_eq!(
        problems("========= ERROR SUMMARY: 1 error\n========= ERROR SUMMARY: 2 errors\n"),
        [""; 0]
    );
    let races = "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 0 warnings)\n";
    assert_eq!(problems(races), [""; 0]);
    assert_eq!(problems(""), ["the tool's log has no summary"]);
    for count in [0, 2, 4] {
        let found = problems(&format!("========= ERROR SUMMARY: {count} errors\n"));
        let expected = format!("the tool's log counts {count} records, its results have 3");
        assert_eq!(found, [expected]);
    }
}

#[test]
fn skipped_tests_are_red() {
    for skipped in
        ["1 ignored; 0 measured; 0 filtered out", "0 ignored; 0 measured; 41 filtered out"]
    {
        let printed = PRINTED.replace("0 ignored", skipped);
        assert_eq!(problem(&printed, &xml("")), "tests were skipped");
    }
}

#[test]
fn other_backends_than_those_of_the_row_are_red() {
    for (backends, expected) in [("direct pool", "has backends"), ("", "has backends")] {
        let printed = PRINTED.replace("backends: direct", &format!("backends: {backends}"));
        assert!(problem(&printed, &xml("")).contains(expected));
    }
    let printed = PRINTED.replace("backends", "other");
    assert_eq!(problem(&printed, &xml("")), "the program did not report its backends");
}

#[test]
fn api_errors_are_expected_by_call_error_and_count() {
    let two = CUT_TO_OUT_OF_MEMORY;
    let expecting = |count: u64| {
        format!(
            "{PRINTED}dmr-sanitize: expect api-error cuMemAlloc CUDA_ERROR_OUT_OF_MEMORY {count}\n"
        )
    };
    let outcome = judge_with(&expecting(2), &xml(two));
    assert!(outcome.is_clean() && outcome.findings.is_empty(), "{outcome:?}");
    let twice = format!("{}{}", expecting(1), &expecting(1)[PRINTED.len()..]);
    assert!(judge_with(&twice, &xml(two)).is_clean());
    assert_eq!(
        problem(&expecting(3), &xml(two)),
        "the tool reported too few cuMemAlloc CUDA_ERROR_OUT_OF_MEMORY: 1 missing"
    );
    assert_eq!(problem(&expecting(1), &xml(two)), "1 findings: api-error");
    let other = expecting(2).replace("OUT_OF_MEMORY", "INVALID_VALUE");
    assert_eq!(judge_with(&other, &xml(two)).problems.len(), 2);
    let garbled = expecting(2).replace("MEMORY 2", "MEMORY two");
    assert!(judge_with(&garbled, &xml(two)).problems[0].contains("cannot parse"));
}

const CUT_TO_OUT_OF_MEMORY: &str = "\
    <record><kind>Api</kind><what><api>cuMemAlloc_v2</api>\
    <error>CUDA_ERROR_OUT_OF_MEMORY</error></what></record>\
    <record><kind>Api</kind><what><api>cuMemAlloc_v2</api>\
    <error>CUDA_ERROR_OUT_OF_MEMORY</error></what></record>";

#[test]
fn tools_that_report_no_api_errors_are_not_asked_for_them() {
    let row = rows::tests().remove(1);
    assert_eq!(row.tool, Tool::Initcheck);
    let printed = PRINTED.replace("memcheck", "initcheck")
        + "dmr-sanitize: expect api-error cuMemAlloc CUDA_ERROR_OUT_OF_MEMORY 3\n";
    let sample =
        include_str!("../samples/uninitialized.xml").replace("copy_out", "dmr_canary_read");
    let xml = sample.replace("<record>", &format!("{KERNEL}<record>"));
    let evidence = Evidence { end: ended(0), printed: &printed, log: "", xml: Some(&xml) };
    let outcome = judge(&row, evidence);
    assert!(outcome.is_clean(), "{outcome:?}");
}

#[test]
fn no_tests_a_failed_test_or_no_result_line_is_red() {
    let none = PRINTED.replace("42", "0");
    assert_eq!(problem(&none, &xml("")), "ran no test");
    for result in ["test result: FAILED. 41 passed; 1 failed", ""] {
        let printed = PRINTED.replace("test result: ok. 42 passed; 0 failed", result);
        assert_eq!(problem(&printed, &xml("")), "expected exactly one line `test result: ok`");
    }
    let failed_later = format!("{PRINTED}test result: FAILED. 0 passed; 1 failed\n");
    assert_eq!(problem(&failed_later, &xml("")), "expected exactly one line `test result: ok`");
}

#[test]
fn no_checked_kernel_is_red() {
    let xml = xml("").replace(KERNEL, "");
    assert_eq!(problem(PRINTED, &xml), "the tool checked no kernel");
}

#[test]
fn missing_and_truncated_results_are_red() {
    let xml = xml("");
    let problems = |xml| {
        judge(&tests_row(), Evidence { end: ended(0), printed: PRINTED, log: LOG, xml }).problems
    };
    assert_eq!(problems(None), ["the tool wrote no results"]);
    let cut = problems(Some(&xml[..xml.len() - 30]));
    assert!(cut[0].contains("incomplete"), "{cut:?}");
}

#[test]
fn a_crash_a_timeout_and_an_error_of_the_tool_are_red() {
    let xml = xml("");
    let problems = |end, log| {
        let evidence = Evidence { end, printed: PRINTED, log, xml: Some(&xml) };
        judge(&tests_row(), evidence).problems
    };
    assert!(problems(ended(101), LOG)[0].contains("exit status: 101"));
    assert!(problems(End::TimedOut, LOG)[0].contains("was killed"));
    let error = "Error: No attachable process found. compute-sanitizer timed-out.";
    let log = format!("{LOG}========= {error}\n");
    assert_eq!(problems(ended(0), &log), [format!("the tool reports: {error}")]);
    let log = format!("{LOG}========= Error: Race reported between Write access at k\n");
    assert_eq!(problems(ended(0), &log), [""; 0]);
}

fn control(class: &str, sample: &str, log: &str) -> Vec<String> {
    control_at("0x7fc33ca003e8", class, sample, log)
}

fn control_at(address: &str, class: &str, sample: &str, log: &str) -> Vec<String> {
    let sample = &records::tests::moved(sample, "0x7fc33ca003e8");
    let printed = format!("dmr-sanitize: backends: direct\ndmr-sanitize: address: {address}\n");
    let list = format!("it\tmemcheck\tdirect\t{class}");
    let row = rows::controls(Build::Direct, &list).unwrap().remove(0);
    let evidence = Evidence { end: ended(0), printed: &printed, log, xml: Some(sample) };
    judge(&row, evidence).problems
}

#[test]
fn an_overrun_of_a_block_that_the_tool_has_forgotten_is_known_by_its_address() {
    assert_eq!(control("overrun", CANARY, ""), [""; 0]);
    let problems = control_at("0x10", "overrun", CANARY, "");
    assert_eq!(problems[0], "reported as not-allocated, expected overrun");
}

#[test]
fn a_control_that_is_reported_at_another_address_is_red() {
    let problems = control_at("0x10", "overrun", CANARY, LOG);
    assert_eq!(problems, ["reported at 0x7fc33ca003e8, the fault is at 0x10"]);
    assert_eq!(
        control_at("0x10", "double-free", include_str!("../samples/double-free.xml"), LOG),
        [""; 0],
        "the tool says no address"
    );
}

#[test]
fn a_control_that_is_reported_with_its_class_is_as_expected() {
    for (class, sample) in [
        ("overrun", CANARY),
        ("leak", include_str!("../samples/leak.xml")),
        ("double-free", include_str!("../samples/double-free.xml")),
        ("use-after-free", include_str!("../samples/use-after-free.xml")),
    ] {
        assert_eq!(control(class, sample, LOG), [""; 0], "{class}");
    }
    assert_eq!(control("use-after-free", CANARY, ""), [""; 0]);
}

#[test]
fn a_control_that_comes_out_clean_is_red() {
    let problems = control("leak", "<ComputeSanitizerOutput/>", LOG);
    assert_eq!(problems, ["the tool did not report the planted fault"]);
}

#[test]
fn a_control_that_is_reported_with_another_class_is_red() {
    let problems = control("underrun", CANARY, LOG);
    assert_eq!(problems, ["reported as overrun, expected underrun or not-allocated"]);
    let both = CANARY.replace(
        "</ComputeSanitizerOutput>",
        &format!("{}</ComputeSanitizerOutput>", records(include_str!("../samples/leak.xml"))),
    );
    assert_eq!(control("leak", &both, LOG), ["reported as leak, overrun, expected leak"]);
}
