//! Plays many programs, several on one rig, and counts the conflicts that they reach.

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
/// The maximum number of threads of a program.
pub const THREADS: usize = 4;

/// Plays programs one after the other, most of them on a machine that others have used.
#[derive(Debug)]
pub struct Runner {
    crew: Crew,
    rig: Option<(Arc<Rig>, Policy, u32)>,
    options: Options,
    /// The counts of all programs.
    pub counts: Counts,
    /// The number of pages that moved: memory that was mapped again after it had been mapped
    /// before.
    pub pages_moved: u64,
}

impl Runner {
    /// Makes a runner with these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            crew: Crew::new(THREADS),
            rig: None,
            options,
            counts: Counts::default(),
            pages_moved: 0,
        }
    }

    /// Plays a program on the simulated driver.
    ///
    /// # Errors
    ///
    /// The failure of the program. The next program gets a new machine.
    pub fn play(&mut self, program: &Program) -> Result<(), Failure> {
        let (rig, policy, used) = match self.rig.take() {
            Some((rig, policy, used)) if policy == program.policy && used < TOGETHER => {
                (rig, policy, used)
            }
            before => {
                before.map_or(Ok(()), |(rig, ..)| self.end_machine(rig))?;
                (Arc::new(simulated(program.policy, program.seed)), program.policy, 0)
            }
        };
        let mut counts = Counts::default();
        let played = self.play_with_crew(&rig, program, &mut counts);
        self.counts.add(&counts);
        played?;
        self.rig = Some((rig, policy, used + 1));
        Ok(())
    }

    /// Ends the machine that the last programs have shared.
    ///
    /// # Errors
    ///
    /// Memory is left on the machine, or the simulator has reported something.
    pub fn end(&mut self) -> Result<(), Failure> {
        self.rig.take().map_or(Ok(()), |(rig, ..)| self.end_machine(rig))
    }

    fn end_machine(&mut self, rig: Arc<Rig>) -> Result<(), Failure> {
        let calls = rig.universe().calls();
        let maps = calls.count("cuMemMap");
        let creates = calls.count("cuMemCreate");
        self.pages_moved += maps.saturating_sub(creates);
        let failed = |text: &str| Failure::at_end(FailureKind::MemoryLeft, text);
        let rig = Arc::try_unwrap(rig).map_err(|_| failed("a program still holds its machine"))?;
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rig.assert_clean()));
        ended.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            failed(&format!("the machine of earlier programs: {text}"))
        })
    }

    /// Plays a program on a machine of its own.
    ///
    /// # Errors
    ///
    /// The failure of the program.
    pub fn play_alone(&mut self, program: &Program) -> Result<Counts, Failure> {
        let rig = Arc::new(simulated(program.policy, program.seed));
        let mut counts = Counts::default();
        self.play_with_crew(&rig, program, &mut counts).map(|()| counts)
    }

    fn play_with_crew(
        &mut self,
        rig: &Arc<Rig>,
        program: &Program,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        let played = play_on(rig, program, &self.options, &self.crew, counts);
        if played.as_ref().is_err_and(|failure| failure.kind == FailureKind::Hang) {
            // A thread of this crew may never return.
            self.crew = Crew::new(THREADS);
        }
        played
    }
}

/// Plays a program on a rig, simulated or not. The conflicts that it reaches are added to `counts`,
/// also where it fails.
///
/// # Errors
///
/// The failure of the program. The rig cannot be used afterwards.
pub fn play_on(
    rig: &Arc<Rig>,
    program: &Program,
    options: &Options,
    crew: &Crew,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let program = Arc::new(program.clone());
    let made = Player::new(rig, &program, options);
    let made = made.map_err(|error| Failure::at_end(FailureKind::UnexpectedError, error))?;
    let player = Arc::new(made);
    let played = play_lines(&player, crew).and_then(|()| player.end_caught());
    watch::end();
    counts.add(&player.state().counts);
    // A race may be the cause of another failure, so it is reported first.
    let verdict = player.verdict();
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(player)));
    let dropped = dropped.map_err(|_| Failure::at_end(FailureKind::Panic, "the stack is dropped"));
    verdict.and(played).and(dropped)
}

/// Makes a simulated machine of one small device, on which driver calls can be held and made to
/// fail.
///
/// # Panics
///
/// If the simulated driver cannot be installed.
#[must_use]
pub fn simulated(policy: Policy, seed: u64) -> Rig {
    let builder = Universe::builder().devices(1).policy(policy).seed(seed).capacity(CAPACITY);
    let universe = builder.build().expect("the simulated driver");
    universe.on_entry(watch::on_entry);
    // Few, so that the slots of retired streams are used again.
    let streams = StreamPoolConfig::new().with_max_adopted(3);
    let rig = Rig::with(RigConfig { universe: Some(universe), streams, ..RigConfig::default() });
    // The kernels of the checks are loaded now, and not while a stream captures.
    rig.ops().delay(rig.streams().default_stream(), 1).expect("kernels");
    rig
}
