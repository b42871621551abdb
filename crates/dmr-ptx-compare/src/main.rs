//! The `dmr-ptx-compare` program: runs the kernels of PTX files, compares results.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints its results")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dmr_ptx_compare::compile::Compiler;
use dmr_ptx_compare::device::{self, Image};
use dmr_ptx_compare::features::{self, Features};
use dmr_ptx_compare::report::{self, Class, Compared};
use dmr_ptx_compare::{plan, results, split};

/// Runs the kernels of PTX files on the simulator or on a GPU, and compares the results bit by bit.
#[derive(Debug, Parser)]
#[command(name = "dmr-ptx-compare", arg_required_else_help = true)]
#[command(after_help = "DMR_DRIVER=sim|cuda chooses the driver.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compiles CUDA C++ to PTX with NVRTC; large files to several parts
    Compile {
        /// The sources
        #[arg(required = true)]
        sources: Vec<PathBuf>,
        /// The folder of the PTX files
        #[arg(long)]
        out: PathBuf,
        /// The library of NVRTC
        #[arg(long)]
        nvrtc: PathBuf,
        /// A folder of headers
        #[arg(long)]
        include: Vec<PathBuf>,
        /// An option of NVRTC
        #[arg(long)]
        option: Vec<String>,
    },
    /// Runs every kernel of some PTX files, and writes a file of results
    Run {
        /// The PTX files. Where a cubin with the same name lies beside one, a GPU runs that
        #[arg(required = true)]
        ptx: Vec<PathBuf>,
        /// The file of results
        #[arg(long)]
        out: PathBuf,
        /// The seed of the arguments
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Only kernels whose name contains this
        #[arg(long)]
        only: Option<String>,
    },
    /// Compares results: launches that differ, and a table by family
    Report {
        /// A file of results
        left: PathBuf,
        /// Files of results to compare it with, as if they were one
        #[arg(required = true)]
        right: Vec<PathBuf>,
        /// The PTX files, for the reasons of differences
        #[arg(long, num_args = 0..)]
        ptx: Vec<PathBuf>,
        /// The seed of the arguments
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

fn main() -> ExitCode {
    let run = match Cli::parse().command {
        Command::Compile { sources, out, nvrtc, include, option } => {
            compile(&sources, &out, &Compiler { library: nvrtc, include, options: option })
        }
        Command::Run { ptx, out, seed, only } => run(&ptx, &out, seed, only.as_deref()),
        Command::Report { left, right, ptx, seed } => report(&left, &right, &ptx, seed),
    };
    match run {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The bytes of a PTX file. A driver compiles one on one core.
const PART: usize = 300_000;

fn compile(sources: &[PathBuf], out: &Path, compiler: &Compiler) -> Result<bool, Box<dyn Error>> {
    std::fs::create_dir_all(out)?;
    for source in sources {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let text = compiler.compile(&format!("{name}.cu"), &std::fs::read_to_string(source)?)?;
        let parts = split::split(&text, PART);
        for (index, part) in parts.iter().enumerate() {
            let number = if parts.len() == 1 { String::new() } else { format!("{index:02}") };
            std::fs::write(out.join(format!("{name}{number}.ptx")), part)?;
        }
    }
    Ok(true)
}

fn run(
    files: &[PathBuf],
    out: &Path,
    seed: u64,
    only: Option<&str>,
) -> Result<bool, Box<dyn Error>> {
    let mut records = Vec::new();
    let mut whole = true;
    let _context = device::hold()?;
    for file in files {
        let text = std::fs::read_to_string(file)?;
        let mut kernels = features::kernels(&text);
        kernels.retain(|kernel| only.is_none_or(|part| kernel.contains(part)));
        let cubin = file.with_extension("cubin");
        let bytes =
            if cubin.exists() { std::fs::read(cubin)? } else { text.bytes().chain([0]).collect() };
        let start = std::time::Instant::now();
        match device::run(&Image { kernels, bytes }, seed) {
            Ok(found) => records.extend(found),
            Err(error) => {
                whole = false;
                eprintln!("{}: {error}", file.display());
            }
        }
        eprintln!("{}: {:.1} s", file.display(), start.elapsed().as_secs_f64());
    }
    for record in &records {
        if let Err(reason) = &record.outcome {
            whole = false;
            println!("{}, {}: {reason}", record.kernel, record.variant);
        }
    }
    let failed = records.iter().filter(|record| record.outcome.is_err()).count();
    println!("{} launches, {failed} without a result", records.len());
    results::write(out, &records)?;
    Ok(whole)
}

/// The sum of a family.
#[derive(Debug, Default)]
struct Row {
    launches: usize,
    identical: usize,
    failed: usize,
    elements: usize,
    differing: usize,
    ulp: u64,
    nan: usize,
    out_of_bounds: usize,
    payloads: usize,
}

fn report(
    left: &Path,
    right: &[PathBuf],
    ptx: &[PathBuf],
    seed: u64,
) -> Result<bool, Box<dyn Error>> {
    let mut kernels: BTreeMap<String, Features> = BTreeMap::new();
    for file in ptx {
        kernels.extend(features::of_kernels(&std::fs::read_to_string(file)?));
    }
    let left = results::read(left)?;
    let mut others = Vec::new();
    for file in right {
        others.extend(results::read(file)?);
    }
    let mut rows: BTreeMap<(Class, String), Row> = BTreeMap::new();
    for compared in report::compare(&left, &others, seed) {
        let features = kernels.get(&compared.kernel).cloned().unwrap_or_default();
        let class = Class::of(&features, compared.unordered);
        let row = rows.entry((class, plan::family(&compared.kernel))).or_default();
        row.launches += 1;
        print_launch(&compared, class, &features);
        match &compared.difference {
            Err(_) => row.failed += 1,
            Ok(difference) => {
                row.identical += usize::from(difference.is_identical());
                row.elements += difference.elements;
                row.differing += difference.differing;
                row.ulp = row.ulp.max(difference.ulp);
                row.nan += difference.nan;
                row.out_of_bounds += difference.out_of_bounds;
                row.payloads += difference.payloads;
            }
        }
    }
    println!("| reason | family | launches | identical | elements | differ | max ulp |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for ((class, family), row) in &rows {
        let Row { launches, identical, elements, differing, ulp, .. } = row;
        println!(
            "| {} | {family} | {launches} | {identical} | {elements} | {differing} | {ulp} |",
            class.text()
        );
    }
    let sum = |count: fn(&Row) -> usize| rows.values().map(count).sum::<usize>();
    println!(
        "{} launches: {} identical, {} without a result; {} elements: {} differ, {} where one is a NaN, \
         {} out of bounds; {} NaNs with other bits",
        sum(|row| row.launches),
        sum(|row| row.identical),
        sum(|row| row.failed),
        sum(|row| row.elements),
        sum(|row| row.differing),
        sum(|row| row.nan),
        sum(|row| row.out_of_bounds),
        sum(|row| row.payloads),
    );
    Ok(rows.values().all(|row| row.launches == row.identical))
}

fn print_launch(compared: &Compared, class: Class, features: &Features) {
    let Compared { kernel, variant, difference, .. } = compared;
    match difference {
        Err(reason) => println!("{kernel}, {variant}: {reason}"),
        Ok(difference) if !difference.is_identical() => {
            let (index, a, b) = difference.first.unwrap_or_default();
            let approximations: Vec<_> =
                features.approximations.iter().map(String::as_str).collect();
            println!(
                "{kernel}, {variant}: {} of {} differ, {} ulp, {} NaN, first [{index}] {a:#x} {b:#x} ({}: {})",
                difference.differing,
                difference.elements,
                difference.ulp,
                difference.nan,
                class.text(),
                approximations.join(" "),
            );
        }
        Ok(_) => {}
    }
}
