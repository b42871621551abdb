//! `dmr sort`: writes the rows of a log in the order of their calls, also in RMM's format.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use dmr_trace::{RecordWriter, TraceError, TraceFormat, TraceReader, refuse_overwrite};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::Output;
use crate::exit::Failure;

/// The arguments of `dmr sort`.
#[derive(Args, Clone, Debug)]
pub struct SortArgs {
    /// The log: CSV, gzip or not. A trace without a column `order` keeps the order of its rows
    pub log: PathBuf,

    /// The file that is written, and overwritten: CSV, gzip if its name ends in .gz
    pub output: PathBuf,

    /// The columns of the output: this project's, which replay in full, or RMM's
    #[arg(long, value_name = "FORMAT")]
    #[arg(value_parser = PossibleValuesParser::new(["dmr", "rmm"]), default_value = "dmr")]
    pub format: String,
}

/// Writes the output, and returns how many rows the log has.
///
/// # Errors
///
/// A log that cannot be opened, an output that is the log itself or cannot be written; a log that
/// breaks off or cannot be sorted, after the rows before are written.
pub fn run(args: &SortArgs) -> Result<Output, Failure> {
    refuse_overwrite(&args.log, &args.output).map_err(Failure::unusable)?;
    let mut log = TraceReader::open(&args.log).map_err(Failure::unusable)?;
    let cannot_write = |error: io::Error| {
        Failure::unusable(format!("{}: cannot be written: {error}", args.output.display()))
    };
    let file = File::create(&args.output).map_err(cannot_write)?;
    let format = if args.format == "rmm" { TraceFormat::Rmm } else { TraceFormat::Dmr };
    let written = if args.output.extension().is_some_and(|extension| extension == "gz") {
        let mut gzip = GzEncoder::new(file, Compression::default());
        let written = write(&mut log, &mut gzip, format).map_err(cannot_write)?;
        gzip.finish().map_err(cannot_write)?;
        written
    } else {
        write(&mut log, file, format).map_err(cannot_write)?
    };
    if let Some(error) = written.error {
        return Err(Failure::unusable(format!(
            "{error}; the {} rows before are in {}",
            written.rows,
            args.output.display()
        )));
    }
    let bad = log.bad_rows();
    let mut text: String = bad.first.iter().map(|row| format!("bad row  {row}\n")).collect();
    text += &format!("{} rows are sorted\n", written.rows);
    let complaint = match bad.count {
        0 => String::new(),
        1 => format!("{}: 1 bad row is left out", log.trace()),
        count => format!("{}: {count} bad rows are left out", log.trace()),
    };
    Ok(Output { text, complaint })
}

struct Written {
    rows: u64,
    /// Why there are no more rows.
    error: Option<TraceError>,
}

fn write(log: &mut TraceReader, file: impl Write, format: TraceFormat) -> io::Result<Written> {
    let mut writer = RecordWriter::with_format(BufWriter::new(file), format)?;
    let mut written = Written { rows: 0, error: None };
    for row in log {
        match row {
            Ok(row) => {
                writer.write(&row.record)?;
                written.rows += 1;
            }
            Err(error) => written.error = Some(error),
        }
    }
    writer.flush()?;
    Ok(written)
}
