//! Draws differential programs.

use dmr_sim::Policy;

use crate::generate::{self, Shape};
use crate::player::{Handover, Hazard, Omission};
use crate::program::{Program, Step};
use crate::random::Random;
use crate::stack::Stack;

/// Nanoseconds by which the first use of a handover is late. The host submits the second use in a
/// fraction of the shortest.
const LATE: [u64; 3] = [200_000, 400_000, 1_000_000];
/// Nanoseconds by which work of a line is late.
const DELAYS: [u64; 3] = [20_000, 50_000, 200_000];
/// Bytes of a block that is handed over: small enough for every configuration to pool it.
const BYTES: [usize; 3] = [4096, 16_384, 65_536];
/// Handovers of a program in which every use is declared.
const DECLARED: usize = 2;

/// The declarations that a racy program may omit, each with the resulting hazard.
pub(super) const OMISSIONS: [(Hazard, Omission); 8] = [
    (Hazard::ReadAfterWrite, Omission::Undeclared),
    (Hazard::ReadAfterWrite, Omission::DeclaredAsRead),
    (Hazard::WriteAfterRead, Omission::Undeclared),
    (Hazard::WriteAfterRead, Omission::DeclaredAsRead),
    (Hazard::WriteAfterWrite, Omission::Undeclared),
    (Hazard::WriteAfterWrite, Omission::DeclaredAsRead),
    (Hazard::UseAfterFree, Omission::Undeclared),
    (Hazard::UseBeforeAllocation, Omission::Undeclared),
];

const HAZARDS: [Hazard; 5] = [
    Hazard::ReadAfterWrite,
    Hazard::WriteAfterRead,
    Hazard::WriteAfterWrite,
    Hazard::UseAfterFree,
    Hazard::UseBeforeAllocation,
];

/// The delays of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delays {
    /// Some work is late, and the first use of each handover.
    Drawn,
    /// No delays: the control run.
    None,
}

/// A differential program.
#[derive(Clone, Debug)]
pub struct Differential {
    /// Its number, from which it is drawn.
    pub number: u64,
    /// The lines. [`Step::Delay`] is not among them.
    pub program: Program,
    /// Nanoseconds by which the work of each line is late.
    pub delays: Vec<u64>,
    /// Handovers, each after the line with this number.
    pub handovers: Vec<(usize, Handover)>,
}

impl Differential {
    /// Returns the number of lines and handovers.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.program.lines.len() + self.handovers.len()
    }

    /// Returns the omitted declaration, if there is one.
    #[must_use]
    pub fn omits(&self) -> Option<(Hazard, Omission)> {
        self.handovers.iter().find_map(|(_, it)| Some((it.hazard, it.omission?)))
    }
}

/// Draws the program of this number.
#[must_use]
pub fn draw(number: u64, delays: Delays) -> Differential {
    let round = number / Stack::ALL.len() as u64;
    let stack = Stack::ALL[(number % Stack::ALL.len() as u64) as usize];
    let mut program = generate::program(number, stack, Policy::Random, Shape::PLAIN);
    program.lines.retain(|line| !matches!(line.step, Step::Delay { .. }));
    let mut random = Random::new(number ^ 0xd1ff);
    let lines = program.lines.len();
    let mut handovers: Vec<_> = (0..DECLARED)
        .map(|_| (random.below(lines as u64) as usize, random.pick(&HAZARDS), None))
        .collect();
    if round % 3 == 2 {
        let (hazard, omission) = OMISSIONS[(round / 3) as usize % OMISSIONS.len()];
        handovers.push((random.below(lines as u64) as usize, hazard, Some(omission)));
    }
    let streams = program.streams as u64;
    let handovers = handovers.into_iter().map(|(line, hazard, omission)| {
        let home = random.below(streams);
        let other = (home + 1 + random.below(streams - 1)) % streams;
        let handover = Handover {
            hazard,
            omission,
            home: home as usize,
            other: other as usize,
            bytes: random.pick(&BYTES),
            delay: random.pick(&LATE),
            pattern: random.next_u64() as u32,
        };
        (line, handover)
    });
    let mut handovers: Vec<_> = handovers.collect();
    let late = |_| if random.one_in(4) { random.pick(&DELAYS) } else { 0 };
    let mut drawn: Vec<u64> = (0..lines).map(late).collect();
    if delays == Delays::None {
        drawn.fill(0);
        handovers.iter_mut().for_each(|(_, handover)| handover.delay = 0);
    }
    Differential { number, program, delays: drawn, handovers }
}
