//! Compares the simulator's reports on a run with the oracle's findings, and its bytes with the
//! model's.

use std::collections::BTreeSet;

use dmr_sim::{Policy, Report, ReportKind};

use super::model;
use super::oracle::{self, Finding, Judgement, Kind};
use super::program::{Outcome, Program};
use super::run::{self, Footprints, Run, step_of};

/// The result of a comparison that agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreed {
    Clean,
    Racy,
}

/// Runs a program twice and compares; the error describes a difference.
pub(crate) fn agree(program: &Program, policy: Policy, seed: u64) -> Result<Agreed, String> {
    let first = run::run(program, policy, seed);
    let agreed = compare(program, &first)?;
    let second = run::run(program, policy, seed);
    same_run(&first, &second)?;
    Ok(agreed)
}

/// Runs a program with declared footprints, then with some or all of them recorded when the kernels
/// run, and compares. The error describes a difference.
pub(crate) fn agree_late(program: &Program, policy: Policy, seed: u64) -> Result<Agreed, String> {
    let declared = run::run(program, policy, seed);
    let mut agreed = Agreed::Clean;
    for footprints in [Footprints::Recorded, Footprints::Mixed(seed)] {
        let recorded = run::run_with(program, policy, seed, footprints, |_| ());
        let differs = |why| format!("{footprints:?}: {why}");
        agreed = compare(program, &recorded).map_err(differs)?;
        let expected = verdict(&declared.reports);
        let verdict = verdict(&recorded.reports);
        if verdict != expected {
            let why = format!("reported {verdict:?}, and {expected:?} with declarations");
            return Err(differs(why));
        }
    }
    Ok(agreed)
}

/// Returns the steps that were found and their kinds, in the order of the reports. A step counts
/// once for each kind: ranges that touch are one range in a recorded footprint.
pub(crate) fn verdict(reports: &[Report]) -> Vec<(Option<usize>, BTreeSet<String>)> {
    let mut found: Vec<(Option<usize>, BTreeSet<String>)> = Vec::new();
    for report in reports {
        if found.last().is_none_or(|(step, _)| *step != second(report)) {
            found.push((second(report), BTreeSet::new()));
        }
        if let Some((_, kinds)) = found.last_mut() {
            kinds.insert(format!("{:?}", report.kind));
        }
    }
    found
}

/// Compares one run of a program with the oracle and the model.
pub(crate) fn compare(program: &Program, run: &Run) -> Result<Agreed, String> {
    let judgement = oracle::judge(program, &run.outcomes);
    if let Some(bad) = judgement.bad_addresses.first() {
        return Err(format!("the driver gave out memory in use: {bad}"));
    }
    reports_agree(&judgement, &run.reports)?;
    leaks_agree(&judgement, run)?;
    if judgement.findings.is_empty() {
        // The model has one free for each buffer.
        if !judgement.frees_another {
            computes_the_model(program, run)?;
        }
        Ok(Agreed::Clean)
    } else {
        Ok(Agreed::Racy)
    }
}

fn reports_agree(judgement: &Judgement, reports: &[Report]) -> Result<(), String> {
    let findings = &judgement.findings;
    let (report, finding) = match (reports.first(), findings.first()) {
        (None, None) => return Ok(()),
        (None, Some(finding)) => return Err(format!("the simulator misses {finding:?}")),
        (Some(report), None) => {
            return Err(format!("the simulator reports a clean program:\n{report}"));
        }
        (Some(report), Some(finding)) => (report, finding),
    };
    if second(report) != Some(finding.step) {
        return Err(format!("the first finding is {finding:?}, the first report\n{report}"));
    }
    for report in reports {
        if !findings.iter().any(|finding| covers(finding, report)) {
            return Err(format!("the oracle does not know of\n{report}"));
        }
    }
    Ok(())
}

/// Returns whether a report is this finding: the same step, kind, and other operation, if it names
/// one.
fn covers(finding: &Finding, report: &Report) -> bool {
    let first = report.first.as_ref().map(|site| step_of(site.label.as_deref()));
    second(report) == Some(finding.step)
        && kind(report.kind) == Some(finding.kind)
        && (first.is_none() || first == Some(finding.first))
}

fn second(report: &Report) -> Option<usize> {
    step_of(report.second.label.as_deref())
}

fn kind(kind: ReportKind) -> Option<Kind> {
    Some(match kind {
        ReportKind::ReadAfterWrite => Kind::ReadAfterWrite,
        ReportKind::WriteAfterRead => Kind::WriteAfterRead,
        ReportKind::WriteAfterWrite => Kind::WriteAfterWrite,
        ReportKind::UseBeforeAllocation => Kind::UseBeforeAllocation,
        ReportKind::FreeBeforeUse => Kind::FreeBeforeUse,
        ReportKind::UseAfterFree => Kind::UseAfterFree,
        ReportKind::DoubleFree => Kind::DoubleFree,
        ReportKind::UnknownFree => Kind::UnknownFree,
        ReportKind::Uninitialised => Kind::Uninitialised,
        ReportKind::OutOfBounds => Kind::OutOfBounds,
        _ => return None,
    })
}

fn leaks_agree(judgement: &Judgement, run: &Run) -> Result<(), String> {
    let mut reported: Vec<usize> = run.leaks.iter().copied().flatten().collect();
    reported.sort_unstable();
    if reported == judgement.leaked {
        return Ok(());
    }
    let leaked = &judgement.leaked;
    Err(format!("leaked by steps {leaked:?}, reported {:?}", run.leaks))
}

/// Checks that a program without a finding computes the same bytes as in submission order.
fn computes_the_model(program: &Program, run: &Run) -> Result<(), String> {
    if let Some(step) = run.outcomes.iter().position(|o| o.error.is_some()) {
        let error = run.outcomes[step].error;
        return Err(format!("step {step} of a clean program failed: {error:?}"));
    }
    let model = model::run(program);
    for (step, expected) in model.downloads.iter().enumerate() {
        let Some(expected) = expected else { continue };
        let got = run.outcomes[step].bytes.as_deref();
        if !same_bytes(expected, got) {
            return Err(format!("step {step} brought {got:?}, not {expected:?}"));
        }
    }
    for (buf, expected) in model.buffers.iter().enumerate() {
        let Some(expected) = expected else { continue };
        let got = run.buffers[buf].as_deref();
        if !same_bytes(expected, got) {
            return Err(format!("b{buf} ends as {got:?}, not {expected:?}"));
        }
    }
    Ok(())
}

fn same_bytes(expected: &[Option<u8>], got: Option<&[u8]>) -> bool {
    got.is_some_and(|got| {
        got.len() == expected.len()
            && expected
                .iter()
                .zip(got)
                .all(|(expected, got)| expected.is_none_or(|expected| expected == *got))
    })
}

fn same_run(first: &Run, second: &Run) -> Result<(), String> {
    let reports = |run: &Run| -> Vec<String> { run.reports.iter().map(place_free).collect() };
    if reports(first) != reports(second) {
        return Err("the same seed reported something else the second time".to_owned());
    }
    let outcomes = |run: &Run| -> Vec<(bool, Option<Vec<u8>>, Option<i32>)> {
        let of = |o: &Outcome| (o.ready, o.bytes.clone(), o.error);
        run.outcomes.iter().map(of).collect()
    };
    if outcomes(first) != outcomes(second) || first.buffers != second.buffers {
        return Err("the same seed computed something else the second time".to_owned());
    }
    Ok(())
}

/// Returns a report without its address, which differs between universes.
fn place_free(report: &Report) -> String {
    format!("{:?} {:?} {:?} {}", report.kind, report.first, report.second, report.bytes)
}
