//! `dmr diff`: compares two recordings.

use std::path::PathBuf;

use clap::Args;

use crate::Output;
use crate::exit::Failure;

/// The arguments of `dmr diff`.
#[derive(Args, Clone, Debug)]
pub struct DiffArgs {
    /// The first file, of any format of `dmr report`
    pub before: PathBuf,

    /// The second file
    pub after: PathBuf,
}

/// Compares the peaks, what held them, and the waits.
///
/// # Errors
///
/// A file that cannot be read.
pub fn run(args: &DiffArgs) -> Result<Output, Failure> {
    let before = dmr_report::open(&args.before).map_err(Failure::unusable)?;
    let after = dmr_report::open(&args.after).map_err(Failure::unusable)?;
    Ok(Output { text: dmr_report::diff::diff(&before, &after), complaint: String::new() })
}
