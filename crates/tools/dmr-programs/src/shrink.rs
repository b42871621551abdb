//! Shrinks a failing program to the fewest lines that fail in the same way.

use crate::failure::Failure;
use crate::player::Options;
use crate::program::{Program, Step};
use crate::run::Runner;

/// The largest number of programs that are tried.
const TRIES: usize = 3000;

/// Shrinks a program that fails with `failure`. Returns the smallest that was found, and its
/// failure.
#[must_use]
pub fn shrink(program: &Program, failure: &Failure, options: &Options) -> (Program, Failure) {
    let mut shrinker = Shrinker {
        runner: Runner::new(options.clone()),
        best: program.clone(),
        failure: failure.clone(),
        tries: 0,
    };
    while shrinker.without_lines() | shrinker.with_simpler_lines() {}
    (shrinker.best, shrinker.failure)
}

struct Shrinker {
    runner: Runner,
    best: Program,
    failure: Failure,
    tries: usize,
}

impl Shrinker {
    fn try_out(&mut self, program: Program) -> bool {
        self.tries += 1;
        if self.tries > TRIES {
            return false;
        }
        match self.runner.play_alone(&program) {
            Err(failure) if failure.kind == self.failure.kind => {
                self.best = program;
                self.failure = failure;
                true
            }
            _ => false,
        }
    }

    /// Removes lines: many at a time, then fewer.
    fn without_lines(&mut self) -> bool {
        let mut is_smaller = false;
        let mut size = self.best.lines.len().div_ceil(2);
        while size > 0 {
            let mut start = 0;
            while start < self.best.lines.len() {
                let mut program = self.best.clone();
                let end = (start + size).min(program.lines.len());
                program.lines.drain(start..end);
                if self.try_out(program) {
                    is_smaller = true;
                } else {
                    start += size;
                }
            }
            size /= 2;
        }
        is_smaller
    }

    /// Removes holds and faults, and all but one use of a launch, and puts all lines on one thread.
    fn with_simpler_lines(&mut self) -> bool {
        let mut is_simpler = false;
        for at in 0..self.best.lines.len() {
            let line = &self.best.lines[at];
            let mut simpler = Vec::new();
            if line.hold.is_some() {
                let mut without = line.clone();
                without.hold = None;
                simpler.push(without);
            }
            if let Some(hold) = line.hold.filter(|hold| hold.lines > 1) {
                let mut shorter = line.clone();
                shorter.hold = Some(crate::program::Hold { lines: hold.lines - 1, ..hold });
                simpler.push(shorter);
            }
            if line.fail.is_some() {
                let mut without = line.clone();
                without.fail = None;
                simpler.push(without);
            }
            if let Step::Launch { uses, .. } | Step::Open { uses, .. } = &line.step
                && uses.len() > 1
            {
                for nth in 0..uses.len() {
                    let mut fewer = line.clone();
                    if let Step::Launch { uses, .. } | Step::Open { uses, .. } = &mut fewer.step {
                        uses.remove(nth);
                    }
                    simpler.push(fewer);
                }
            }
            if line.thread > 0 {
                let mut first = line.clone();
                first.thread = 0;
                simpler.push(first);
            }
            for line in simpler {
                let mut program = self.best.clone();
                program.lines[at] = line;
                is_simpler |= self.try_out(program);
            }
        }
        is_simpler
    }
}
