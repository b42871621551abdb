//! Compares the judge's verdicts with the bytes on the driver under test, and counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::draw::{Differential, OMISSIONS};
use super::play::Observation;
use crate::failure::Failure;
use crate::player::{Hazard, Omission};
use crate::stack::Stack;

/// The judge's verdict on a program: one line of text, which one process prints and another parses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The program's number.
    pub number: u64,
    /// The classes of the findings; none: clean.
    pub classes: BTreeSet<String>,
    /// `true` if the handover with an omitted declaration had the same memory; `None`: not played.
    pub same_memory: Option<bool>,
    /// The digest of the path.
    pub path: u64,
}

impl Verdict {
    /// Returns the verdict of a program that the simulator has played.
    #[must_use]
    pub fn new(number: u64, played: &Observation) -> Self {
        Self {
            number,
            classes: played.reports.clone(),
            same_memory: played.omitted.map(|it| it.same_memory),
            path: played.path,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match self.same_memory {
            None => "-",
            Some(true) => "same",
            Some(false) => "other",
        };
        write!(f, "verdict {} {:x} {memory}", self.number, self.path)?;
        self.classes.iter().try_for_each(|class| write!(f, " {class}"))
    }
}

impl FromStr for Verdict {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || format!("{line:?} is no verdict");
        let mut words = line.split(' ');
        let head = [words.next(), words.next(), words.next(), words.next()];
        let [Some("verdict"), Some(number), Some(path), Some(memory)] = head else {
            return Err(wrong());
        };
        Ok(Self {
            number: number.parse().map_err(|_| wrong())?,
            path: u64::from_str_radix(path, 16).map_err(|_| wrong())?,
            same_memory: match memory {
                "-" => None,
                "same" => Some(true),
                "other" => Some(false),
                _ => return Err(wrong()),
            },
            classes: words.map(str::to_owned).collect(),
        })
    }
}

/// The number of programs of one kind, and of those with a wrong byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The number of programs.
    pub programs: u64,
    /// The number of programs with a check that found a wrong byte.
    pub wrong: u64,
}

impl Shown {
    fn add(&mut self, is_wrong: bool) {
        self.programs += 1;
        self.wrong += u64::from(is_wrong);
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.wrong, self.programs))
    }
}

/// The table of a differential run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Lines and handovers.
    pub steps: u64,
    /// Programs by stack.
    pub stacks: BTreeMap<Stack, u64>,
    /// Programs that declare every use. The judge must call them clean.
    pub clean: Shown,
    /// Programs that omit a declaration and that the judge calls clean, because no second block
    /// had the memory, or the stack waited: by omission and stack.
    pub harmless: BTreeMap<(Hazard, Omission, Stack), Shown>,
    /// Programs that the judge calls racy, by omission and stack.
    pub racy: BTreeMap<(Hazard, Omission, Stack), Shown>,
    /// Programs that the judge calls racy, by each class that it names.
    pub classes: BTreeMap<String, Shown>,
    /// Programs whose handover was played in one run only, or with other memory.
    pub other_handover: u64,
    /// Programs without a wrong byte whose visible path differs.
    pub other_path: Shown,
    /// The faults: each fails the test.
    pub faults: Vec<String>,
}

impl Tally {
    /// Compares one program.
    pub fn add(&mut self, it: &Differential, verdict: &Verdict, played: &Observation) {
        let number = it.number;
        let stack = it.program.stack;
        self.steps += it.steps() as u64;
        *self.stacks.entry(stack).or_default() += 1;
        let is_wrong = played.wrong.is_some();
        if !is_wrong {
            self.other_path.programs += 1;
            self.other_path.wrong += u64::from(verdict.path != played.path);
        }
        let Verdict { classes, same_memory, .. } = verdict;
        let found = played.wrong.as_deref().unwrap_or("every byte is right");
        let mut fault = |text| {
            let omits = it.omits().map(|(hazard, omission)| format!(" ({hazard}, {omission})"));
            let omits = omits.unwrap_or_default();
            self.faults.push(format!("program {number} on {stack}{omits} {text}: {found}"));
        };
        if *same_memory != played.omitted.map(|it| it.same_memory) {
            self.other_handover += 1;
            return;
        }
        let Some((hazard, omission)) = it.omits().filter(|_| same_memory.is_some()) else {
            self.clean.add(is_wrong);
            if !classes.is_empty() {
                fault(format!("declares every use, and the judge calls it racy, {classes:?}"));
            } else if is_wrong {
                fault("is clean to the judge".to_owned());
            }
            return;
        };
        let sort = (hazard, omission, stack);
        if classes.is_empty() {
            if is_wrong {
                fault("is clean to the judge".to_owned());
            } else if !hazard.needs_reuse() {
                fault("leaves that out, and is clean to the judge".to_owned());
            }
            self.harmless.entry(sort).or_default().add(is_wrong);
            return;
        }
        self.racy.entry(sort).or_default().add(is_wrong);
        for class in classes {
            self.classes.entry(class.clone()).or_default().add(is_wrong);
        }
    }

    /// Counts a program with a failure other than a wrong byte.
    pub fn failed(&mut self, it: &Differential, failure: &Failure) {
        let number = it.number;
        let stack = it.program.stack;
        self.faults.push(format!("program {number} on {stack}: {failure}"));
    }

    /// Returns the number of programs that the judge calls racy, and of those with a wrong byte.
    #[must_use]
    pub fn racy_in_all(&self) -> Shown {
        self.racy.values().fold(Shown::default(), |all, it| Shown {
            programs: all.programs + it.programs,
            wrong: all.wrong + it.wrong,
        })
    }

    /// Returns the omissions that have shown no wrong byte on any stack, and the classes of the
    /// judge that have shown none. Omissions that no program has made are among them.
    #[must_use]
    pub fn not_shown(&self) -> BTreeSet<String> {
        let is_shown = |(hazard, omission)| {
            let of_it = |(key, it): (&(Hazard, Omission, Stack), &Shown)| {
                (key.0, key.1) == (hazard, omission) && it.wrong > 0
            };
            self.racy.iter().any(of_it)
        };
        let omissions = OMISSIONS.iter().filter(|it| !is_shown(**it));
        let classes = self.classes.iter().filter(|(_, it)| it.wrong == 0);
        let omissions = omissions.map(|(hazard, omission)| format!("{hazard}, {omission}"));
        omissions.chain(classes.map(|(class, _)| class.clone())).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let programs: u64 = self.stacks.values().sum();
        writeln!(f, "{} steps in {programs} programs on {} stacks", self.steps, self.stacks.len())?;
        writeln!(f, "{:>9}  programs that declare every use have shown a wrong byte", self.clean)?;
        writeln!(
            f,
            "{:>9}  of those without a wrong byte took another path than for the judge",
            self.other_path
        )?;
        writeln!(
            f,
            "{:>9}  programs handed over other memory than for the judge: not compared",
            self.other_handover
        )?;
        writeln!(f, "\nracy programs that showed a wrong byte, of all; (clean to the judge):")?;
        write!(f, "{:42}", "")?;
        self.stacks.keys().try_for_each(|stack| write!(f, " {stack:>14}"))?;
        for (hazard, omission) in OMISSIONS {
            write!(f, "\n{hazard:>22}, {omission:<18}")?;
            for stack in self.stacks.keys() {
                let key = (hazard, omission, *stack);
                let racy = self.racy.get(&key).map(Shown::to_string);
                let harmless = self.harmless.get(&key).map(|it| format!("({it})"));
                let cell: Vec<_> = racy.into_iter().chain(harmless).collect();
                write!(f, " {:>14}", cell.join(" "))?;
            }
        }
        writeln!(f, "\n\nby class of the judge:")?;
        self.classes.iter().try_for_each(|(class, it)| writeln!(f, "{it:>16}  {class}"))
    }
}
