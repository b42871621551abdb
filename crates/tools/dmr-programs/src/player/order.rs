//! The order in which threads execute the lines of a program: one at a time, except that a thread
//! that is held in a driver call does not delay the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::Footprint;
use super::{Played, Player};
use crate::conflicts::{Conflict, Relation};
use crate::crew::{Crew, Job};
use crate::failure::{Failure, FailureKind};
use crate::program::{Line, Step};
use crate::watch::{self, Gate};

/// The time after which a thread without progress is examined.
const PATIENCE: Duration = Duration::from_micros(300);
/// The time limit of a thread that is not asleep.
const BUSY: Duration = Duration::from_millis(20);
/// The time after which a call counts as hanging.
const HANGS: Duration = Duration::from_secs(10);

/// A line that a thread has begun.
struct UnderWay {
    line: usize,
    thread: usize,
    gate: Arc<Gate>,
    result: Arc<Job>,
    /// The number of the line before which it continues.
    until: usize,
}

/// Executes the lines of a program.
pub(crate) fn play_lines(player: &Arc<Player>, crew: &Crew) -> Played {
    let mut order = Order { player, crew, held: Vec::new() };
    let played = order.play();
    // Also after a failure: no thread is left in a call.
    let ended = order.release_where(|_| true);
    played.and(ended)
}

struct Order<'a> {
    player: &'a Arc<Player>,
    crew: &'a Crew,
    /// The lines in progress, in the order in which they began.
    held: Vec<UnderWay>,
}

impl Order<'_> {
    fn play(&mut self) -> Played {
        for at in 0..self.player.program().lines.len() {
            let Line { thread, hold, fail, step } = &self.player.program().lines[at];
            let thread = *thread;
            let hold = *hold;
            self.release_where(|held| held.until <= at || held.thread == thread)?;
            if self.held.is_empty() && hold.is_none() {
                watch::begin(None, *fail);
                let played = self.player.execute(at);
                note_fault(self.player, watch::end());
                played?;
            } else {
                if matches!(step, Step::Fork) {
                    // The failure of this thread would be in the child only.
                    self.player.execute(at)?;
                    continue;
                }
                let gate = Arc::new(Gate::default());
                let result = self.start(at, thread, &gate);
                let until = at + 1 + hold.map_or(0, |hold| hold.lines);
                self.wait(UnderWay { line: at, thread, gate, result, until })?;
            }
            if self.held.is_empty() {
                self.player.check_accounting(at)?;
            }
        }
        Ok(())
    }

    fn start(&self, at: usize, thread: usize, gate: &Arc<Gate>) -> Arc<Job> {
        let Line { hold, fail, .. } = self.player.program().lines[at];
        let player = Arc::clone(self.player);
        let gate = Arc::clone(gate);
        self.crew.start(thread, move |note| {
            watch::begin(hold.map(|hold| (hold, Arc::clone(&gate))), fail);
            note(player.execute(at));
            note_fault(&player, watch::end());
            drop(player);
            gate.done();
        })
    }

    /// Waits until the line is done or held. If it waits for a held thread, that thread continues.
    fn wait(&mut self, line: UnderWay) -> Played {
        let started = Instant::now();
        let mut last_look = started;
        loop {
            let state = line.gate.wait(PATIENCE);
            let is_done = state.is_done;
            let held_in = state.held_in;
            drop(state);
            if is_done {
                self.relate(line.line);
                return line.result.take();
            }
            if held_in.is_some() && !self.has_released(&line) {
                self.relate(line.line);
                self.held.push(line);
                return Ok(());
            }
            let is_stuck = self.crew.is_asleep(line.thread) || last_look.elapsed() > BUSY;
            if is_stuck && !self.held.is_empty() {
                // It is not held afterwards: the other thread might need its locks.
                line.gate.open();
                if let Err(failure) = self.let_first_go_on() {
                    return self.wait_for_end(line).and(Err(failure));
                }
                last_look = Instant::now();
            } else if started.elapsed() > HANGS {
                let text = self.player.program().lines[line.line].to_string();
                return Err(Failure::new(FailureKind::Hang, line.line, text));
            }
        }
    }

    fn has_released(&self, line: &UnderWay) -> bool {
        line.gate.wait(Duration::ZERO).is_open
    }

    /// Waits for the end of a line that was held and continues.
    fn wait_for_end(&mut self, line: UnderWay) -> Played {
        let started = Instant::now();
        loop {
            let is_done = line.gate.wait(PATIENCE).is_done;
            if is_done {
                return line.result.take();
            }
            // It may wait for another thread that is held.
            let is_stuck = self.crew.is_asleep(line.thread) || started.elapsed() > BUSY;
            if is_stuck && !self.held.is_empty() {
                let played = self.let_first_go_on();
                if played.is_err() {
                    return self.wait_for_end(line).and(played);
                }
            } else if started.elapsed() > HANGS {
                let text = self.player.program().lines[line.line].to_string();
                return Err(Failure::new(FailureKind::Hang, line.line, text));
            }
        }
    }

    /// Makes the thread continue that has been held for longest, because another waits for it.
    fn let_first_go_on(&mut self) -> Played {
        let first = self.held.remove(0);
        // Before counting: the waiting thread may hold a lock that counting needs.
        first.gate.open();
        let played = self.wait_for_end(first);
        self.player.count(Conflict::WaitedForHeldThread);
        played
    }

    fn release_where(&mut self, goes_on: impl Fn(&UnderWay) -> bool) -> Played {
        let mut played = Ok(());
        while let Some(at) = self.held.iter().position(&goes_on) {
            let line = self.held.remove(at);
            line.gate.open();
            played = played.and(self.wait_for_end(line));
        }
        played
    }

    /// Counts the relations of a line to the held threads.
    fn relate(&self, line: usize) {
        let mut state = self.player.state();
        let own = state.footprints.get(&line).cloned().unwrap_or_default();
        for held in &self.held {
            let Some(call) = held.gate.wait(Duration::ZERO).held_in else { continue };
            let theirs = state.footprints.get(&held.line).cloned().unwrap_or_default();
            let relation = relation(&own, &theirs);
            *state.counts.held.entry((call, relation)).or_default() += 1;
        }
    }
}

fn relation(own: &Footprint, theirs: &Footprint) -> Relation {
    let shares = |block: &_| theirs.blocks.contains(block);
    if own.retires.is_some() && own.retires == theirs.stream {
        Relation::Retires
    } else if own.frees.as_ref().is_some_and(shares) {
        Relation::Frees
    } else if own.blocks.iter().any(shares) {
        Relation::SameBlock
    } else if own.stream.is_some() && own.stream == theirs.stream {
        Relation::SameStream
    } else {
        Relation::Other
    }
}

fn note_fault(player: &Player, failed: Option<&'static str>) {
    if let Some(call) = failed {
        *player.state().counts.failed.entry(call).or_default() += 1;
    }
}
