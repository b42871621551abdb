//! The `dmr` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dmr_cli::main()
}
