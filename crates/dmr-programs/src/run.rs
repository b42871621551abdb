//! Plays many programs: on rigs that several programs share, and counts what they reach.

use std::sync::Arc;

use dmr_sim::{Policy, Universe};
use dmr_streams::StreamPoolConfig;
use dmr_testkit::{Rig, RigConfig};

use crate::conflicts::Counts;
use crate::crew::Crew;
use crate::failure::{Failure, FailureKind};
use crate::player::{Options, Player, play_lines};
use crate::program::Program;
use crate::stack::MIB;
use crate::watch;

/// Bytes of a simulated device.
const CAPACITY: u64 = 256 * MIB;
/// Programs that share a simulated machine: it outlives their stacks and streams.
const TOGETHER: u32 = 25;
/// How many threads a program can have.
pub const THREADS: usize = 4;

/// Plays programs one after the other, most of them on a machine that others have used.
#[derive(Debug)]
pub struct Runner {
    crew: Crew,
    rig: Option<(Arc<Rig>, Policy, u32)>,
    options: Options,
    /// What all programs have reached.
    pub counts: Counts,
}

impl Runner {
    /// A runner that plays programs in this way.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { crew: Crew::new(THREADS), rig: None, options, counts: Counts::default() }
    }

    /// Plays a program on the simulated driver.
    ///
    /// # Errors
    ///
    /// What the program has shown. The next program gets a new machine.
    pub fn play(&mut self, program: &Program) -> Result<(), Failure> {
        let (rig, policy, used) = match self.rig.take() {
            Some((rig, policy, used)) if policy == program.policy && used < TOGETHER => {
                (rig, policy, used)
            }
            before => {
                drop(before);
                (Arc::new(simulated(program.policy, program.seed)), program.policy, 0)
            }
        };
        let counts = self.play_with_crew(&rig, program)?;
        self.counts.add(&counts);
        self.rig = Some((rig, policy, used + 1));
        Ok(())
    }

    /// Plays a program on a machine of its own.
    ///
    /// # Errors
    ///
    /// What the program has shown.
    pub fn play_alone(&mut self, program: &Program) -> Result<Counts, Failure> {
        let rig = Arc::new(simulated(program.policy, program.seed));
        self.play_with_crew(&rig, program)
    }

    fn play_with_crew(&mut self, rig: &Arc<Rig>, program: &Program) -> Result<Counts, Failure> {
        let played = play_on(rig, program, &self.options, &self.crew);
        if played.as_ref().is_err_and(|failure| failure.kind == FailureKind::Hang) {
            // A thread may never come back.
            self.crew = Crew::new(THREADS);
        }
        played
    }
}

/// Plays a program on a rig, simulated or not.
///
/// # Errors
///
/// What the program has shown. The rig cannot be used again then.
pub fn play_on(
    rig: &Arc<Rig>,
    program: &Program,
    options: &Options,
    crew: &Crew,
) -> Result<Counts, Failure> {
    let program = Arc::new(program.clone());
    let made = Player::new(rig, &program, options);
    let made = made.map_err(|error| Failure::at_end(FailureKind::UnexpectedError, error))?;
    let player = Arc::new(made);
    let played = play_lines(&player, crew).and_then(|()| player.end());
    watch::end();
    // A race that has led to another failure is what is wrong.
    let verdict = player.verdict();
    match (verdict, played) {
        (Err(race), _) => Err(race),
        (Ok(()), played) => played,
    }
}

/// A simulated machine of one small device, on which driver calls can be held and made to fail.
///
/// # Panics
///
/// If the simulated driver cannot be installed.
#[must_use]
pub fn simulated(policy: Policy, seed: u64) -> Rig {
    let builder = Universe::builder().devices(1).policy(policy).seed(seed).capacity(CAPACITY);
    let universe = builder.build().expect("the simulated driver");
    universe.on_entry(watch::on_entry);
    let streams = StreamPoolConfig::new().with_max_adopted(400);
    Rig::with(RigConfig { universe: Some(universe), streams, ..RigConfig::default() })
}
