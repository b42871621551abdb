//! Whether a row is clean, from what the program printed and what the tool reported.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::process::End;
use super::records::{self, ApiError, Finding, Report};
use super::rows::{Row, Subject, Tool};

/// How the lines that programs print for the runner start.
const LINE: &str = "dmr-sanitize: ";

/// What one process under the tool left behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    pub(super) end: End,
    /// What the program printed.
    pub(super) printed: &'a str,
    /// What the tool wrote for a reader.
    pub(super) log: &'a str,
    /// The tool's results.
    pub(super) xml: Option<&'a str>,
}

/// What came of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Tests that passed.
    pub(super) tests: u64,
    /// Launches that the tool checked.
    pub(super) kernels: u64,
    /// What the tool found, without the canary and without expected API errors.
    pub(super) findings: Vec<Finding>,
    /// When the program started.
    pub(super) date: Option<String>,
    /// Why the row is red; empty if it is clean.
    pub(super) problems: Vec<String>,
}

impl Outcome {
    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// The classes of the findings, each once.
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

/// Judges a row. A row without results, or with less than all of them, is red.
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
        outcome.problem(format!("the tool says: {line}"));
    }
    let report = match evidence.xml.map(|xml| Report::parse(xml, evidence.log)) {
        Some(Ok(report)) => report,
        Some(Err(error)) => {
            outcome.problem(format!("the tool's results are incomplete or not understood: {error}"));
            return outcome;
        }
        None => {
            outcome.problem("the tool wrote no results");
            return outcome;
        }
    };
    check_backends(row, evidence.printed, &mut outcome);
    outcome.kernels = report.kernels;
    outcome.date.clone_from(&report.date);
    match &row.subject {
        Subject::Tests => judge_tests(row.tool, report, evidence.printed, &mut outcome),
        Subject::Control { class, .. } => judge_control(class, report, &mut outcome),
    }
    outcome
}

/// An error of the tool itself. It reports races with the same word.
fn tool_error(line: &str) -> Option<&str> {
    let error = line.strip_prefix("========= ")?;
    let is_error = error.starts_with("Error: ") || error.starts_with("Internal Sanitizer Error");
    (is_error && !error.contains("Race reported") && !error.contains("hazard")).then_some(error)
}

fn check_backends(row: &Row, printed: &str, outcome: &mut Outcome) {
    let expected = row.build.backends();
    match said(printed, "backends: ").next() {
        Some(backends) if backends == expected => {}
        Some(other) => {
            outcome.problem(format!("the program has backends {other:?}, expected {expected:?}"));
        }
        None => outcome.problem("the program did not report its backends"),
    }
}

fn judge_tests(tool: Tool, report: Report, printed: &str, outcome: &mut Outcome) {
    let canary = tool.canary();
    if !said(printed, "canary: ").any(|it| it.strip_suffix(" ran") == Some(tool.name())) {
        outcome.problem("the canary did not run");
    } else if report.canary.is_empty() {
        outcome.problem("the tool did not report the canary");
    } else if report.canary.iter().any(|class| class != canary) {
        let classes = report.canary.join(", ");
        outcome.problem(format!("the canary was reported as {classes}, expected {canary}"));
    }
    match passed(printed) {
        None => outcome.problem("no line `test result: ok`"),
        Some(0) => outcome.problem("ran no test"),
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
    outcome.findings = take_expected(report.findings, expected, outcome);
    if !outcome.findings.is_empty() {
        let classes = outcome.classes().join(", ");
        outcome.problem(format!("{} findings: {classes}", outcome.findings.len()));
    }
}

fn judge_control(planted: &str, report: Report, outcome: &mut Outcome) {
    outcome.findings = report.findings;
    let accepted = records::accepted(planted);
    let classes = outcome.classes();
    let problem = if classes.is_empty() {
        Some("the tool did not report the planted fault".to_owned())
    } else if classes.iter().any(|class| !accepted.contains(class)) {
        let expected = accepted.join(" or ");
        Some(format!("reported as {}, expected {expected}", classes.join(", ")))
    } else {
        None
    };
    outcome.problems.extend(problem);
}

/// The number in `test result: ok. N passed; 0 failed`; `None` without such a line.
fn passed(printed: &str) -> Option<u64> {
    let mut results = printed.lines().filter_map(|line| line.strip_prefix("test result: "));
    let result = results.next()?.strip_prefix("ok. ")?;
    result.split(' ').next()?.parse().ok()
}

/// What follows `dmr-sanitize: WHAT` in each such line.
fn said<'a>(printed: &'a str, what: &'a str) -> impl Iterator<Item = &'a str> {
    printed.lines().filter_map(move |line| line.strip_prefix(LINE)?.strip_prefix(what))
}

/// Errors that the program provoked on purpose, by call and error, with their number.
fn expected_api_errors(printed: &str, outcome: &mut Outcome) -> BTreeMap<ApiError, u64> {
    let mut expected = BTreeMap::new();
    for line in said(printed, "expect api-error ") {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [call, error, count] = fields[..]
            && let Ok(count) = count.parse::<u64>()
        {
            *expected.entry(ApiError::new(call, error)).or_default() += count;
        } else {
            outcome.problem(format!("not understood: expect api-error {line}"));
        }
    }
    expected
}

/// Removes the expected API errors from the findings. One that is missing is a problem; one more
/// than expected stays a finding.
fn take_expected(
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
        outcome.problem(format!("{missing} expected {call} {error} not reported"));
    }
    unexpected
}
