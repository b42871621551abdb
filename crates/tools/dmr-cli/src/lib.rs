//! The `dmr` command, as a library: one module per subcommand.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`replay`] | `dmr replay`: makes the calls of a trace again |
//! | [`sort`] | `dmr sort`: writes the rows of a log in the order of their calls |
//! | [`report`] | `dmr report`: where the memory went, as a page or as text |
//! | [`diff`] | `dmr diff`: compares two recordings |
//! | [`info`] | `dmr info`: driver, devices, features, variables |
//! | [`driver`] | the driver that a command runs on, and its findings |
//! | [`exit`] | exit codes and failures |
//!
//! [`replay::replay`] takes the resource through a hook, so that a program can replay traces on
//! a stack of its own.
#![forbid(unsafe_code)]

mod bytes;
pub mod diff;
pub mod driver;
pub mod exit;
pub mod info;
mod progress;
pub mod replay;
pub mod report;
mod shared;
pub mod sort;
mod source;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::{Exit, Failure};

/// Stream-ordered GPU memory: replay allocation traces, sort logs, show devices.
#[derive(Debug, Parser)]
#[command(name = "dmr", version, arg_required_else_help = true)]
#[command(after_help = "Without a GPU the command runs on a simulated CUDA driver. \
    DMR_DRIVER=sim|cuda chooses, DMR_BACKEND chooses the resource.")]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Makes the calls of an allocation trace again: times them, checks them
    Replay(replay::ReplayArgs),
    /// Writes the rows of a log in the order of their calls, in this project's format or in RMM's
    Sort(sort::SortArgs),
    /// Shows where the memory went: one page, or text
    Report(report::ReportArgs),
    /// Compares two recordings: the peaks, what held them, the waits
    Diff(diff::DiffArgs),
    /// Shows the driver, its devices, and what this program was built with
    Info(info::InfoArgs),
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Replay(args) => replay::run(&args),
        Command::Sort(args) => sort::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Info(args) => info::run(&args),
    };
    match outcome {
        Ok(output) => output.print(),
        Err(Failure { exit, message }) => {
            print_error(&message);
            exit.into()
        }
    }
}

/// The output of a command, and whether it succeeded.
#[derive(Debug)]
pub struct Output {
    /// The text for standard output.
    pub text: String,
    /// The text for standard error if a check failed; empty otherwise.
    pub complaint: String,
}

impl Output {
    fn print(&self) -> ExitCode {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(self.text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => {}
            // The reader closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => {
                print_error(&format!("standard output: {error}"));
                return Exit::Unusable.into();
            }
        }
        if self.complaint.is_empty() {
            return Exit::Fine.into();
        }
        print_error(&self.complaint);
        Exit::Failed.into()
    }
}

/// Writes to standard error; if that fails, the message is lost.
fn print_error(message: &str) {
    let _ = writeln!(io::stderr(), "dmr: {message}");
}
