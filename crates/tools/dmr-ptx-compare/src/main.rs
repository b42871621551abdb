//! The `dmr-ptx-compare` program: runs the kernels of PTX files, compares results.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints its results")]

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use dmr_ptx_compare::compile::Compiler;
use dmr_ptx_compare::device::{self, Image};
use dmr_ptx_compare::features::{self, Features};
use dmr_ptx_compare::report::{self, Class, Compared};
use dmr_ptx_compare::{recorded, results, split, table};

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
        /// The level at which the driver's compiler optimises the PTX
        #[arg(long, value_parser = clap::value_parser!(u32).range(0..=4))]
        jit_level: Option<u32>,
    },
    /// Prints the table of differences of kernels that were compiled in several ways
    Table {
        /// Two files of results for each way
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// The name of a way: the head of its columns
        #[arg(long, required = true)]
        way: Vec<String>,
        /// The PTX files, for the reasons of differences
        #[arg(long, num_args = 0..)]
        ptx: Vec<PathBuf>,
        /// The seed of the arguments
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Writes the results of a GPU as text: a digest of each kernel
    Record {
        /// The results of the GPU
        gpu: PathBuf,
        /// The results of the simulator. A kernel with results that differ is left out, or, with
        /// `--ulp`, has values
        simulator: PathBuf,
        /// The text
        #[arg(long)]
        out: PathBuf,
        /// Keeps values of kernels whose results differ, not by more units of the last place
        #[arg(long)]
        ulp: Option<u64>,
        /// The seed of the arguments
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Checks results against recorded ones
    Check {
        /// The recorded results
        recorded: PathBuf,
        /// Files of results
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// The seed of the arguments
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Runs every kernel with several seeds, and writes lines of seed, kernel and digest, which
    /// another machine's can be compared with
    Digests {
        /// The PTX files, with cubins as above
        #[arg(required = true)]
        ptx: Vec<PathBuf>,
        /// The text
        #[arg(long)]
        out: PathBuf,
        /// The first seed
        #[arg(long, default_value_t = 2)]
        first: u64,
        /// The number of seeds
        #[arg(long, default_value_t = 10)]
        seeds: u64,
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
        Command::Run { ptx, out, seed, only, jit_level } => {
            run(&ptx, &out, seed, only.as_deref(), jit_level)
        }
        Command::Record { gpu, simulator, out, ulp, seed } => {
            record(&gpu, &simulator, &out, ulp, seed)
        }
        Command::Check { recorded, results, seed } => check(&recorded, &results, seed),
        Command::Digests { ptx, out, first, seeds } => digests(&ptx, &out, first..first + seeds),
        Command::Table { results, way, ptx, seed } => write_table(&results, &way, &ptx, seed),
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
            let head = format!("// PTX of {name}.cu, compiled by `dmr-ptx-compare compile`.\n");
            std::fs::write(out.join(format!("{name}{number}.ptx")), head + part)?;
        }
    }
    Ok(true)
}

/// Reads a PTX file, and the cubin beside it for a GPU.
fn image(file: &Path) -> Result<Image, Box<dyn Error>> {
    let text = std::fs::read_to_string(file)?;
    let kernels = features::kernels(&text);
    let cubin = file.with_extension("cubin");
    let bytes =
        if cubin.exists() { std::fs::read(cubin)? } else { text.bytes().chain([0]).collect() };
    Ok(Image { kernels, bytes, jit_level: None })
}

fn digests(files: &[PathBuf], out: &Path, seeds: Range<u64>) -> Result<bool, Box<dyn Error>> {
    let mut text = String::new();
    let _context = device::hold()?;
    for file in files {
        let image = image(file)?;
        for seed in seeds.clone() {
            for (kernel, digest) in recorded::digests(&device::run(&image, seed)?, seed) {
                text.push_str(&format!("{seed} {kernel} {digest:016x}\n"));
            }
        }
    }
    std::fs::write(out, text)?;
    Ok(true)
}

fn run(
    files: &[PathBuf],
    out: &Path,
    seed: u64,
    only: Option<&str>,
    jit_level: Option<u32>,
) -> Result<bool, Box<dyn Error>> {
    let mut records = Vec::new();
    let mut whole = true;
    let _context = device::hold()?;
    for file in files {
        let mut image = Image { jit_level, ..image(file)? };
        image.kernels.retain(|kernel| only.is_none_or(|part| kernel.contains(part)));
        let start = Instant::now();
        match device::run(&image, seed) {
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

fn record(
    gpu: &Path,
    simulator: &Path,
    out: &Path,
    ulp: Option<u64>,
    seed: u64,
) -> Result<bool, Box<dyn Error>> {
    let mut gpu = results::read(gpu)?;
    let mut far: BTreeMap<String, u64> = BTreeMap::new();
    for compared in report::compare(&gpu, &results::read(simulator)?, seed) {
        let ulp = match &compared.difference {
            Ok(difference) if difference.is_explained(compared.unordered) => continue,
            Ok(difference) if difference.infinite == 0 && !compared.unordered => difference.scaled,
            _ => u64::MAX,
        };
        let known = far.entry(compared.kernel).or_default();
        *known = ulp.max(*known);
    }
    let near =
        |kernel: &str| far.get(kernel).is_none_or(|found| ulp.is_some_and(|ulp| *found <= ulp));
    gpu.retain(|record| near(&record.kernel));
    std::fs::write(out, recorded::write(&gpu, seed, &far))?;
    far.retain(|_, found| ulp.is_none_or(|ulp| *found > ulp));
    println!("left out: {:?}", far.keys());
    Ok(true)
}

fn check(recorded: &Path, files: &[PathBuf], seed: u64) -> Result<bool, Box<dyn Error>> {
    let text = std::fs::read_to_string(recorded)?;
    let expected = recorded::read(&text).ok_or("the recorded results have another form")?;
    let mut records = Vec::new();
    for file in files {
        records.extend(results::read(file)?);
    }
    let wrong = recorded::check(&records, seed, &expected);
    wrong.iter().for_each(|line| println!("{line}"));
    println!("{} kernels with recorded results, {} differ", expected.len(), wrong.len());
    Ok(wrong.is_empty())
}

fn report(
    left: &Path,
    right: &[PathBuf],
    ptx: &[PathBuf],
    seed: u64,
) -> Result<bool, Box<dyn Error>> {
    let kernels = read_features(ptx)?;
    let mut others = Vec::new();
    for file in right {
        others.extend(results::read(file)?);
    }
    let compared = report::compare(&results::read(left)?, &others, seed);
    for compared in &compared {
        let features = kernels.get(&compared.kernel).cloned().unwrap_or_default();
        print_launch(compared, Class::of(&features, compared.unordered), &features);
    }
    let identical = |compared: &Compared| {
        compared.difference.as_ref().is_ok_and(report::Difference::is_identical)
    };
    let whole = compared.iter().all(identical);
    let count = compared.iter().filter(|compared| identical(compared)).count();
    let differences = compared.iter().filter_map(|compared| compared.difference.as_ref().ok());
    let payloads: usize = differences.clone().map(|difference| difference.payloads).sum();
    let out_of_bounds: usize = differences.map(|difference| difference.out_of_bounds).sum();
    println!(
        "{count} of {} launches are identical; {payloads} NaNs have other bits; {out_of_bounds} sums are farther \
         apart than their order explains",
        compared.len()
    );
    print!("{}", table::markdown(&[table::Way { name: "results", compared }], &kernels));
    Ok(whole)
}

fn write_table(
    pairs: &[PathBuf],
    names: &[String],
    ptx: &[PathBuf],
    seed: u64,
) -> Result<bool, Box<dyn Error>> {
    let kernels = read_features(ptx)?;
    let mut ways = Vec::new();
    for (pair, name) in pairs.chunks_exact(2).zip(names) {
        let compared = report::compare(&results::read(&pair[0])?, &results::read(&pair[1])?, seed);
        ways.push(table::Way { name, compared });
    }
    print!("{}", table::markdown(&ways, &kernels));
    Ok(true)
}

fn read_features(ptx: &[PathBuf]) -> Result<BTreeMap<String, Features>, Box<dyn Error>> {
    let mut kernels = BTreeMap::new();
    for file in ptx {
        kernels.extend(features::of_kernels(&std::fs::read_to_string(file)?));
    }
    Ok(kernels)
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
