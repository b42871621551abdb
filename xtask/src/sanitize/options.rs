//! The options of `sanitize`.

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;

const USAGE: &str = "sanitize [--tool PATH] [--rows TEXT]... [--fresh] [--timeout SECONDS] \
                     [--programs DIR] [--out DIR], or sanitize --bundle [--out DIR]";

/// The options of the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// `true` to pack a bundle and run nothing.
    pub(super) bundle: bool,
    /// The compute-sanitizer to use.
    pub(super) tool: Option<PathBuf>,
    /// The folder of programs that are built already; `None` builds them.
    pub(super) programs: Option<PathBuf>,
    /// The folder for the results, or for the bundle.
    pub(super) out: Option<PathBuf>,
    /// `true` to run rows again that have a result.
    pub(super) fresh: bool,
    /// The time limit of a row.
    pub(super) limit: Duration,
    rows: Vec<String>,
}

impl Options {
    pub(super) fn parse(arguments: &[&str]) -> Result<Self, Failure> {
        let mut options = Self {
            bundle: false,
            tool: None,
            programs: None,
            out: None,
            fresh: false,
            limit: Duration::from_secs(600),
            rows: Vec::new(),
        };
        let mut left = arguments.iter();
        while let Some(argument) = left.next() {
            let not_understood =
                || Failure::Setup(format!("not understood: {argument}\nusage: {USAGE}"));
            let mut value = || left.next().copied().ok_or_else(not_understood);
            match *argument {
                "--bundle" => options.bundle = true,
                "--fresh" => options.fresh = true,
                "--tool" => options.tool = Some(value()?.into()),
                "--programs" => options.programs = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()),
                "--rows" => options.rows.push(value()?.to_owned()),
                "--timeout" => {
                    let seconds = value()?.parse().map_err(|_| not_understood())?;
                    options.limit = Duration::from_secs(seconds);
                }
                _ => return Err(not_understood()),
            }
        }
        Ok(options)
    }

    /// A text of `--rows` that is part of no row's name.
    pub(super) fn unused(&self, ids: impl Iterator<Item = String>) -> Option<&str> {
        let ids: Vec<_> = ids.collect();
        let is_unused = |text: &&String| ids.iter().all(|id| !id.contains(*text));
        self.rows.iter().find(is_unused).map(String::as_str)
    }

    /// Returns whether a row runs: its name contains one of the texts of `--rows`, or there is
    /// none.
    pub(super) fn selects(&self, id: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|text| id.contains(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_selected_by_part_of_their_name() {
        let all = Options::parse(&[]).unwrap();
        assert!(all.selects("memcheck.async") && !all.fresh && !all.bundle);
        let some = Options::parse(&["--rows", "control.", "--rows", "async", "--fresh"]).unwrap();
        assert!(some.selects("memcheck.async") && some.selects("control.leak"));
        assert!(!some.selects("memcheck.pool") && some.fresh);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for arguments in [&["--tool"][..], &["--timeout", "soon"], &["--fast"]] {
            let failure = Options::parse(arguments).unwrap_err().to_string();
            assert!(failure.contains(arguments[0]) && failure.contains("usage"), "{failure}");
        }
    }
}
