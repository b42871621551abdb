//! A program in which the simulator finds no race shows no wrong byte on a GPU, and each class of
//! race shows some. Without a GPU the bytes are those of the simulated device.
//!
//! `DMR_DIFFERENTIAL_STEPS` is the number of steps: at least 11,000, so that every omission
//! occurs on every stack.

#![allow(clippy::print_stdout, reason = "children print verdicts for their parent; the table")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use dmr_programs::Failure;
use dmr_programs::differential::{Delays, Differential, Observation, Stage, Tally, Verdict, draw};
use dmr_sim::{Driver, Policy};

/// The numbers of the programs that a child judges.
const JUDGE: &str = "DMR_DIFFERENTIAL_JUDGE";
/// The variable with the number of steps.
const STEPS: &str = "DMR_DIFFERENTIAL_STEPS";
/// The number of failures that end a run.
const FAILURES: u32 = 10;
/// The number of steps without the variable: each omission twice on each stack.
const DEFAULT_STEPS: usize = 20_000;

/// Judges a range of programs on the simulator, and prints a line for each.
#[test]
#[ignore = "run by the test below, in processes of its own"]
fn judge() {
    let range = std::env::var(JUDGE).unwrap();
    let (from, to) = range.split_once(' ').unwrap();
    let mut stage = Stage::simulated(Policy::Random);
    for number in from.parse().unwrap()..to.parse().unwrap() {
        let played = stage.play(&draw(number, Delays::Drawn));
        let played = played.unwrap_or_else(|failure| panic!("program {number}: {failure}"));
        println!("{}", Verdict::new(number, &played));
    }
}

#[test]
fn what_the_simulator_calls_clean_shows_no_wrong_byte_and_each_class_of_race_shows_some() {
    let started = Instant::now();
    let programs = programs(steps());
    let judges = judges(programs.len() as u64);
    // Without a GPU: devices that execute work late, each in its way; for the control one that does
    // not.
    let (under_test, control) = match dmr_sim::select().unwrap() {
        Driver::Cuda => (vec![(Stage::gpu(), "GPU")], Stage::gpu()),
        Driver::Simulated(_) => {
            let lazy = (Stage::simulated(Policy::Lazy), "simulated device, lazy");
            let random = (Stage::simulated(Policy::Random), "simulated device, random");
            (vec![lazy, random], Stage::simulated(Policy::Eager))
        }
    };
    let on = |(stage, name)| (name, play(stage, &programs));
    let played: Vec<_> = under_test.into_iter().map(on).collect();
    let seconds = started.elapsed().as_secs_f64();
    let omits = programs.iter().filter(|it| it.omits().is_some());
    let prompt: Vec<_> = omits.map(|it| draw(it.number, Delays::None)).collect();
    let control = play(control, &prompt);
    let verdicts = verdicts(judges);

    let mut faults = Vec::new();
    let mut not_shown: Vec<BTreeSet<String>> = Vec::new();
    let mut most_shown = 0;
    for (name, played) in &played {
        let tally = compare(played, &verdicts);
        println!("\n{name}: {tally}");
        faults.extend(tally.faults.iter().map(|fault| format!("{name}: {fault}")));
        not_shown.push(tally.not_shown());
        most_shown = most_shown.max(tally.racy_in_all().wrong);
    }
    let without = compare(&control, &verdicts);
    faults.extend(without.faults.iter().map(|fault| format!("without delays: {fault}")));
    println!("without delays {} racy programs show a wrong byte", without.racy_in_all());
    let all = started.elapsed().as_secs_f64();
    println!("{seconds:.1} s, and {all:.1} s with the control and the judges");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), first(&faults));
    let never = not_shown.into_iter().reduce(|a, b| &a & &b).unwrap_or_default();
    assert!(never.is_empty(), "these races never show a wrong byte: {never:?}");
    assert!(without.racy_in_all().wrong < most_shown, "the delays make no race visible");
}

/// Plays the programs, until too many have failed.
fn play(
    mut stage: Stage,
    programs: &[Differential],
) -> Vec<(&Differential, Result<Observation, Failure>)> {
    let mut failed = 0;
    let all = programs.iter().map_while(|it| {
        let played = (failed < FAILURES).then(|| stage.play(it));
        failed += u32::from(matches!(played, Some(Err(_))));
        Some((it, played?))
    });
    all.collect()
}

fn compare(
    played: &[(&Differential, Result<Observation, Failure>)],
    verdicts: &BTreeMap<u64, Verdict>,
) -> Tally {
    let mut tally = Tally::default();
    for (it, played) in played {
        match played {
            Ok(played) => tally.add(it, &verdicts[&it.number], played),
            Err(failure) => tally.failed(it, failure),
        }
    }
    tally
}

fn first(faults: &[String]) -> String {
    faults.iter().take(20).map(|fault| format!("{fault}\n")).collect()
}

fn steps() -> usize {
    std::env::var(STEPS).map_or(DEFAULT_STEPS, |steps| steps.parse().unwrap())
}

/// Returns the numbers of the first programs, which have at least this number of steps.
fn programs(steps: usize) -> Vec<Differential> {
    let mut left = steps;
    let mut programs = Vec::new();
    while left > 0 {
        let it = draw(programs.len() as u64, Delays::Drawn);
        left = left.saturating_sub(it.steps());
        programs.push(it);
    }
    programs
}

/// Starts this program again, on the simulator, once for each part of the programs.
fn judges(programs: u64) -> Vec<JoinHandle<Output>> {
    let parts = thread::available_parallelism().map_or(1, |it| it.get().min(8)) as u64;
    let judge = |part| {
        let range = format!("{} {}", programs * part / parts, programs * (part + 1) / parts);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["differential::judge", "--exact", "--ignored", "--nocapture"])
            .env("DMR_DRIVER", "sim")
            .env(JUDGE, range)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        thread::spawn(move || child.wait_with_output().unwrap())
    };
    (0..parts).map(judge).collect()
}

fn verdicts(judges: Vec<JoinHandle<Output>>) -> BTreeMap<u64, Verdict> {
    let mut verdicts = BTreeMap::new();
    for judge in judges {
        let output = judge.join().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "the judge failed: {text}");
        for line in text.lines() {
            // The first line begins with the name of the test.
            let Some(at) = line.find("verdict ") else { continue };
            let verdict: Verdict = line[at..].parse().unwrap();
            verdicts.insert(verdict.number, verdict);
        }
    }
    verdicts
}
