//! Running cargo and git from the repository's root.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;

/// Returns the root of the repository that cargo runs this program from: checkouts may share a
/// target folder, so the folder at build time may be another checkout's.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().unwrap_or(&here).to_owned()
}

/// Makes a command of the cargo that has started this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command whose output is shown to the user.
pub(crate) fn show(command: &mut Command) -> Result<(), Failure> {
    let line = line(command);
    println!("$ {line}");
    let status = command.status().map_err(|error| cannot_start(&line, &error))?;
    if status.success() { Ok(()) } else { Err(Failure::Command { line }) }
}

/// Runs a command and returns its output.
pub(crate) fn capture(command: &mut Command) -> Result<String, Failure> {
    let line = line(command);
    let output = command.output().map_err(|error| cannot_start(&line, &error))?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return Err(Failure::Command { line });
    }
    String::from_utf8(output.stdout)
        .map_err(|_| Failure::Setup(format!("{line}: its output is not UTF-8")))
}

fn cannot_start(line: &str, error: &std::io::Error) -> Failure {
    Failure::Setup(format!("cannot run {line}: {error}"))
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_stem().unwrap_or(program.as_os_str());
    std::iter::once(program)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
