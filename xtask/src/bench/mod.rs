//! `cargo xtask bench`: host cost of calls on the simulated driver, in time and in
//! instructions.

mod profile;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use profile::{Count, MAX_FRAMES};

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

const PACKAGE: &str = "dmr-bench";

/// The numbers of operations in the two runs of a step. The difference has warm operations only,
/// and is a multiple of each power of two up to it, for work that is done once per group of
/// operations.
const FEW: u64 = 1_024;
const MANY: u64 = 3_072;

const NO_VALGRIND: &str = "instructions are not counted: valgrind is not installed (on Debian: \
                           `apt-get install valgrind`)";

/// The head of the table in `docs/src/performance.md`.
const HEAD: &str = "| step | ours | locked | driver |\n| --- | ---: | ---: | ---: |";

/// Runs the criterion benches, then counts instructions.
pub(crate) fn run() -> Result<(), Failure> {
    let bench = ["bench", "-p", PACKAGE, "--bench", "host_cost"];
    command::show(command::cargo(&bench).env("DMR_DRIVER", "sim"))?;
    count_instructions(&[])
}

/// Counts the instructions of the steps whose names contain one of `parts`, or of all steps, and
/// prints a table.
pub(crate) fn count_instructions(parts: &[&str]) -> Result<(), Failure> {
    if !has_valgrind() {
        return Err(Failure::Setup(NO_VALGRIND.to_owned()));
    }
    command::show(&mut command::cargo(&["build", "--release", "-p", PACKAGE]))?;
    let target = Workspace::load()?.target_directory;
    let program = target.join("release").join(PACKAGE);
    let list = command::capture(Command::new(&program).arg("list").env("DMR_DRIVER", "sim"))?;
    let steps: Vec<_> = steps(&list, parts).collect();
    if steps.is_empty() {
        let parts = parts.join(", ");
        return Err(Failure::Setup(format!("no step has {parts} in its name:\n{list}")));
    }
    println!("\n{HEAD}");
    for step in steps {
        let few = count(&program, step, FEW, &target)?;
        let many = count(&program, step, MANY, &target)?;
        println!("{}", row(step, few, many));
    }
    Ok(())
}

fn count(program: &Path, step: &str, times: u64, target: &Path) -> Result<Count, Failure> {
    let out: PathBuf = target.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", "--compress-strings=no", "--compress-pos=no"]);
    valgrind.arg("--collect-bus=yes").arg(format!("--separate-callers={MAX_FRAMES}"));
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(program).args(["step", step, &times.to_string()]).env("DMR_DRIVER", "sim");
    command::capture(&mut valgrind)?;
    let profile = std::fs::read_to_string(&out)
        .map_err(|error| Failure::Setup(format!("cannot read {}: {error}", out.display())))?;
    Count::of(&profile)
        .map_err(|error| Failure::Setup(format!("{step}: {}: {error}", out.display())))
}

/// Returns the names of the steps in the output of `dmr-bench list`; with `parts`, those that
/// contain one.
fn steps<'a>(list: &'a str, parts: &[&str]) -> impl Iterator<Item = &'a str> {
    let is_asked_for = |step: &&str| parts.is_empty() || parts.iter().any(|it| step.contains(it));
    list.lines().filter_map(|line| line.strip_prefix("step ")).filter(is_asked_for)
}

/// Formats a row of the table: the cost of one operation. Locked instructions have a decimal place
/// where some operations have more of them than others.
fn row(step: &str, few: Count, many: Count) -> String {
    let per_operation = |few: u64, many: u64, parts: u64| {
        let difference = many.saturating_sub(few);
        let operations = MANY - FEW;
        (difference * parts + operations / 2) / operations
    };
    let ours = thousands(per_operation(few.ours, many.ours, 1));
    let driver = thousands(per_operation(few.driver, many.driver, 1));
    let locked = per_operation(few.locked, many.locked, 10);
    let locked = match locked % 10 {
        0 => (locked / 10).to_string(),
        tenths => format!("{}.{tenths}", locked / 10),
    };
    format!("| `{step}` | {ours} | {locked} | {driver} |")
}

/// Formats a number as `12,345`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn has_valgrind() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "workloads w1\nresources direct\nstep resolve_stream\n\
                        step allocate_free/direct\nstep allocate_free/pool\n";

    #[test]
    fn steps_are_read_from_the_list() {
        let all: Vec<_> = steps(LIST, &[]).collect();
        assert_eq!(all, ["resolve_stream", "allocate_free/direct", "allocate_free/pool"]);
    }

    #[test]
    fn some_steps_can_be_asked_for_by_a_part_of_their_names() {
        let some: Vec<_> = steps(LIST, &["resolve", "/pool"]).collect();
        assert_eq!(some, ["resolve_stream", "allocate_free/pool"]);
    }

    #[test]
    fn a_row_has_what_one_operation_costs_after_the_first_ones() {
        let few = Count { ours: 1_000_000, locked: 5_000, driver: 70 };
        let many = Count {
            ours: few.ours + 4_177 * 2_048 + 900,
            locked: few.locked + 14 * 2_048 + 400,
            driver: few.driver + 1_234_567 * 2_048,
        };
        assert_eq!(row("a/b", few, many), "| `a/b` | 4,177 | 14.2 | 1,234,567 |");
        let whole = Count { locked: few.locked + 3 * 2_048, ..many };
        assert_eq!(row("a/b", few, whole), "| `a/b` | 4,177 | 3 | 1,234,567 |");
    }

    #[test]
    fn thousands_are_set_apart() {
        let texts = [0, 999, 1_000, 12_345, 1_234_567].map(thousands);
        assert_eq!(texts, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
