//! Finished rows in a file, so that several short runs make one table.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, OpenOptions};
use std::hash::Hasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::rows::Row;
use super::tool::{self, Machine};
use crate::bundle::cannot;
use crate::command;
use crate::failure::Failure;

/// The inputs of a result. If one of them changes, the row runs again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Provenance {
    /// The hash of the program's content, in hexadecimal.
    program_hash: String,
    program_bytes: usize,
    /// The hash of the content of xtask, which judges the row.
    runner_hash: String,
    /// The options of the tool and the arguments of the program.
    command: String,
    machine: Machine,
}

impl Provenance {
    /// Reads the programs: `program` is the row's, `runner` is xtask.
    pub(super) fn new(
        row: &Row,
        program: &Path,
        runner: &Path,
        machine: &Machine,
    ) -> Result<Self, Failure> {
        let (program_hash, program_bytes) = digest(program)?;
        let (runner_hash, _) = digest(runner)?;
        let program_name = row.program();
        let words = [tool::options(row), vec![&program_name], row.arguments()].concat();
        Ok(Self {
            program_hash,
            program_bytes,
            runner_hash,
            command: words.join(" "),
            machine: machine.clone(),
        })
    }
}

/// The hash and the size of a file.
fn digest(path: &Path) -> Result<(String, usize), Failure> {
    let content = fs::read(path).map_err(|error| cannot("read", path, &error))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&content);
    Ok((format!("{:016x}", hasher.finish()), content.len()))
}

#[derive(Serialize, Deserialize)]
struct StoredRow {
    id: String,
    /// The time at which the row finished, in UTC.
    date: String,
    provenance: Provenance,
    outcome: Outcome,
}

/// The results of finished rows: a JSON object a line.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    results: BTreeMap<String, (Provenance, Outcome)>,
}

impl Store {
    /// Reads the file if it is there. Of several results of a row, the last counts. A line that
    /// is cut off is a row that did not finish.
    pub(super) fn open(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let entries = text.lines().filter_map(|line| serde_json::from_str::<StoredRow>(line).ok());
        let results = entries.map(|it| (it.id, (it.provenance, it.outcome))).collect();
        Self { path, results }
    }

    /// Returns the result of a row, if it is one of this program, command and machine.
    pub(super) fn get(&self, row: &Row, provenance: &Provenance) -> Option<&Outcome> {
        let (stored, outcome) = self.results.get(&row.id())?;
        (stored == provenance).then_some(outcome)
    }

    /// Adds a result, to the file first.
    pub(super) fn add(
        &mut self,
        row: &Row,
        provenance: Provenance,
        outcome: Outcome,
    ) -> Result<(), Failure> {
        let date = command::capture(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M:%S"]))?;
        let entry = StoredRow { id: row.id(), date: date.trim().to_owned(), provenance, outcome };
        let line =
            serde_json::to_string(&entry).map_err(|error| cannot("write", &self.path, &error))?;
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        // The line before may have been cut off.
        file.and_then(|mut file| writeln!(file, "\n{line}"))
            .map_err(|error| cannot("write", &self.path, &error))?;
        self.results.insert(entry.id, (entry.provenance, entry.outcome));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sanitize::rows;

    #[test]
    fn a_result_depends_on_the_programs_the_command_and_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, name).unwrap();
            path
        };
        let a = file("a");
        let b = file("b");
        let rows = rows::tests();
        let machine = |gpu: &str| Machine {
            gpu: gpu.to_owned(),
            driver: "580".to_owned(),
            tool: "2026.4".to_owned(),
        };
        let h200 = &machine("H200");
        let of =
            |row, program, runner, machine| Provenance::new(row, program, runner, machine).unwrap();
        let one = of(&rows[0], &a, &b, h200);
        assert_eq!(one, of(&rows[0], &a, &b, h200));
        for other in [
            of(&rows[1], &a, &b, h200),
            of(&rows[0], &b, &b, h200),
            of(&rows[0], &a, &a, h200),
            of(&rows[0], &a, &b, &machine("H100")),
        ] {
            assert_ne!(one, other);
        }
    }
}
