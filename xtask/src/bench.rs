//! `cargo xtask bench`: what calls cost the host, on the simulated driver, in time and in
//! instructions.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

const PACKAGE: &str = "dmr-bench";
/// Start-up costs the same in both runs, so the difference is that of the operations.
const FEW: u64 = 1_000;
const MANY: u64 = 3_000;

/// Runs the criterion benches, then counts instructions if valgrind is there.
pub(crate) fn run() -> Result<(), Failure> {
    let bench = ["bench", "-p", PACKAGE, "--bench", "host_cost"];
    command::show(command::cargo(&bench).env("DMR_DRIVER", "sim"))?;
    count_instructions()
}

fn count_instructions() -> Result<(), Failure> {
    command::show(&mut command::cargo(&["build", "--release", "-p", PACKAGE]))?;
    let target = Workspace::load()?.target_directory;
    let program = target.join("release").join(PACKAGE);
    if !has_valgrind() {
        println!("\ninstructions: not counted, valgrind is not installed");
        return Ok(());
    }
    let list = command::capture(Command::new(&program).arg("list").env("DMR_DRIVER", "sim"))?;
    println!("\ninstructions per operation; those of the simulated driver stand apart");
    println!("{:<36} {:>8} {:>8}", "", "ours", "driver");
    for step in steps(&list) {
        let few = count(&program, step, FEW, &target)?;
        let many = count(&program, step, MANY, &target)?;
        let per_operation = |many: u64, few: u64| many.saturating_sub(few) / (MANY - FEW);
        let ours = per_operation(many.ours, few.ours);
        let driver = per_operation(many.driver, few.driver);
        println!("{step:<36} {ours:>8} {driver:>8}");
    }
    Ok(())
}

/// Instructions of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// Everything but the simulated driver.
    ours: u64,
    /// What happened inside of calls into it.
    driver: u64,
}

fn count(program: &Path, step: &str, times: u64, target: &Path) -> Result<Count, Failure> {
    let out: PathBuf = target.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", "--compress-strings=no", "--compress-pos=no"]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(program).args(["step", step, &times.to_string()]).env("DMR_DRIVER", "sim");
    command::capture(&mut valgrind)?;
    let profile = std::fs::read_to_string(&out)
        .map_err(|error| Failure::Setup(format!("cannot read {}: {error}", out.display())))?;
    Ok(read_profile(&profile))
}

/// The names of the steps in what `dmr-bench list` prints.
fn steps(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_prefix("step "))
}

/// Adds a profile up. A call into the driver is a call from a function that is not the simulator's
/// to one that is; what it cost in all, the profile says in the line after it.
fn read_profile(profile: &str) -> Count {
    let (mut total, mut driver) = (0, 0);
    let (mut caller, mut callee) = (false, false);
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        if let Some(function) = line.strip_prefix("fn=") {
            caller = is_simulator(function);
        } else if let Some(function) = line.strip_prefix("cfn=") {
            callee = is_simulator(function);
        } else if line.starts_with("calls=") {
            let inclusive = lines.next().and_then(cost).unwrap_or(0);
            if callee && !caller {
                driver += inclusive;
            }
        } else if let Some(own) = cost(line) {
            total += own;
        }
    }
    Count { ours: total.saturating_sub(driver), driver }
}

fn is_simulator(function: &str) -> bool {
    function.contains("dmr_sim::")
}

/// Of a line `position cost`; `None` for any other.
fn cost(line: &str) -> Option<u64> {
    let (position, cost) = line.split_once(' ')?;
    let is_position = position.bytes().next().is_some_and(|c| c.is_ascii_digit());
    is_position.then(|| cost.trim().parse().ok())?
}

fn has_valgrind() -> bool {
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    valgrind.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_inside_of_a_driver_call_is_the_drivers() {
        let profile = "version: 1\nevents: Ir\n\nfn=main\n1 10\ncfn=dmr_direct::allocate\n\
                       calls=2 5\n3 200\n\nfn=dmr_direct::allocate\n5 50\n\
                       cfn=dmr_sim::driver::alloc\ncalls=2 8\n6 150\n\n\
                       fn=dmr_sim::driver::alloc\n8 100\ncfn=malloc\ncalls=2 0\n9 30\n\
                       cfn=dmr_sim::engine::step\ncalls=2 1\n10 20\n\nfn=malloc\n0 30\n\n\
                       fn=dmr_sim::engine::step\n1 20\n\ntotals: 210\n";
        assert_eq!(read_profile(profile), Count { ours: 60, driver: 150 });
    }

    #[test]
    fn steps_are_read_from_the_list() {
        let list =
            "workloads w1\nresources direct\nstep resolve_stream\nstep allocate_free/direct\n";
        assert_eq!(steps(list).collect::<Vec<_>>(), ["resolve_stream", "allocate_free/direct"]);
    }
}
