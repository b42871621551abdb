//! A launch: its blocks are made resident one after another and run in turns.

use dmr_ptx_arith::lanes::Work;
use dmr_ptx_arith::{Lanes, Mask, WARP};

use super::block::{BlockState, ThreadBlock};
use super::clock::Clock;
use super::cluster::{self, Cluster, MOST_BLOCKS};
use super::fault::{Checks, Fault, FaultKind, Finished, Limits, Place, Thread};
use super::global::GlobalMemory;
use super::interpreter::{Faulted, Interpreter};
use super::program::{Kernel, Program, Symbol};
use super::registers::Sources;
use super::special::depends_on_block;
use super::warp::Warp;
use super::workspace::WithWorkspace;

/// The rounds in which every resident thread polls and no store changes memory, after which a
/// launch has failed.
const IDLE_ROUNDS: u32 = 4096;
/// The nanoseconds of such rounds after which it has failed although threads read the clock.
const LONGEST_WAIT: u64 = 10_000_000_000;
/// The rounds without a finished block after which one more becomes resident, in case it is waited
/// for by plain loads.
const PATIENCE: u32 = 256;
/// The maximum number of threads of a block.
const MOST_THREADS: u64 = 1024;

/// A launch of a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Launch<'a> {
    /// The program.
    pub program: &'a Program,
    /// The kernel, one of the program's.
    pub kernel: &'a Kernel,
    /// The blocks of the grid: x, y, z.
    pub grid: [u32; 3],
    /// The threads of a block: x, y, z.
    pub block: [u32; 3],
    /// The blocks of a cluster: x, y, z.
    pub cluster: [u32; 3],
    /// True for a cooperative launch: all blocks are resident at a time, and can synchronise as a
    /// grid.
    pub is_cooperative: bool,
    /// The dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The bytes of the parameters, each at its [`Param::offset`](crate::Param::offset).
    pub params: &'a [u8],
    /// The address of each of [`Program::globals`].
    pub globals: &'a [u64],
    /// The checks.
    pub checks: Checks,
    /// The bounds.
    pub limits: Limits,
}

impl<'a> Launch<'a> {
    /// Makes a launch without dynamic shared memory, parameters and globals, with every check and
    /// the default limits.
    #[must_use]
    pub fn new(program: &'a Program, kernel: &'a Kernel, grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            program,
            kernel,
            grid,
            block,
            cluster: [1; 3],
            is_cooperative: false,
            shared_bytes: 0,
            params: &[],
            globals: &[],
            checks: Checks::all(),
            limits: Limits::default(),
        }
    }

    /// Runs all threads of the launch.
    ///
    /// The result is the same for the same program, launch and memory. Blocks are resident from the
    /// first on; more become resident when the threads of all resident ones poll or wait, up to
    /// [`Limits::resident_blocks`].
    ///
    /// # Errors
    /// The first fault: then part of the launch has run, and `memory` has what it wrote.
    pub fn run(&self, memory: &mut dyn GlobalMemory) -> Result<Finished, Box<Fault>> {
        let shared = self.check().map_err(|kind| self.fault_before(kind))?;
        let mut cooperative;
        let memory = if self.is_cooperative {
            cooperative = WithWorkspace::new(memory);
            &mut cooperative
        } else {
            memory
        };
        let mut interpreter = Interpreter {
            code: &self.program.code,
            sources: Sources {
                code: &self.program.code,
                addresses: self.addresses(shared.static_bytes),
            },
            params: self.params,
            block: self.block,
            grid: self.grid,
            index: [0; 3],
            memory,
            checks: self.checks,
            limits: self.limits,
            executed: 0,
            thread_instructions: 0,
            clock: Clock::default(),
            printed: Vec::new(),
            polls: 0,
            recent: [0; super::interpreter::RECENT],
            changed: false,
            buffer: Vec::new(),
            unwritten: Vec::new(),
            scratch: Vec::new(),
            work: Work::default(),
            pieces: Vec::new(),
            results: Box::new([[0; WARP]; 2]),
            races: self.checks.global_races.then(Box::default),
            race: None,
            cluster: Cluster::default(),
            pc: 0,
            local_end: 0,
        };
        match self.run_blocks(&mut interpreter, shared.bytes) {
            Ok(()) if let Some(race) = interpreter.race => {
                Err(Box::new(Fault { printed: interpreter.printed, ..*race }))
            }
            Ok(()) => Ok(Finished {
                instructions: interpreter.executed,
                nanoseconds: interpreter.clock.now(interpreter.executed),
                thread_instructions: interpreter.thread_instructions,
                printed: interpreter.printed,
            }),
            Err(failure) => {
                let thread = Thread {
                    block: failure.block,
                    thread: interpreter.thread_index(failure.faulted.thread),
                };
                let place = interpreter.code.place(failure.faulted.pc);
                let kind = failure.faulted.kind;
                let fault = Fault { kind, thread, place, printed: interpreter.printed, end: None };
                Err(Box::new(match interpreter.race {
                    Some(race) => Fault {
                        printed: fault.printed.clone(),
                        end: Some(Box::new(fault)),
                        ..*race
                    },
                    None => fault,
                }))
            }
        }
    }

    fn fault_before(&self, kind: FaultKind) -> Box<Fault> {
        let place = Place { function: self.kernel.name.clone(), ..Place::default() };
        let thread = Thread::default();
        let printed = Vec::new();
        Box::new(Fault { kind, thread, place, printed, end: None })
    }

    /// Checks the launch against the kernel and the limits, and returns the shared memory of a
    /// block.
    fn check(&self) -> Result<SharedSize, FaultKind> {
        let invalid = |message: String| Err(FaultKind::InvalidLaunch(message));
        if let Some(refusal) = &self.kernel.refusal {
            return Err(FaultKind::Unsupported(refusal.to_string()));
        }
        let threads = volume(self.block);
        if threads == 0 || threads > MOST_THREADS {
            return invalid(format!(
                "{threads} threads a block: between 1 and {MOST_THREADS} are possible"
            ));
        }
        if self.grid.contains(&0) || self.cluster.contains(&0) {
            return invalid("a grid without blocks".to_owned());
        }
        let fits = |d: usize| self.grid[d].is_multiple_of(self.cluster[d]);
        if volume(self.cluster) > MOST_BLOCKS || !(0..3).all(fits) {
            return invalid(format!(
                "clusters of {:?} blocks in a grid of {:?}",
                self.cluster, self.grid
            ));
        }
        if self.grid[1] > 65_535 || self.grid[2] > 65_535 || self.grid[0] > 0x7fff_ffff {
            return invalid(format!("a grid of {:?} blocks", self.grid));
        }
        if let Some(most) = self.kernel.max_threads.filter(|&most| threads > u64::from(most)) {
            return invalid(format!("{threads} threads a block: the kernel allows {most}"));
        }
        if let Some(required) =
            self.kernel.required_threads.filter(|&required| required != self.block)
        {
            return invalid(format!(
                "blocks of {:?} threads: the kernel requires {required:?}",
                self.block
            ));
        }
        if self.params.len() < self.kernel.param_bytes {
            return invalid(format!(
                "{} bytes of parameters of {}",
                self.params.len(),
                self.kernel.param_bytes
            ));
        }
        if self.globals.len() != self.program.globals.len() {
            return invalid(format!(
                "{} addresses for {} globals",
                self.globals.len(),
                self.program.globals.len()
            ));
        }
        if self.kernel.local_bytes > u64::from(self.limits.local_bytes) {
            return invalid(format!("{} bytes of local memory a thread", self.kernel.local_bytes));
        }
        let align =
            self.kernel.shared.iter().map(|variable| variable.align).max().unwrap_or(1).max(16);
        let size = self
            .kernel
            .shared_bytes
            .checked_next_multiple_of(align)
            .filter(|&size| size <= 1 << 32);
        let static_bytes =
            if self.shared_bytes == 0 { Some(self.kernel.shared_bytes) } else { size };
        let bytes = static_bytes.and_then(|bytes| bytes.checked_add(u64::from(self.shared_bytes)));
        match (bytes, size) {
            (Some(bytes), Some(size))
                if bytes <= u64::from(self.limits.shared_bytes).min(cluster::RANKED) =>
            {
                Ok(SharedSize { static_bytes: size, bytes: bytes as usize })
            }
            _ => invalid(format!(
                "more than {} bytes of shared memory a block",
                self.limits.shared_bytes
            )),
        }
    }

    /// Returns the value of each address that the launch determines.
    fn addresses(&self, static_bytes: u64) -> Vec<Lanes> {
        let address = |symbol: &Symbol| match *symbol {
            Symbol::Global(global, offset) => {
                self.globals.get(global as usize).copied().unwrap_or(0).wrapping_add_signed(offset)
            }
            Symbol::Shared(variable, offset) => {
                let found = self.kernel.shared.iter().find(|shared| shared.variable == variable);
                found
                    .map_or(0, |shared| shared.offset.unwrap_or(static_bytes))
                    .wrapping_add_signed(offset)
            }
        };
        self.program.code.symbols.iter().map(|symbol| [address(symbol); WARP]).collect()
    }

    fn run_blocks(
        &self,
        interpreter: &mut Interpreter<'_>,
        shared: usize,
    ) -> Result<(), Box<Failure>> {
        let total = volume(self.grid);
        let mut resident: Vec<ThreadBlock> = Vec::new();
        let mut spare: Vec<ThreadBlock> = Vec::new();
        let mut next = 0;
        let mut idle = 0;
        let mut rounds = 0;
        let mut idle_since = (0, 0);
        loop {
            if resident.is_empty() {
                if next == total {
                    return Ok(());
                }
                self.start(interpreter, &mut resident, &mut next, shared, &mut spare);
            }
            interpreter.changed = false;
            rounds += 1;
            let cluster = volume(self.cluster) as usize;
            for blocks in resident.chunks_mut(cluster) {
                run_cluster(interpreter, blocks)?;
            }
            let mut index = 0;
            while index < resident.len() {
                let end = (index + cluster).min(resident.len());
                if resident[index..end].iter().all(ThreadBlock::is_finished) {
                    rounds = 0;
                    spare.extend(resident.drain(index..end));
                } else {
                    index = end;
                }
            }
            let polls = |warp: &Warp| !warp.is_ready() || warp.polling;
            let all_poll = resident.iter().all(|block| block.warps.iter().all(polls));
            if resident.is_empty() || (!all_poll && rounds < PATIENCE) {
                idle = 0;
                continue;
            }
            rounds = 0;
            let room = (self.limits.resident_blocks as usize).saturating_sub(resident.len());
            if next < total && room > 0 {
                let more = (resident.len() / 2).max(1).min(room).div_ceil(cluster);
                for _ in 0..more {
                    if next < total {
                        self.start(interpreter, &mut resident, &mut next, shared, &mut spare);
                    }
                }
            } else if interpreter.changed || !all_poll {
                idle = 0;
            } else {
                let now = interpreter.clock.now(interpreter.executed);
                let reads = interpreter.clock.reads();
                if idle == 0 {
                    idle_since = (now, reads);
                }
                idle += 1;
                // Threads that read the clock may wait for a time.
                let waited = now.wrapping_sub(idle_since.0);
                let is_timed = reads != idle_since.1 && waited < LONGEST_WAIT;
                if idle > IDLE_ROUNDS && !is_timed {
                    return Err(no_progress(&resident, total - next));
                }
            }
        }
    }

    /// Makes the blocks of a cluster resident.
    fn start(
        &self,
        interpreter: &Interpreter<'_>,
        resident: &mut Vec<ThreadBlock>,
        next: &mut u64,
        shared: usize,
        spare: &mut Vec<ThreadBlock>,
    ) {
        for _ in 0..volume(self.cluster) {
            resident.push(self.block(interpreter, *next, shared, spare));
            *next += 1;
        }
    }

    /// Makes a block resident: of the state of a finished one, if there is one.
    fn block(
        &self,
        interpreter: &Interpreter<'_>,
        start: u64,
        shared: usize,
        spare: &mut Vec<ThreadBlock>,
    ) -> ThreadBlock {
        let index = cluster::block_index(start, self.grid, self.cluster);
        let [x, y, z] = index.map(u64::from);
        let number = x + u64::from(self.grid[0]) * (y + u64::from(self.grid[1]) * z);
        let mut block = spare.pop().unwrap_or_else(|| self.new_block(interpreter, shared));
        block.state.restart(number, index);
        let entry = interpreter.code.functions.get(self.kernel.function as usize);
        let (pc, frame) = entry.map_or((0, 0), |entry| (entry.entry, entry.frame_bytes as u32));
        for warp in &mut block.warps {
            warp.restart(pc, frame);
            for (at, &register) in interpreter.code.specials.iter().enumerate() {
                if depends_on_block(register) {
                    let lanes = self.special(register, index, warp.number as usize, shared);
                    warp.specials.set(at, &lanes);
                }
            }
        }
        block
    }

    /// Makes the state of a block.
    fn new_block(&self, interpreter: &Interpreter<'_>, shared: usize) -> ThreadBlock {
        let threads = volume(self.block) as usize;
        let entry = interpreter.code.functions.get(self.kernel.function as usize);
        let (registers, frame) =
            entry.map_or((1, 0), |entry| (entry.registers as usize, entry.frame_bytes as usize));
        let make = |number: usize| {
            let lanes = (threads - number * WARP).min(WARP);
            let mut warp = Warp::new(number as u32, ((1u64 << lanes) - 1) as Mask);
            warp.registers.reserve(registers.max(1));
            warp.local.reserve(frame);
            warp.specials.reserve(interpreter.code.specials.len());
            for (at, &register) in interpreter.code.specials.iter().enumerate() {
                warp.specials.set(at, &self.special(register, [0; 3], number, shared));
            }
            warp
        };
        let warps: Vec<Warp> = (0..threads.div_ceil(WARP)).map(make).collect();
        ThreadBlock { state: BlockState::new(shared, warps.len(), self.checks), warps }
    }
}

/// The shared memory of a block.
struct SharedSize {
    /// The offset of dynamic shared memory.
    static_bytes: u64,
    bytes: usize,
}

struct Failure {
    block: [u32; 3],
    faulted: Faulted,
}

/// Runs the blocks of a cluster, each for a round.
fn run_cluster(
    interpreter: &mut Interpreter<'_>,
    blocks: &mut [ThreadBlock],
) -> Result<(), Box<Failure>> {
    for rank in 0..blocks.len() {
        if blocks.len() > 1 {
            cluster::exchange(interpreter, blocks, rank);
        }
        let result = run_round(interpreter, &mut blocks[rank]);
        if blocks.len() > 1 {
            cluster::exchange(interpreter, blocks, rank);
        }
        result?;
    }
    let is_complete = cluster::complete(interpreter, blocks);
    let waits = |block: &ThreadBlock| !block.is_ready() && !block.is_finished();
    let is_stuck = !is_complete && blocks.iter().all(|block| !block.is_ready());
    match blocks.iter().find(|block| waits(block)).filter(|_| is_stuck) {
        None => Ok(()),
        Some(block) => {
            let faulted = block.describe_stuck();
            Err(Box::new(Failure { block: block.state.index, faulted }))
        }
    }
}

/// Runs every warp of a block for a slice.
fn run_round(
    interpreter: &mut Interpreter<'_>,
    block: &mut ThreadBlock,
) -> Result<(), Box<Failure>> {
    let index = block.state.index;
    interpreter.index = index;
    let failure = |faulted| Box::new(Failure { block: index, faulted });
    for number in 0..block.warps.len() {
        let warp = &mut block.warps[number];
        if !warp.is_ready() {
            continue;
        }
        interpreter.run_warp(&mut block.state, warp).map_err(|faulted| failure(*faulted))?;
        block.complete_barriers(interpreter.checks).map_err(|faulted| failure(*faulted))?;
    }
    Ok(())
}

fn no_progress(resident: &[ThreadBlock], waiting: u64) -> Box<Failure> {
    let block = resident.first();
    let warp = block.and_then(|block| block.warps.iter().find(|warp| warp.is_ready()));
    let group = warp.and_then(|warp| warp.groups.iter().find(|group| group.is_ready()));
    let message = format!(
        "every thread of the {} resident blocks polls memory that no thread changes, and {waiting} blocks have not started",
        resident.len()
    );
    let thread = warp.map_or(0, |warp| warp.number * WARP as u32)
        + group.map_or(0, |group| group.mask.trailing_zeros() % WARP as u32);
    Box::new(Failure {
        block: block.map_or([0; 3], |block| block.state.index),
        faulted: Faulted {
            kind: FaultKind::NoProgress(message),
            thread,
            pc: group.map_or(0, |group| group.pc),
        },
    })
}

pub(super) fn volume(of: [u32; 3]) -> u64 {
    of.iter().fold(1, |volume, &side| volume.saturating_mul(u64::from(side)))
}
