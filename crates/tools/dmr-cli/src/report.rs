//! `dmr report`: where the memory went, as a page or as text.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use clap::Args;
use dmr_report::export::{perfetto, pytorch};
use dmr_report::{page, text};
use dmr_trace::refuse_overwrite;

use crate::Output;
use crate::exit::Failure;

/// The arguments of `dmr report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// The file: a recording, a log or a trace (CSV, gzip or not), RMM's log, a snapshot of
    /// PyTorch's allocator (a pickle), or findings of the simulated driver
    pub file: PathBuf,

    /// The file that is written, and overwritten: a page; with the ending .pickle a snapshot for
    /// PyTorch's viewer, with .pftrace a trace for Perfetto
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    #[arg(conflicts_with = "text")]
    pub output: PathBuf,

    /// Print the report, and write no page
    #[arg(long)]
    pub text: bool,
}

/// Reports.
///
/// # Errors
///
/// A file that cannot be read, an output that is the file itself or cannot be written.
pub fn run(args: &ReportArgs) -> Result<Output, Failure> {
    let model = dmr_report::open(&args.file).map_err(Failure::unusable)?;
    if args.text {
        return Ok(fine(text::report(&model)));
    }
    let ending = args.output.extension().and_then(|ending| ending.to_str());
    write(&args.file, &args.output, |file| match ending {
        Some("pickle") => pytorch::write(&model, file),
        Some("pftrace") => perfetto::write(&model, file),
        _ => page::write(&model, file),
    })?;
    Ok(fine(format!("{} is written\n{}", args.output.display(), text::peak_by_tag(&model))))
}

/// Writes an output of a file.
fn write(
    from: &Path,
    to: &Path,
    write: impl FnOnce(BufWriter<File>) -> io::Result<()>,
) -> Result<(), Failure> {
    refuse_overwrite(from, to).map_err(Failure::unusable)?;
    let written = File::create(to).and_then(|file| write(BufWriter::new(file)));
    written
        .map_err(|error| Failure::unusable(format!("{}: cannot be written: {error}", to.display())))
}

fn fine(text: String) -> Output {
    Output { text, complaint: String::new() }
}
