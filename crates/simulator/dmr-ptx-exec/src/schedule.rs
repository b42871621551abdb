//! The scheduling of a launch: its blocks are made resident one after another and run in turns.

use dmr_ptx_arith::{Mask, WARP};

use super::block::{BlockState, ThreadBlock};
use super::cluster;
use super::fault::FaultKind;
use super::interpreter::{Faulted, Interpreter};
use super::launch::{Launch, volume};
use super::special::depends_on_block;
use super::warp::Warp;

/// The rounds in which every resident thread polls and no store changes memory, after which a
/// launch has failed.
const IDLE_ROUNDS: u32 = 4096;
/// The nanoseconds of such rounds after which it has failed although threads read the clock.
const LONGEST_WAIT: u64 = 10_000_000_000;
/// The rounds without a finished block after which one more becomes resident, in case it is waited
/// for by plain loads.
const PATIENCE: u32 = 256;
impl Launch<'_> {
    /// Runs the blocks in rounds, until all have ended.
    ///
    /// A round runs each resident block. Blocks that wait for others, as in decoupled look-back,
    /// get them: one more becomes resident when all resident threads poll or wait.
    pub(super) fn run_blocks(
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

/// A fault, and the block in which it is.
pub(super) struct Failure {
    pub(super) block: [u32; 3],
    pub(super) faulted: Faulted,
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
