//! Outcomes of mutants: the lists that cargo-mutants writes while it runs, and the score.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::sample::Mutant;
use crate::failure::Failure;

/// The outcome of one mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A test failed.
    Caught,
    /// The tests did not end in time, which counts as caught.
    TimedOut,
    /// All tests passed.
    Missed,
    /// The change does not compile, and does not count.
    Unviable,
}

/// The files of cargo-mutants, with the name of one mutant in each line. Lines are added when a
/// mutant has been tested, so an interrupted run leaves the outcomes of the mutants that it has
/// tested.
const LISTS: [(&str, Outcome); 4] = [
    ("caught.txt", Outcome::Caught),
    ("timeout.txt", Outcome::TimedOut),
    ("missed.txt", Outcome::Missed),
    ("unviable.txt", Outcome::Unviable),
];

/// Outcomes by the names of the mutants.
#[derive(Debug, Default)]
pub(super) struct Outcomes(BTreeMap<String, Outcome>);

impl Outcomes {
    /// Collects the outcomes of all runs below a folder so far; none if there is no folder.
    pub(super) fn load(runs: &Path) -> Result<Self, Failure> {
        let mut outcomes = Self::default();
        if !runs.exists() {
            return Ok(outcomes);
        }
        let cannot = |error| Failure::Setup(format!("cannot read {}: {error}", runs.display()));
        for run in std::fs::read_dir(runs).map_err(cannot)? {
            let lists = run.map_err(cannot)?.path().join("mutants.out");
            for (list, outcome) in LISTS {
                // A run that was interrupted early has no lists.
                let names = std::fs::read_to_string(lists.join(list)).unwrap_or_default();
                outcomes.add(&names, outcome);
            }
        }
        Ok(outcomes)
    }

    /// Returns whether this mutant was tested.
    pub(super) fn has(&self, mutant: &Mutant) -> bool {
        self.0.contains_key(&mutant.name)
    }

    /// Counts the outcomes of these mutants.
    pub(super) fn score(&self, mutants: &[Mutant]) -> Score {
        let mut score = Score::default();
        for mutant in mutants {
            match self.0.get(&mutant.name) {
                Some(Outcome::Caught) => score.caught += 1,
                Some(Outcome::TimedOut) => score.timed_out += 1,
                Some(Outcome::Missed) => score.missed.push(mutant.name.clone()),
                Some(Outcome::Unviable) => score.unviable += 1,
                None => score.untested += 1,
            }
        }
        score.missed.sort();
        score
    }

    fn add(&mut self, names: &str, outcome: Outcome) {
        // The last line of an interrupted run may be half a name.
        let whole = names.rfind('\n').map_or("", |end| &names[..end]);
        self.0.extend(whole.lines().map(|name| (name.to_owned(), outcome)));
    }
}

/// The number of mutants with each outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Score {
    pub(super) caught: usize,
    pub(super) timed_out: usize,
    /// File, line and replacement of each.
    pub(super) missed: Vec<String>,
    pub(super) unviable: usize,
    pub(super) untested: usize,
}

impl Score {
    /// Returns the share of viable mutants that the tests detect, in tenths of a percent, rounded
    /// down, so that 100 % means all; `None` if none was viable.
    pub(super) fn per_mille(&self) -> Option<usize> {
        let noticed = self.caught + self.timed_out;
        (noticed * 1000).checked_div(noticed + self.missed.len())
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in &self.missed {
            writeln!(f, "missed: {name}")?;
        }
        let Self { caught, timed_out, missed, unviable, untested } = self;
        let missed = missed.len();
        write!(f, "{caught} caught, {timed_out} timed out, {missed} missed, {unviable} unviable")?;
        if *untested > 0 {
            write!(f, ", {untested} not tested")?;
        }
        match self.per_mille() {
            Some(score) => write!(f, "\nscore: {}.{} %", score / 10, score % 10),
            None => write!(f, "\nscore: none, no mutant was viable"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(name: &str) -> Mutant {
        Mutant { name: name.to_owned(), package: String::new() }
    }

    #[test]
    fn the_lists_of_all_runs_are_collected_and_half_a_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("0/mutants.out/caught.txt", "a.rs:1:1: replace f\na.rs:2:1: repl"),
            ("0/mutants.out/unviable.txt", "a.rs:3:1: replace h\n"),
            ("1/mutants.out/missed.txt", "a.rs:2:1: replace g\n"),
            ("1/mutants.out/timeout.txt", "a.rs:4:1: replace i\n"),
            ("2/empty", ""),
        ] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let outcomes = Outcomes::load(folder.path()).unwrap();
        let names = ["1:1: replace f", "2:1: replace g", "3:1: replace h", "4:1: replace i", "5"];
        let mutants = names.map(|name| mutant(&format!("a.rs:{name}")));
        assert_eq!(mutants.each_ref().map(|it| outcomes.has(it)), [true, true, true, true, false]);
        let score = outcomes.score(&mutants);
        let missed = vec!["a.rs:2:1: replace g".to_owned()];
        assert_eq!(score, Score { caught: 1, timed_out: 1, missed, unviable: 1, untested: 1 });
        assert_eq!(
            score.to_string(),
            "missed: a.rs:2:1: replace g\n\
             1 caught, 1 timed out, 1 missed, 1 unviable, 1 not tested\nscore: 66.6 %"
        );
    }

    #[test]
    fn without_an_earlier_run_there_are_no_outcomes() {
        let outcomes = Outcomes::load(Path::new("/nowhere/at/all")).unwrap();
        assert_eq!(outcomes.score(&[mutant("a")]), Score { untested: 1, ..Score::default() });
    }

    #[test]
    fn only_mutants_of_this_sample_count() {
        let mut outcomes = Outcomes::default();
        outcomes.add("a\nb\n", Outcome::Caught);
        assert_eq!(outcomes.score(&[mutant("a")]).caught, 1);
    }

    #[test]
    fn the_score_leaves_unviable_mutants_out_and_is_never_rounded_up_to_all() {
        let score = |caught, timed_out, missed, unviable| {
            let missed = vec![String::new(); missed];
            Score { caught, timed_out, missed, unviable, untested: 0 }.per_mille()
        };
        assert_eq!(score(289, 17, 28, 0), Some(916));
        assert_eq!(score(3, 0, 0, 90), Some(1000));
        assert_eq!(score(1999, 0, 1, 0), Some(999));
        assert_eq!(score(0, 0, 0, 5), None);
    }
}
