//! The script that runs ours and the peers in turn, on programs that only say that they ran.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = include_str!("../../peers/interleave.sh");

/// A program that prints a line with its own name.
const PROGRAM: &str = "#!/bin/sh\n[ \"$1\" = ratios ] && exec wc -l <\"$2\"\n\
                       echo \"{\\\"bench\\\":\\\"$(basename \"$0\")\\\"}\"\n";

/// Runs the script; returns its output, and the lines of its results.
fn run(folder: &Path, rounds: u32, total: u32) -> (String, Vec<String>) {
    run_only(folder, "out", "", rounds, total)
}

/// Runs the pieces of the script with a name that matches `only`.
fn run_only(
    folder: &Path,
    out: &str,
    only: &str,
    rounds: u32,
    total: u32,
) -> (String, Vec<String>) {
    let out = folder.join(out);
    let output = Command::new("bash")
        .arg(folder.join("interleave.sh"))
        .env("OUT", &out)
        .env("ONLY", only)
        .env("PY", folder.join("python"))
        .env("ROUNDS", rounds.to_string())
        .env("TOTAL", total.to_string())
        .output()
        .unwrap();
    let results = fs::read_to_string(out.join("results.jsonl")).unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (printed, results.lines().map(str::to_owned).collect())
}

fn programs(lines: &[String], round: u32) -> Vec<&str> {
    let prefix = format!("{{\"round\":{round},\"bench\":\"");
    let of_round = lines.iter().filter_map(|line| line.strip_prefix(&prefix));
    of_round.filter_map(|rest| rest.split('"').next()).collect()
}

/// One test: scripts that are written while another test starts a process cannot be run.
#[test]
fn each_round_runs_ours_and_the_peers_in_turn_and_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("interleave.sh"), SCRIPT).unwrap();
    fs::create_dir(folder.path().join("traces")).unwrap();
    for name in ["dmr-bench", "rmm_bench", "python"] {
        let path = folder.path().join(name);
        fs::write(&path, PROGRAM).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    let (printed, lines) = run(folder.path(), 2, 60);
    let mut ours_first = ["dmr-bench", "rmm_bench"].repeat(5);
    ours_first.extend(["python", "interleave"]);
    let mut peers_first = ["rmm_bench", "dmr-bench"].repeat(5);
    peers_first.extend(["python", "interleave"]);
    assert_eq!(programs(&lines, 1), ours_first, "{printed}");
    assert_eq!(programs(&lines, 2), peers_first, "{printed}");
    assert!(printed.ends_with("24\n"), "the ratios come last: {printed}");

    // W2 and W9 by name, with PyTorch in a process for each.
    let (printed, named) = run_only(folder.path(), "named", "W2|W9", 1, 60);
    let expected =
        ["dmr-bench", "rmm_bench", "dmr-bench", "rmm_bench", "python", "python", "interleave"];
    assert_eq!(programs(&named, 1), expected, "{printed}");

    // Started again: only the round that is missing. Lines without the mark of their round go.
    let stray = lines.join("\n") + "\n{\"round\":3,\"bench\":\"stray\"}\n";
    fs::write(folder.path().join("out/results.jsonl"), stray).unwrap();
    let (printed, lines) = run(folder.path(), 3, 60);
    assert!(printed.contains("round 2: there already"), "{printed}");
    assert_eq!((lines.len(), programs(&lines, 3)), (36, ours_first), "{printed}");

    // Without time nothing of the round counts.
    let (printed, lines) = run(folder.path(), 4, 1);
    assert!(printed.contains("round 4: cut short"), "{printed}");
    assert_eq!(lines.len(), 36);

    // A program that fails leaves a line that says so, and the others still run.
    fs::write(folder.path().join("rmm_bench"), "#!/bin/sh\nprintf '{\"half'\nexit 3\n").unwrap();
    let (printed, lines) = run(folder.path(), 4, 60);
    let failed = "{\"round\":4,\"bench\":\"interleave\",\"resource\":\"-\",\"workload\":\"rmm_W1\",\
                  \"error\":\"exit status 3\"}";
    assert_eq!(lines.iter().filter(|line| *line == failed).count(), 1, "{printed}\n{lines:?}");
    assert_eq!(programs(&lines, 4).iter().filter(|name| **name == "dmr-bench").count(), 5);
}
