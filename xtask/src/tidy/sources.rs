//! Rules for every source file.

use super::tree::Tree;
use crate::failure::Violation;

/// The maximum number of lines of code in a file, without comments and blank lines.
const MOST_CODE_LINES: usize = 400;

/// The files that may be longer, and why.
const LONG_FILES: &[(&str, &str)] = &[];

/// The crates with `unsafe` code, and why. The root of every other crate forbids it.
const UNSAFE_CRATES: &[(&str, &str)] = &[
    (
        "crates/memory/dmr-adaptors/",
        "promises that adaptors return blocks of host memory as they are",
    ),
    ("crates/tools/dmr-bench/", "submits work to the driver by hand, as the reference"),
    ("crates/memory/dmr-arrow/", "reads and makes the structs of a C interface"),
    ("crates/memory/dmr-buffer/", "copies between host and device memory"),
    ("crates/memory/dmr-capi/", "exports C functions, which take pointers"),
    ("crates/memory/dmr-core/", "one `unsafe fn` each that makes blocks, addresses and memory"),
    ("crates/memory/dmr-cuda-async/", "calls the driver"),
    ("crates/memory/dmr-cuda-core/", "lends memory and streams to NVIDIA's crates"),
    ("crates/memory/dmr-cuda-direct/", "calls the driver"),
    ("crates/memory/dmr-cuda-virtual/", "calls the driver"),
    ("crates/tools/dmr-bench/peers/cuda-async/", "calls the driver, cuBLAS and NVIDIA's crates"),
    ("crates/memory/dmr-dlpack/", "reads and makes structs of C"),
    ("crates/memory/dmr-external/", "makes blocks of memory of other owners"),
    ("crates/tools/dmr-fake/", "its resource makes blocks"),
    ("crates/memory/dmr-graphs/", "calls the driver, which captures and launches graphs"),
    ("crates/tools/dmr-inference/", "launches kernels"),
    ("crates/memory/dmr-launch/", "implements the traits of cudarc, and lends its slices"),
    ("crates/memory/dmr-nvtx/", "calls the functions of a tool"),
    ("crates/memory/dmr-pinned/", "calls the driver; the host and the device share its memory"),
    ("crates/memory/dmr-pool/", "makes blocks of the memory that it carves up"),
    ("crates/memory/dmr-rmm/", "calls RMM through C functions"),
    ("crates/tools/dmr-ptx-compare/", "launches kernels; calls a compiler"),
    ("crates/memory/dmr-recorder/", "makes texts of the words of a ring; forks and signals"),
    ("crates/tools/dmr-sanitize/", "commits faults, which a tool must report"),
    ("crates/simulator/dmr-sim/", "implements the driver: C functions, an object file in memory"),
    ("crates/simulator/dmr-sim-blas/", "exports the functions of cuBLAS, calls the driver"),
    ("crates/simulator/dmr-sim-boot/", "a function that runs before `main`"),
    ("crates/simulator/dmr-sim-library/", "exports the functions of the driver"),
    ("crates/memory/dmr-slices/", "makes slices of addresses, and frees them as cudarc does"),
    ("crates/memory/dmr-streams/", "calls the driver"),
    ("crates/tools/dmr-programs/", "submits work in windows of deallocated blocks; forks"),
    ("crates/tools/dmr-testkit/", "calls the driver and the functions of a tool"),
];

/// Markers of unfinished work, and the attribute that excludes a test from the run. Split, so
/// that this file does not contain them.
const LEFT_OVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("to", "do!"),
    concat!("un", "implemented!"),
    concat!("dbg", "!("),
    IGNORED,
];

const IGNORED: &str = concat!("#[ig", "nore");

/// The attribute of a function that another test of its file runs in a child process.
const RUN_BY_OTHERS: &str = concat!("#[ig", "nore = \"run by ");
const RUNS_THEM: &str = "\"--ignored\"";

/// Paths of the build machine, which a device bundle does not have.
const BUILD_PATHS: &[&str] = &[concat!("CARGO_MANIFEST", "_DIR"), concat!("fi", "le!()")];

/// The files that may name the folder of the sources: one checks for a bundle first, and one
/// compares it with paths in debug information, which are of the build machine as well.
const WITH_BUILD_PATHS: &[&str] =
    &["crates/tools/dmr-testkit/src/repository.rs", "crates/simulator/dmr-sim/src/host/label.rs"];

pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        check_first_line(path, text, "//! ", &mut found);
        check_length(path, text, &mut found);
        check_unsafe(path, text, &mut found);
        check_testkit(path, text, &mut found);
        check_build_paths(path, text, &mut found);
        check_left_overs(path, text, &mut found);
    }
    for suffix in [".cu", ".ptx"] {
        for (path, text) in tree.ending(suffix) {
            check_first_line(path, text, "// ", &mut found);
            check_left_overs(path, text, &mut found);
        }
    }
    for (path, _) in LONG_FILES.iter().filter(|(path, _)| !tree.has(path)) {
        found.push(Violation::of(path, "listed as a long file, but gone"));
    }
    found
}

fn check_first_line(path: &str, text: &str, start: &str, found: &mut Vec<Violation>) {
    if !text.starts_with(start) {
        let message = format!("the first line says what the file is for: `{start}...`");
        found.push(Violation::of(path, message));
    }
}

fn check_length(path: &str, text: &str, found: &mut Vec<Violation>) {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    let lines = text.lines().map(str::trim).filter(is_code).count();
    let is_listed = LONG_FILES.iter().any(|(long, _)| *long == path);
    if lines > MOST_CODE_LINES && !is_listed {
        let message = format!("{lines} lines of code, more than {MOST_CODE_LINES}: split it");
        found.push(Violation::of(path, message));
    }
    if lines <= MOST_CODE_LINES && is_listed {
        found.push(Violation::of(path, "no longer a long file: take it off the list"));
    }
}

fn check_unsafe(path: &str, text: &str, found: &mut Vec<Violation>) {
    let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let may_have_it = UNSAFE_CRATES.iter().any(|(folder, _)| path.starts_with(folder));
    let forbids_it = text.contains("#![forbid(unsafe_code)]");
    if is_root && may_have_it == forbids_it {
        let message = if forbids_it {
            "forbids unsafe code: take the crate off the list in xtask's tidy"
        } else {
            "add `#![forbid(unsafe_code)]`, or list the crate in xtask's tidy"
        };
        found.push(Violation::of(path, message));
    }
}

/// Refuses unit tests that use the testkit: such a test would link two copies of its own crate. The
/// random programs and the benchmarks depend on the testkit, and it does not depend on them.
fn check_testkit(path: &str, text: &str, found: &mut Vec<Violation>) {
    let above = [
        "xtask/",
        "crates/tools/dmr-programs/",
        "crates/tools/dmr-ptx-compare/",
        "crates/tools/dmr-bench/",
    ];
    let may_use_it = above.iter().any(|folder| path.starts_with(folder));
    if !path.contains("/src/") || may_use_it {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        let uses_it = ["dmr_fake::", "dmr_testkit::"].iter().any(|name| line.contains(name));
        if uses_it && !line.trim_start().starts_with("//") {
            let message = "the fake and the testkit are for `tests/`, not for unit tests";
            found.push(Violation::on_line(path, index, message));
        }
    }
}

/// Finds paths of the build machine: a bundle runs where there are no sources.
fn check_build_paths(path: &str, text: &str, found: &mut Vec<Violation>) {
    if !path.starts_with("crates/") || WITH_BUILD_PATHS.contains(&path) {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        for name in BUILD_PATHS.iter().filter(|name| line.contains(**name)) {
            let message = format!(
                "`{name}` is a path of the build machine: a test finds files with \
                 `dmr_testkit::repository`, which also works in a bundle"
            );
            found.push(Violation::on_line(path, index, message));
        }
    }
}

fn check_left_overs(path: &str, text: &str, found: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        for marker in LEFT_OVERS.iter().filter(|marker| has_word(line, marker)) {
            if *marker == IGNORED && line.contains(RUN_BY_OTHERS) && text.contains(RUNS_THEM) {
                continue;
            }
            let message = format!("`{marker}`: finish it, or open an issue");
            found.push(Violation::on_line(path, index, message));
        }
    }
}

/// Returns whether the line has the marker as a whole word.
fn has_word(line: &str, marker: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(marker).any(|(at, _)| {
        let before = &line[..at];
        let after = &line[at + marker.len()..];
        let goes_on = marker.ends_with(is_part) && after.starts_with(is_part);
        !goes_on && !before.ends_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let found = violations(&Tree::from([(path, text)]));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    fn one(path: &str, text: &str) -> String {
        let mut messages = messages(path, text);
        assert_eq!(messages.len(), 1, "{messages:?}");
        messages.remove(0)
    }

    #[test]
    fn a_file_whose_first_line_is_a_doc_comment_is_fine() {
        assert_eq!(messages("crates/memory/dmr/src/a.rs", "//! One idea.\n\nfn f() {}\n"), [""; 0]);
    }

    #[test]
    fn a_file_starts_with_a_doc_comment() {
        assert!(one("crates/memory/dmr/src/a.rs", "fn f() {}\n").contains("the first line"));
        assert!(one("crates/memory/dmr/src/a.rs", "// A comment.\n").contains("the first line"));
        assert!(
            one("crates/memory/dmr-streams/src/a.ptx", ".version 7.0\n").contains("the first line")
        );
    }

    #[test]
    fn a_file_has_at_most_400_lines_of_code_without_comments() {
        let code = |lines| format!("//! Long.\n{}", "// why\n\ncode();\n".repeat(lines));
        assert_eq!(messages("crates/memory/dmr/src/a.rs", &code(400)), [""; 0]);
        assert!(one("crates/memory/dmr/src/a.rs", &code(401)).contains("401 lines of code"));
    }

    #[test]
    fn a_crate_forbids_unsafe_code_unless_it_is_listed() {
        assert!(
            one("crates/memory/dmr-trace/src/lib.rs", "//! x\n").contains("forbid(unsafe_code)")
        );
        assert_eq!(messages("crates/simulator/dmr-sim/src/lib.rs", "//! x\n"), [""; 0]);
        let needless =
            one("crates/simulator/dmr-sim/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n");
        assert!(needless.contains("off the list"), "{needless}");
        assert_eq!(
            messages("crates/memory/dmr/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n"),
            [""; 0]
        );
    }

    #[test]
    fn unit_tests_keep_away_from_the_testkit() {
        let text = "//! x\nuse dmr_testkit::Machine;\n";
        assert!(
            one("crates/memory/dmr-streams/src/pool.rs", text)
                .starts_with("crates/memory/dmr-streams/src/pool.rs:2")
        );
        assert_eq!(messages("crates/memory/dmr-streams/tests/pool.rs", text), [""; 0]);
    }

    #[test]
    fn a_test_does_not_depend_on_the_build_machine() {
        for name in BUILD_PATHS {
            let text = format!("//! x\nlet path = env!(\"{name}\");\n");
            let found = one("crates/memory/dmr-pool/tests/a.rs", &text);
            assert!(found.starts_with("crates/memory/dmr-pool/tests/a.rs:2: "), "{found}");
            assert!(found.contains("dmr_testkit::repository"), "{found}");
            assert_eq!(messages(WITH_BUILD_PATHS[0], &text), [""; 0]);
            assert_eq!(messages("xtask/src/a.rs", &text), [""; 0]);
        }
    }

    #[test]
    fn unfinished_work_and_ignored_tests_are_found() {
        for marker in LEFT_OVERS {
            let text = format!("//! x\n\n    {marker} ...\n");
            assert!(one("xtask/src/a.rs", &text).starts_with("xtask/src/a.rs:3: "), "{marker}");
        }
    }

    #[test]
    fn a_test_that_others_run_in_a_child_process_is_in_the_run() {
        let child = format!("//! x\n{RUN_BY_OTHERS}the other tests\"]\n");
        assert!(one("crates/memory/dmr/tests/a.rs", &child).contains("finish it"));
        assert_eq!(
            messages("crates/memory/dmr/tests/a.rs", &format!("{child}{RUNS_THEM}\n")),
            [""; 0]
        );
        let other = format!("//! x\n{IGNORED}]\n{RUNS_THEM}\n");
        assert!(one("crates/memory/dmr/tests/a.rs", &other).contains("finish it"));
    }

    #[test]
    fn a_marker_inside_a_word_is_no_marker() {
        let text = format!("//! cuda-{0}{0}\n", concat!("XX", "X"));
        assert_eq!(messages("xtask/src/a.rs", &text), [""; 0]);
    }
}
