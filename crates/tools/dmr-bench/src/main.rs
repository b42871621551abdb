//! The `dmr-bench` program: runs workloads, prints tables.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints its results")]

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use dmr_bench::decode::{self, Decode, Sizes};
use dmr_bench::soak::{self, Soak};
use dmr_bench::workload::{self, NAMES, Plan};
use dmr_bench::{BenchError, Machine, stacks, steps, table};
use dmr_pool::PoolConfig;
use dmr_recorder::RecorderConfig;
use dmr_trace::refuse_overwrite;

/// The workloads of the peers' benchmarks on the stacks of this workspace.
#[derive(Debug, Parser)]
#[command(name = "dmr-bench", arg_required_else_help = true)]
#[command(after_help = "Without a GPU it runs on the simulated driver: times are host cost only. \
    DMR_DRIVER=sim|cuda chooses.")]
struct Cli {
    /// Keep the events of `run` and `step` in the flight recorder
    #[arg(long, global = true)]
    recorder: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs workloads; one JSON line per result
    Run(Box<RunArgs>),
    /// Puts results side by side: files of JSON lines, ours and the peers'
    Table {
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Sets ours against the best peer of each round: JSON lines with the field `round`
    Ratios {
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Many threads on a pool under a small budget; every byte is checked
    Soak {
        /// Duration in seconds
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        /// Threads, each with a stream of its own
        #[arg(long, default_value_t = 16)]
        threads: usize,
        /// The budget below the pool
        #[arg(long, default_value_t = 2048)]
        limit_mib: u64,
        /// The share of the budget that the threads hold in blocks
        #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=100))]
        percent: u64,
        /// Leave out the trims and reaps
        #[arg(long)]
        no_trims: bool,
        /// The compact pool instead of the fast one
        #[arg(long)]
        compact: bool,
        /// Over blocks of the driver's pool instead of pages that the pool maps itself
        #[arg(long)]
        over_blocks: bool,
    },
    /// A decode loop, launch by launch and as captured graphs; one JSON line per result
    Decode {
        /// The batch sizes
        #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
        batches: Vec<usize>,
        /// Tokens that each row generates [default: 128; on the simulated driver 4]
        #[arg(long)]
        tokens: Option<usize>,
        /// Layers [default: 4; on the simulated driver 2]
        #[arg(long)]
        layers: Option<usize>,
        /// The resource of the blocks
        #[arg(long, default_value = "pool-pages")]
        resource: String,
    },
    /// Names the workloads, the resources and the steps
    List,
    /// Repeats one step: for tools that count instructions
    Step {
        /// As `list` names it
        name: String,
        /// Number of repetitions
        times: u64,
    },
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// The workloads to run
    #[arg(long, value_delimiter = ',', default_values = NAMES)]
    workloads: Vec<String>,
    /// The resources to run them on [default: all; of those with layers, `async+budget`, w7 only]
    #[arg(long, value_delimiter = ',')]
    resources: Vec<String>,
    /// The traces that w4 replays
    #[arg(long, num_args = 1..)]
    traces: Vec<PathBuf>,
    /// The thread counts of w3, w7 and w9 [default: 1, 2, 4, 8, 16; w9: 16] (w8 always has 16)
    #[arg(long, value_delimiter = ',', value_name = "N")]
    threads: Vec<usize>,
    /// Bytes of each block that w3 fills; it runs once without allocating as well
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    touch: usize,
    /// The block counts of w2
    #[arg(long, value_delimiter = ',', value_name = "N")]
    blocks: Vec<u64>,
    /// The largest sizes of w2
    #[arg(long, value_delimiter = ',', value_name = "MIB")]
    max_mib: Vec<u64>,
    /// The percentages of the limit that the threads of w9 hold [default: 60, 80, 90, 95]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    percents: Vec<u64>,
    /// The limit of w9
    #[arg(long, default_value_t = 2048)]
    limit_mib: u64,
    /// Seconds after which a pass is cut short
    #[arg(long, default_value_t = 3.0)]
    budget_s: f64,
    /// The share of the operations that is made (traces and w2 are always whole)
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// `--scale 0.05`, and w2 without its largest block count
    #[arg(long, conflicts_with = "scale")]
    quick: bool,
    /// Lend the streams of w1, w3, w4, w7 and w8, as a program does that has cudarc's streams in
    /// its hands: each call looks for a capture then
    #[arg(long)]
    lent: bool,
    /// Leave out the pass of w1 to w4 that measures each call
    #[arg(long)]
    no_latency: bool,
    /// Rounds of w5 and w6
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(7..))]
    rounds: u16,
    /// CUDA ordinal of the device
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Write to this file as well
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Cli { recorder, command } = Cli::parse();
    if recorder && let Err(error) = dmr_recorder::start(RecorderConfig::new()) {
        eprintln!("dmr-bench: {error}");
        return ExitCode::from(2);
    }
    let outcome = match command {
        Command::Run(args) => run(*args),
        Command::Table { files } => print_table(&files, table::render),
        Command::Ratios { files } => print_table(&files, table::ratios),
        Command::Soak { seconds, threads, limit_mib, percent, no_trims, compact, over_blocks } => {
            let config = if compact { PoolConfig::compact() } else { PoolConfig::fast() };
            let time = Duration::from_secs(seconds);
            let limit = limit_mib << 20;
            let trims = !no_trims;
            run_soak(Soak { time, threads, limit, percent, trims, config, over_blocks })
        }
        Command::Decode { batches, tokens, layers, resource } => {
            run_decode(batches, tokens, layers, resource)
        }
        Command::List => list(),
        Command::Step { name, times } => step(&name, times),
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("dmr-bench: {failed} failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("dmr-bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: RunArgs) -> Result<usize, BenchError> {
    for trace in &args.traces {
        let kept = args.out.as_ref().map_or(Ok(()), |out| refuse_overwrite(trace, out));
        kept.map_err(BenchError::new)?;
    }
    let budget = Duration::try_from_secs_f64(args.budget_s).map_err(BenchError::new)?;
    let mut plan = Plan { traces: args.traces, touch: args.touch, budget, ..Plan::default() };
    plan.quick = args.quick;
    plan.lends_streams = args.lent;
    plan.rounds = usize::from(args.rounds);
    plan.scale = if args.quick { 0.05 } else { args.scale };
    plan.measures_calls = !args.no_latency;
    if !args.resources.is_empty() {
        let known: Vec<_> = stacks::layered().collect();
        plan.layered = args.resources.iter().filter(|name| known.contains(name)).cloned().collect();
    }
    replace(&mut plan.resources, args.resources);
    replace(&mut plan.pressure_threads, args.threads.clone());
    replace(&mut plan.threads, args.threads);
    replace(&mut plan.percents, args.percents);
    plan.limit = args.limit_mib << 20;
    replace(&mut plan.blocks, args.blocks);
    replace(&mut plan.max_mib, args.max_mib);
    let mut file = args.out.map(File::create).transpose().map_err(BenchError::new)?;
    let machine = Machine::open(args.device)?;
    let mut lost = None;
    let mut emit = |line: dmr_bench::Line| {
        println!("{line}");
        let written = file.as_mut().map_or(Ok(()), |file| writeln!(file, "{line}"));
        lost = lost.take().or(written.err());
    };
    emit(machine.line());
    let mut failed = 0;
    for name in &args.workloads {
        failed += workload::run(&machine, &plan, name, &mut emit)?;
    }
    lost.map_or(Ok(failed), |error| Err(BenchError::new(error)))
}

fn run_soak(soak: Soak) -> Result<usize, BenchError> {
    let machine = Machine::open(0)?;
    let (line, wrong) = soak::run(&machine, soak)?;
    println!("{line}");
    Ok(wrong as usize)
}

fn run_decode(
    batches: Vec<usize>,
    tokens: Option<usize>,
    layers: Option<usize>,
    resource: String,
) -> Result<usize, BenchError> {
    let machine = Machine::open(0)?;
    let is_simulated = machine.is_simulated();
    let mut sizes = if is_simulated { Sizes::of_simulator() } else { Sizes::of_gpu() };
    sizes.layers = layers.unwrap_or(sizes.layers);
    let tokens = tokens.unwrap_or(if is_simulated { 4 } else { 128 });
    println!("{}", machine.line());
    let plan = Decode { resource, batches, tokens, sizes };
    decode::run(&machine, &plan, &mut |line| println!("{line}"))
}

/// Replaces the default by the given values, if there are any.
fn replace<T>(default: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *default = given;
    }
}

fn print_table(files: &[PathBuf], render: fn(&str) -> String) -> Result<usize, BenchError> {
    let mut text = String::new();
    for file in files {
        let named = |error: io::Error| BenchError(format!("{}: {error}", file.display()));
        text.push_str(&std::fs::read_to_string(file).map_err(named)?);
        text.push('\n');
    }
    print!("{}", render(&text));
    Ok(0)
}

fn list() -> Result<usize, BenchError> {
    println!("workloads {}", NAMES.join(" "));
    println!("resources {}", stacks::names().collect::<Vec<_>>().join(" "));
    println!("layered {}", stacks::layered().collect::<Vec<_>>().join(" "));
    for step in steps::all(&Machine::open(0)?)? {
        println!("step {}", step.name);
    }
    Ok(0)
}

/// Repeats a step on a thread of its own. What the process is started with moves the stack of its
/// first thread, and how much memory a copy has to align would change the count.
fn step(name: &str, times: u64) -> Result<usize, BenchError> {
    let repeat = || {
        let machine = Machine::open(0)?;
        let mut step = steps::named(&machine, name)?;
        (0..times).try_for_each(|_| step.once())
    };
    let outcome = std::thread::scope(|scope| scope.spawn(repeat).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_not_written_over_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.csv");
        let link = folder.path().join("link.csv");
        std::fs::write(&trace, "action,ptr,bytes\n").unwrap();
        std::fs::hard_link(&trace, &link).unwrap();
        let trace = trace.to_str().unwrap();
        let link = link.to_str().unwrap();
        let args = ["dmr-bench", "run", "--workloads", "w4", "--traces", trace, "--out", link];
        let Command::Run(args) = Cli::parse_from(args).command else { panic!("not a run") };
        let refused = run(*args).unwrap_err().to_string();
        assert_eq!(std::fs::read_to_string(trace).unwrap(), "action,ptr,bytes\n");
        assert!(refused.contains(trace) && refused.contains(link), "{refused}");
    }
}
