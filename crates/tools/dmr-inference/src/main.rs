//! Runs the server on `dmr` and on cudarc's own slices, and prints a table.
//!
//! `cargo run --release -p dmr-inference -- --rounds 3`; without a GPU it runs on the simulated
//! driver.

#![allow(clippy::print_stdout, reason = "a command that prints a table")]

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use dmr_inference::schedule::{run_on_cudarc, run_on_cudarc_pages, run_on_dmr, run_on_dmr_graphs};
use dmr_inference::{Config, Error, Report};
use dmr_sim::{Driver, Universe};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// On `dmr`
    Dmr,
    /// On `dmr`, with a captured graph for the steps of each worker
    DmrGraphs,
    /// On cudarc's slices: one for the cache, whose views are the pages
    Cudarc,
    /// On cudarc's slices: one for each page
    CudarcPages,
}

/// A small inference server, on `dmr` and on cudarc's own slices.
#[derive(Parser)]
struct Options {
    /// A runtime to run; all if none is named
    #[arg(long)]
    runtime: Vec<Kind>,
    /// Rounds: in each, every runtime runs once
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Requests
    #[arg(long, default_value_t = 32)]
    requests: usize,
    /// Worker threads, each with a stream
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 17)]
    prompt: usize,
    /// Tokens that each of a request's turns generates
    #[arg(long, default_value_t = 16)]
    new_tokens: usize,
    /// Turns of each request
    #[arg(long, default_value_t = 2)]
    turns: usize,
    /// MiB that the server on `dmr` may take from the GPU: with few, it spills
    #[arg(long)]
    budget_mib: Option<u64>,
    /// A log of all allocations of the server on `dmr`, which `dmr replay` reads
    #[arg(long)]
    log: Option<PathBuf>,
}

fn main() -> Result<(), Error> {
    let options = Options::parse();
    let simulated = match dmr_sim::select()? {
        Driver::Simulated(_) => Some(Universe::new()?),
        _ => None,
    };
    let config = Config {
        ordinal: simulated.as_ref().map_or(0, |universe| universe.ordinal(0)),
        workers: options.workers,
        requests: options.requests,
        prompt: options.prompt,
        new_tokens: options.new_tokens,
        turns: options.turns,
        budget: options.budget_mib.map(|mib| mib << 20),
        log: options.log,
        ..Config::default()
    };
    let kinds = match options.runtime.is_empty() {
        true => vec![Kind::Dmr, Kind::DmrGraphs, Kind::Cudarc, Kind::CudarcPages],
        false => options.runtime,
    };
    println!("{}", Report::head());
    let mut races = vec![Vec::new(); kinds.len()];
    for _ in 0..options.rounds {
        for (kind, races) in kinds.iter().zip(&mut races) {
            let before = simulated.as_ref().map_or(0, |universe| universe.reports().len());
            let outcome = match kind {
                Kind::Dmr => run_on_dmr(&config)?,
                Kind::DmrGraphs => run_on_dmr_graphs(&config)?,
                Kind::Cudarc => run_on_cudarc(&config)?,
                Kind::CudarcPages => run_on_cudarc_pages(&config)?,
            };
            println!("{}", outcome.report);
            if outcome.report.wrong > 0 {
                return Err("a request got wrong tokens".into());
            }
            if let Some(universe) = &simulated {
                races.extend(universe.reports().into_iter().skip(before));
            }
        }
    }
    for (kind, races) in kinds.iter().zip(races).filter(|_| simulated.is_some()) {
        println!(
            "\n{kind:?} on the simulated driver, where times mean nothing: {} races",
            races.len()
        );
        races.first().iter().for_each(|first| println!("{first}"));
    }
    Ok(())
}
