//! `cargo xtask sanitize`: the programs of `dmr-sanitize` under the tools of Compute Sanitizer.

mod bundle;
mod options;
mod outcome;
mod process;
mod programs;
mod records;
mod rows;
mod store;
mod table;
#[cfg(all(test, unix))]
mod tests;
mod tool;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use options::Options;
use outcome::{Evidence, Outcome};
use rows::{Row, Subject};
use store::{Provenance, Store};
use tool::Search;

use crate::bundle::cannot;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Runs the rows that are not finished, and prints the table; or packs the bundle.
pub(crate) fn run(arguments: &[&str]) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    if options.bundle {
        return bundle::run(options.out.as_deref());
    }
    check(&options, &Search::new(options.tool.as_deref()))
}

/// Finds the GPU and the tool, and then builds the programs.
fn check(options: &Options, search: &Search) -> Result<(), Failure> {
    let (machine, tool) = search.find()?;
    let folder = match (&options.out, &options.programs) {
        (Some(out), _) => absolute(out)?,
        (None, Some(programs)) => absolute(programs)?.join("results"),
        (None, None) => Workspace::load()?.target_directory.join("sanitize"),
    };
    fs::create_dir_all(&folder).map_err(|error| cannot("make", &folder, &error))?;
    let programs = match &options.programs {
        Some(programs) => absolute(programs)?,
        None => {
            let programs = folder.join("programs");
            programs::build(&programs)?;
            programs
        }
    };
    println!("{}, driver {}, Compute Sanitizer {}", machine.gpu, machine.driver, machine.tool);

    let runner = this_program()?;
    let rows = programs::rows(&programs)?;
    if let Some(text) = options.unused(rows.iter().map(Row::id)) {
        return Err(Failure::Setup(format!(
            "sanitize: no row has {text:?} in its name. Nothing was checked. Without --rows, the \
             table names every row."
        )));
    }
    let mut store = Store::open(folder.join("rows.jsonl"));
    let mut judged = Vec::new();
    for row in &rows {
        let provenance = Provenance::new(row, &programs.join(row.program()), &runner, &machine)?;
        let is_selected = options.selects(&row.id());
        if is_selected && (options.fresh || store.get(row, &provenance).is_none()) {
            let started = Instant::now();
            let outcome = execute(row, &tool, &programs, &folder, options.limit)?;
            let word = if outcome.is_clean() { "as expected" } else { "RED" };
            println!("{:5.1} s  {}: {word}", started.elapsed().as_secs_f64(), row.id());
            store.add(row, provenance.clone(), outcome)?;
        }
        judged.push((row, provenance));
    }
    let judged: Vec<_> =
        judged.iter().map(|(row, provenance)| (*row, store.get(row, provenance))).collect();
    println!("\n{}\n", table::render(&judged));
    verdict(&judged, &folder)
}

/// Errors unless every row has run and is as expected.
fn verdict(judged: &[table::Judged<'_>], folder: &Path) -> Result<(), Failure> {
    let red = judged.iter().filter(|(_, it)| it.is_some_and(|it| !it.is_clean())).count();
    let missing = judged.iter().filter(|(_, it)| it.is_none()).count();
    if red == 0 && missing == 0 {
        println!("sanitize: clean: all {} rows are as expected", judged.len());
        return Ok(());
    }
    Err(Failure::Setup(format!(
        "sanitize: not clean: {red} rows are red, {missing} have not run, of {}. What the tool \
         and the programs wrote is in {}. A row that has a result runs again with --fresh.",
        judged.len(),
        folder.display()
    )))
}

/// Runs one row under the tool. Its files stay: `ID.xml`, `ID.log` and `ID.out`.
fn execute(
    row: &Row,
    tool: &Path,
    programs: &Path,
    folder: &Path,
    limit: Duration,
) -> Result<Outcome, Failure> {
    let file = |suffix: &str| folder.join(format!("{}.{suffix}", row.id()));
    let xml = file("xml");
    let log = file("log");
    let out = file("out");
    for stale in [&xml, &log] {
        if stale.exists() {
            fs::remove_file(stale).map_err(|error| cannot("remove", stale, &error))?;
        }
    }
    let mut command = Command::new(tool);
    command.args(tool::options(row)).arg("--xml").arg("--save").arg(&xml);
    command.arg("--log-file").arg(&log);
    command.arg(programs.join(row.program())).args(row.arguments());
    // Without `DMR_DRIVER`, a machine with a broken driver would test the simulator.
    command.env("DMR_DRIVER", "cuda").env_remove("DMR_BACKEND").env_remove("DMR_CANARY");
    if row.subject == Subject::Tests {
        command.env("DMR_CANARY", row.tool.name());
    }
    let end = process::run(&mut command, &out, limit)?;
    let text = |path: &PathBuf| {
        fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let printed = text(&out);
    let log = text(&log);
    let xml = text(&xml);
    Ok(outcome::judge(
        row,
        Evidence {
            end,
            printed: printed.as_deref().unwrap_or_default(),
            log: log.as_deref().unwrap_or_default(),
            xml: xml.as_deref(),
        },
    ))
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::Setup(format!("cannot find this program: {error}")))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| cannot("use", path, &error))
}
