//! Judges a row by the output of the program and the report of the tool.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::process::End;
use super::records::{self, ApiError, Finding, Report};
use super::rows::{Row, Subject, Tool};

/// The prefix of the lines that programs print for the runner.
const LINE: &str = "dmr-sanitize: ";

/// The output of one process under the tool, and its exit status.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    pub(super) end: End,
    /// The program's output.
    pub(super) printed: &'a str,
    /// The tool's text.
    pub(super) log: &'a str,
    /// The tool's results; `None` if it wrote none.
    pub(super) xml: Option<&'a str>,
}

/// The result of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Tests that passed.
    pub(super) tests: u64,
    /// Launches that the tool checked.
    pub(super) kernels: u64,
    /// The tool's findings, without the canary and without expected API errors.
    pub(super) findings: Vec<Finding>,
    /// The class of the canary, if the tool reported it.
    pub(super) canary: Option<String>,
    /// The reasons why the row is red; empty if it is clean.
    pub(super) problems: Vec<String>,
}

impl Outcome {
    /// Returns whether the row has no problems.
    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns the classes of the findings, sorted and without duplicates.
    pub(super) fn classes(&self) -> Vec<&str> {
        let mut classes: Vec<_> = self.findings.iter().map(|it| it.class.as_str()).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }
}

/// Judges a row. It is red if the tool wrote no results, or incomplete ones.
pub(super) fn judge(row: &Row, evidence: Evidence<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    match evidence.end {
        End::TimedOut => {
            outcome.problem("did not end within the time limit and was killed");
            return outcome;
        }
        End::Exited(status) if !status.success() => {
            outcome.problem(format!("the tool or the program ended with {status}"));
        }
        End::Exited(_) => {}
    }
    for line in evidence.log.lines().filter_map(tool_error) {
        outcome.problem(format!("the tool reports: {line}"));
    }
    let report = match evidence.xml.map(|xml| Report::parse(xml, evidence.log)) {
        Some(Ok(report)) => report,
        Some(Err(error)) => {
            outcome
                .problem(format!("the tool's results are incomplete or cannot be parsed: {error}"));
            return outcome;
        }
        None => {
            outcome.problem("the tool wrote no results");
            return outcome;
        }
    };
    check_summary(evidence.log, report.records, &mut outcome);
    check_backends(row, evidence.printed, &mut outcome);
    outcome.kernels = report.kernels;
    match &row.subject {
        Subject::Tests => judge_tests(row.tool, report, evidence.printed, &mut outcome),
        Subject::Control { class, .. } => {
            judge_control(class, report, evidence.printed, &mut outcome);
        }
    }
    outcome
}

/// Returns the error if the line is one of the tool itself. The tool prints races as errors, too;
/// they are not returned.
fn tool_error(line: &str) -> Option<&str> {
    let error = line.strip_prefix("========= ")?;
    let is_error = error.starts_with("Error: ") || error.starts_with("Internal Sanitizer Error");
    (is_error && !error.contains("Race reported") && !error.contains("hazard")).then_some(error)
}

/// Compares the number of records in the results with the one in the log. The tool ends its log
/// with that number, which includes launches; if the two differ, one of the files is incomplete.
fn check_summary(log: &str, records: u64, outcome: &mut Outcome) {
    let counts = log.lines().filter_map(|line| {
        let (_, count) = line.strip_prefix("========= ")?.split_once(" SUMMARY: ")?;
        let (count, what) = count.split_once(' ')?;
        let is_total = what.starts_with("error") || what.starts_with("hazard");
        is_total.then(|| count.replace(',', "").parse::<u64>().ok()).flatten()
    });
    match counts.reduce(u64::saturating_add) {
        None => outcome.problem("the tool's log has no summary"),
        Some(count) if count != records => outcome
            .problem(format!("the tool's log counts {count} records, its results have {records}")),
        Some(_) => {}
    }
}

fn check_backends(row: &Row, printed: &str, outcome: &mut Outcome) {
    let expected = row.build.backends();
    match lines_with_prefix(printed, "backends: ").next() {
        Some(backends) if backends == expected => {}
        Some(other) => {
            outcome.problem(format!("the program has backends {other:?}, expected {expected:?}"));
        }
        None => outcome.problem("the program did not report its backends"),
    }
}

fn judge_tests(tool: Tool, report: Report, printed: &str, outcome: &mut Outcome) {
    let canary = tool.canary();
    if !lines_with_prefix(printed, "canary: ")
        .any(|it| it.strip_suffix(" ran") == Some(tool.name()))
    {
        outcome.problem("the canary did not run");
    } else if report.canary.is_empty() {
        outcome.problem("the tool did not report the canary");
    } else if report.canary.iter().any(|class| class != canary) {
        let classes = report.canary.join(", ");
        outcome.problem(format!("the canary was reported as {classes}, expected {canary}"));
    }
    outcome.canary = report.canary.into_iter().next();
    match passed_tests(printed) {
        None => outcome.problem("expected exactly one line `test result: ok`"),
        Some(0) => outcome.problem("ran no test"),
        Some(_) if has_skipped_tests(printed) => outcome.problem("tests were skipped"),
        Some(tests) => outcome.tests = tests,
    }
    if report.kernels == 0 {
        outcome.problem("the tool checked no kernel");
    }
    // The other tools do not report errors of driver calls.
    let expected = match tool {
        Tool::Memcheck => expected_api_errors(printed, outcome),
        _ => BTreeMap::new(),
    };
    outcome.findings = remove_expected(report.findings, expected, outcome);
    if !outcome.findings.is_empty() {
        let classes = outcome.classes().join(", ");
        outcome.problem(format!("{} findings: {classes}", outcome.findings.len()));
    }
}

/// Judges a control: the tool must report the fault by its class, at the address that the program
/// printed, and nothing else.
fn judge_control(planted: &str, report: Report, printed: &str, outcome: &mut Outcome) {
    outcome.findings = report.findings;
    let address = lines_with_prefix(printed, "address: ").next();
    let mut addresses = outcome.findings.iter().map(|it| it.address.as_deref());
    let is_located = address.is_some() && addresses.clone().all(|it| it == address);
    let elsewhere = addresses.find(|it| it.is_some() && *it != address).flatten();

    let accepted = records::accepted(planted, is_located);
    let classes = outcome.classes();
    let mut problems = Vec::new();
    if classes.is_empty() {
        problems.push("the tool did not report the planted fault".to_owned());
    } else if classes.iter().any(|class| !accepted.contains(class)) {
        let expected = accepted.join(" or ");
        problems.push(format!("reported as {}, expected {expected}", classes.join(", ")));
    }
    if let (Some(address), Some(elsewhere)) = (address, elsewhere) {
        problems.push(format!("reported at {elsewhere}, the fault is at {address}"));
    }
    outcome.problems.extend(problems);
}

/// Returns how many tests passed; `None` unless there is exactly one result, and it is `ok`.
fn passed_tests(printed: &str) -> Option<u64> {
    let mut results = printed.lines().filter_map(|line| line.strip_prefix("test result: "));
    let (result, None) = (results.next()?, results.next()) else { return None };
    result.strip_prefix("ok. ")?.split(' ').next()?.parse().ok()
}

/// Returns whether the result line counts tests that did not run.
fn has_skipped_tests(printed: &str) -> bool {
    let result = printed.lines().find_map(|line| line.strip_prefix("test result: "));
    let mut counts = result.into_iter().flat_map(|result| result.split("; "));
    counts.any(|it| {
        it.split_once(' ')
            .is_some_and(|(count, what)| matches!(what, "ignored" | "filtered out") && count != "0")
    })
}

/// Returns the rest of each line that begins with `dmr-sanitize: ` and `prefix`.
fn lines_with_prefix<'a>(printed: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    printed.lines().filter_map(move |line| line.strip_prefix(LINE)?.strip_prefix(prefix))
}

/// Returns the number of errors that the program provoked on purpose, by call and error.
fn expected_api_errors(printed: &str, outcome: &mut Outcome) -> BTreeMap<ApiError, u64> {
    let mut expected = BTreeMap::new();
    for line in lines_with_prefix(printed, "expect api-error ") {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [call, error, count] = fields[..]
            && let Ok(count) = count.parse::<u64>()
        {
            *expected.entry(ApiError::new(call, error)).or_default() += count;
        } else {
            outcome.problem(format!("cannot parse: expect api-error {line}"));
        }
    }
    expected
}

/// Removes the expected API errors from the findings. An expected error that is missing is a
/// problem; one more than expected stays a finding.
fn remove_expected(
    findings: Vec<Finding>,
    mut expected: BTreeMap<ApiError, u64>,
    outcome: &mut Outcome,
) -> Vec<Finding> {
    let mut is_unexpected = |finding: &Finding| {
        let left = finding.api_error.as_ref().and_then(|it| expected.get_mut(it));
        match left {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        }
    };
    let unexpected = findings.into_iter().filter(|it| is_unexpected(it)).collect();
    for (ApiError { call, error }, missing) in expected.into_iter().filter(|it| it.1 > 0) {
        outcome.problem(format!("the tool reported too few {call} {error}: {missing} missing"));
    }
    unexpected
}

#[cfg(all(test, unix))]
mod tests;
