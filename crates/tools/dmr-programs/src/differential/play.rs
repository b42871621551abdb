//! Plays differential programs: for the judge and on the driver under test.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use dmr_sim::{Policy, ReportKind};
use dmr_testkit::Rig;

use super::draw::Differential;
use crate::conflicts::{Conflict, Counts};
use crate::failure::{Failure, FailureKind};
use crate::player::{HandedOver, Options, Player};
use crate::run::simulated;
use crate::watch;

/// Programs that share a simulated machine.
const TOGETHER: u32 = 25;

/// The observations of one run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The simulator's findings; empty on a GPU.
    pub reports: BTreeSet<String>,
    /// The first check that has found a wrong byte.
    pub wrong: Option<String>,
    /// The handover with an omitted declaration: `None` if there is none or it was not played.
    pub omitted: Option<HandedOver>,
    /// A digest of the visible part of the library's path.
    pub path: u64,
}

/// The driver on which programs are played.
#[derive(Debug)]
pub struct Stage {
    policy: Option<Policy>,
    rig: Option<(Arc<Rig>, u32)>,
}

impl Stage {
    /// Makes a stage on the GPU of this process. All programs share one device and one stream pool.
    #[must_use]
    pub const fn gpu() -> Self {
        Self { policy: None, rig: None }
    }

    /// Makes a stage on simulated machines.
    #[must_use]
    pub const fn simulated(policy: Policy) -> Self {
        Self { policy: Some(policy), rig: None }
    }

    /// Plays a program.
    ///
    /// # Errors
    ///
    /// The failure of a program, except for races and wrong bytes: no stack may return an
    /// unexpected error, count wrongly or keep memory, however its blocks are used.
    pub fn play(&mut self, it: &Differential) -> Result<Observation, Failure> {
        let (rig, used) = self.rig.take().unwrap_or_else(|| (self.rig(it.program.seed), 0));
        let played = play_on(&rig, it)?;
        // A report stays with its machine: the next program gets another.
        let is_over = !played.reports.is_empty() || used + 1 == TOGETHER;
        if self.policy.is_none() || !is_over {
            self.rig = Some((rig, used + 1));
        }
        Ok(played)
    }

    fn rig(&self, seed: u64) -> Arc<Rig> {
        Arc::new(match self.policy {
            Some(policy) => simulated(policy, seed),
            None => Rig::new(),
        })
    }
}

fn play_on(rig: &Arc<Rig>, it: &Differential) -> Result<Observation, Failure> {
    let program = Arc::new(it.program.clone());
    let made = Player::new(rig, &program, &Options::default());
    let player = made.map_err(|error| Failure::at_end(FailureKind::UnexpectedError, error))?;
    let mut path = Path::default();
    let mut omitted = None;
    for (at, delay) in it.delays.iter().enumerate() {
        if *delay > 0 {
            player.delay_line(at, *delay)?;
        }
        player.execute(at)?;
        path.allocated(player.address_of(at));
        for (_, handover) in it.handovers.iter().filter(|(line, _)| *line == at) {
            let handed_over = player.hand_over(at, handover)?;
            path.note(&handed_over.map(|it| it.same_memory));
            if handover.omission.is_some() {
                omitted = handed_over;
            }
        }
        player.check_accounting(at)?;
    }
    let ended = player.end_caught();
    watch::end();
    let wrong = match ended {
        Ok(()) => {
            path.reached(&player.state().counts);
            None
        }
        Err(wrong) if wrong.kind == FailureKind::WrongByte => Some(wrong.to_string()),
        Err(failure) => return Err(failure),
    };
    let reports = rig.simulator().map(|universe| universe.reports()).unwrap_or_default();
    let name = |kind: ReportKind| format!("{kind:?}");
    let reports = reports.iter().map(|report| name(report.kind)).collect();
    Ok(Observation { reports, wrong, omitted, path: path.digest.finish() })
}

/// The digest of a path: the same in every process.
#[derive(Default)]
struct Path {
    digest: DefaultHasher,
    addresses: Vec<u64>,
}

impl Path {
    fn note(&mut self, what: &impl Hash) {
        what.hash(&mut self.digest);
    }

    /// Records whether there is a block, and which earlier one had its address.
    fn allocated(&mut self, address: Option<u64>) {
        let before = address.map(|address| self.addresses.iter().position(|it| *it == address));
        self.note(&before);
        self.addresses.extend(address);
    }

    /// Records the conflicts that the calls have reached and that are visible without the
    /// simulator.
    fn reached(&mut self, counts: &Counts) {
        let seen = counts.conflicts.iter().filter(|(conflict, _)| **conflict != Conflict::Ladder);
        seen.for_each(|it| it.hash(&mut self.digest));
    }
}
