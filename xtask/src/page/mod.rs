//! `cargo xtask page`: opens the pages of `dmr report` in a headless browser, and asserts what they
//! show.

mod browser;
mod checks;
mod frames;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;
use browser::{Browser, Window};

const MISSING: &str = "chromium is not installed (on Debian: `apt-get install chromium`)";

/// The folder of the guide's pictures.
const PICTURES: &str = "docs/src/pictures";

/// The window in which pages are tested, and of which pictures are.
const WINDOW: Window = Window { width: 1280, height: 900 };

/// The options of the gate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The events of the largest page.
    events: u64,
    /// `true` to write the guide's pictures.
    pictures: bool,
}

impl Options {
    /// Parses `--events N` and `--pictures`.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, Failure> {
        let mut options = Self { events: 1_000_000, pictures: false };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--pictures" => options.pictures = true,
                "--events" => {
                    let number = arguments.next().and_then(|number| number.parse().ok());
                    let missing = || Failure::Setup("--events needs a number".to_owned());
                    options.events = number.ok_or_else(missing)?;
                }
                unknown => return Err(Failure::Setup(format!("page: unknown: {unknown}"))),
            }
        }
        Ok(options)
    }
}

/// Makes the pages of the examples, and checks each.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let program = find_browser().ok_or_else(|| Failure::Setup(MISSING.to_owned()))?;
    command::show(&mut command::cargo(&[
        "build",
        "-p",
        "dmr-cli",
        "-p",
        "dmr-report",
        "--examples",
        "--bins",
    ]))?;
    let target = Workspace::load()?.target_directory;
    let folder = target.join("page");
    let debug = target.join("debug");
    let mut make = Command::new(debug.join("examples/situations"));
    command::show(make.arg(&folder).arg(options.events.to_string()))?;
    let dmr = debug.join("dmr");
    let training = folder.join("training");
    // It would be appended to.
    let recording = training.with_extension("rec");
    let _ = fs::remove_file(&recording);
    let mut replay = Command::new(&dmr);
    replay.args(["replay", "traces/gpt_train.csv.gz", "--log"]).arg(training.with_extension("csv"));
    replay.env("DMR_RECORD", recording);
    replay.current_dir(command::root()).env("DMR_DRIVER", "sim").env_remove("DMR_BACKEND");
    command::show(&mut replay)?;
    find_race(&folder)?;
    let mut failures = Vec::new();
    for check in checks::CHECKS {
        let page = folder.join(format!("{}.html", check.file));
        let mut report = Command::new(&dmr);
        report.arg("report").arg(folder.join(check.file)).arg("-o").arg(&page);
        command::capture(&mut report)?;
        let mut text = Command::new(&dmr);
        text.args(["report", "--text"]).arg(folder.join(check.file));
        let text = command::capture(&mut text)?;
        let mut browser = Browser::start(&program, &folder.join("profile"), WINDOW)?;
        let took = browser.open(&page, "?webgl")?;
        println!("{}: open after {:.2} s", check.file, took.as_secs_f32());
        if options.pictures {
            picture(&mut browser, check)?;
        }
        let mut found = checks::Checked::new(&mut browser, &page, text);
        (check.run)(&mut found)?;
        let failed = found.failures;
        let complaints = std::mem::take(&mut browser.complaints);
        let all = failed.into_iter().chain(complaints);
        failures.extend(all.map(|failure| format!("{}: {failure}", check.file)));
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(Failure::Setup(failures.join("\n")))
}

/// Runs a program with a race on the simulated driver, which writes its findings.
fn find_race(folder: &Path) -> Result<(), Failure> {
    /// The exit status of a process with findings.
    const FOUND: i32 = 66;
    let mut race = command::cargo(&["run", "--quiet", "-p", "dmr-sim", "--example", "race"]);
    race.env("DMR_DRIVER", "sim").env("DMR_SIM_BACKTRACE", "1");
    race.env("DMR_SIM_REPORT", folder.join("race.csv"));
    for name in ["DEVICES", "CAPACITY", "SEED", "POLICY", "CHECKS", "INSTRUCTIONS"] {
        race.env_remove(format!("DMR_SIM_{name}"));
    }
    let output = race.output().map_err(|error| cannot(folder, &error))?;
    match output.status.code() {
        Some(FOUND) => Ok(()),
        other => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(Failure::Setup(format!("the program with a race has ended with {other:?}\n{text}")))
        }
    }
}

fn picture(browser: &mut Browser, check: &checks::Check) -> Result<(), Failure> {
    let Some(height) = check.picture else { return Ok(()) };
    browser.eval(check.prepare)?;
    browser.settle()?;
    let path = command::root().join(PICTURES).join(check.file).with_extension("png");
    let picture = browser.picture(Window { width: WINDOW.width, height })?;
    fs::create_dir_all(command::root().join(PICTURES)).map_err(|error| cannot(&path, &error))?;
    fs::write(&path, picture).map_err(|error| cannot(&path, &error))?;
    println!("{} is written", path.display());
    Ok(())
}

fn find_browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.iter().find_map(|name| folders.iter().map(|it| it.join(name)).find(|it| it.is_file()))
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Setup(format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_those_of_the_usage() {
        let parsed = Options::parse(&["--pictures", "--events", "10"]).unwrap();
        assert_eq!(parsed, Options { events: 10, pictures: true });
        assert!(Options::parse(&["--events"]).is_err());
        assert!(Options::parse(&["--all"]).is_err());
    }
}
