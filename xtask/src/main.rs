//! The gates of this workspace: `cargo xtask ci`, or one of them by name.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a gate prints its result")]

mod alone;
mod bench;
mod bundle;
mod ci;
mod clippy;
mod command;
mod compare_ptx;
mod compile_errors;
mod cuda;
mod cuda_core;
mod deny;
mod direct;
mod docs;
mod failure;
mod fmt;
mod graph;
mod loom;
mod mutants;
mod package;
mod page;
mod ptx_fixtures;
mod rmm;
mod sanitize;
mod tidy;
mod valgrind;
mod wheel;
mod wheels;
mod workspace;

use std::process::ExitCode;

use crate::failure::Failure;

const USAGE: &str = "\
usage: cargo xtask <gate>

  ci        all gates below, one after the other; lists at the end those that failed
  fmt       the code is formatted
  tidy      the repository's own lints: sources, manifests, pages, words
  graph     allowed dependencies between the crates
  deny      licences, duplicate versions and sources of dependencies (needs cargo-deny)
  clippy    no warning with all features, with none, and with each alone
  alone     each published crate, with each of its features alone, in a program that depends on it
  cuda      the facade compiles with cudarc's interface of each CUDA version from 12.0 on
  direct    a direct build of the facade has the direct backend alone, and its tests pass
  docs      the documentation builds without a warning, and the guide's compile errors are the compiler's
  valgrind  the program in C has no error of memory on the simulated driver (needs valgrind and a C compiler)
  wheel     the Python package is built, installed, and passes its tests on the simulated driver (needs a C++
            compiler and Python with venv)
  page      the pages of `dmr report` show in a browser what they should (needs chromium)
  loom      models of the lock-free parts pass in every order of steps
  package   every published crate packages and builds from its package; prints their order

  cuda-core dmr-cuda-core, outside of the workspace: clippy, and its tests and examples on the simulated driver
            (needs Rust 1.89, pip and g++)
  rmm       RMM below dmr and above it: builds both ways, and tests them on the simulated driver (needs pip, git,
            g++ 12 and Python 3.11; RMM_SOURCE names a checkout of RMM where git cannot clone it)

  bench     host cost on the simulated driver: times, and instructions (needs valgrind)
  mutants   the share of faults in the bookkeeping that the tests detect (needs cargo-mutants)
  bundle    tests, examples and programs for a machine without Rust and without the sources
  ptx-fixtures
            the PTX of dmr-ptx's tests, from their kernels (needs nvcc)
  compare-ptx
            the kernels of candle-kernels on the simulator, against results of a GPU (needs cargo's and pip's
            registries, or what an earlier run has fetched)
  sanitize  device tests and planted faults under Compute Sanitizer (needs a GPU and that tool)

  --events N, --pictures      page: events of the largest page; write the guide's pictures
  --instructions [PART...]    bench: the table of instructions only, of steps with PART in the name
  --sample N | --all, --seed S, --shard K/N, --timeout SECONDS
                              mutants: number, seed and part of the sample; time limit of tests
  --out DIR, --package NAME   bundle: its folder; the crates of its tests and examples
  --tool PATH, --rows TEXT, --fresh, --timeout SECONDS, --programs DIR, --out DIR
                              sanitize: the tool; rows to run, also those with a result; time
                              limit of a row; built programs; folder of the results
  --nvcc PATH                 ptx-fixtures: the compiler
  --bundle                    sanitize: pack the programs for a GPU machine without Rust
  --allow-dirty   package, ci: package with uncommitted changes";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["ci"] => ci::run(package::Changes::Refused),
        ["ci", "--allow-dirty"] => ci::run(package::Changes::Allowed),
        ["package"] => package::run(package::Changes::Refused),
        ["package", "--allow-dirty"] => package::run(package::Changes::Allowed),
        ["ptx-fixtures"] => ptx_fixtures::run("nvcc"),
        ["ptx-fixtures", "--nvcc", path] => ptx_fixtures::run(path),
        ["compare-ptx"] => compare_ptx::run(),
        ["fmt"] => fmt::run(),
        ["tidy"] => tidy::run(),
        ["graph"] => graph::run(),
        ["deny"] => deny::run(),
        ["clippy"] => clippy::run(),
        ["alone"] => alone::run(),
        ["cuda"] => cuda::run(),
        ["cuda-core"] => cuda_core::run(),
        ["rmm"] => rmm::run(),
        ["direct"] => direct::run(),
        ["docs"] => docs::run(),
        ["loom"] => loom::run(),
        ["valgrind"] => valgrind::run(),
        ["wheel"] => wheel::run(),
        ["page", options @ ..] => page::run(&page::Options::parse(options)?),
        ["bench"] => bench::run(),
        ["bench", "--instructions", parts @ ..] => bench::count_instructions(parts),
        ["mutants", options @ ..] => mutants::run(options),
        ["bundle", options @ ..] => bundle::run(&bundle::Options::parse(options)?),
        ["sanitize", options @ ..] => sanitize::run(options),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        unknown => Err(Failure::Setup(format!("unknown: {}\n\n{USAGE}", unknown.join(" ")))),
    }
}
