//! The execution of a warp: the choice of its groups, and one instruction after another.

use dmr_ptx_arith::lanes::{Piece, Work};
use dmr_ptx_arith::{Lanes, Mask, WARP};

use super::block::BlockState;
use super::clock::Clock;
use super::cluster::Cluster;
use super::code::{Op, Value};
use super::fault::{Checks, Fault, FaultKind, Limits};
use super::global::GlobalMemory;
use super::program::Code;
use super::registers::Sources;
use super::warp::{LaneGroup, State, Warp};
use crate::races::Races;

/// The instructions that a warp runs before the next warp does.
const SLICE: u32 = 1024;
/// The instructions that a group runs before the others of its warp are considered.
const TURN: u32 = 256;
/// A ready group that was skipped for this many instructions runs next, regardless of rank.
const STARVED: u32 = 1024;
/// The polls after which a warp has spent its slice.
pub(super) const POLLS: u32 = 6;
/// The number of atomic reads that are compared to find polls.
pub(super) const RECENT: usize = 8;

/// A fault of a lane of the running group.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) kind: FaultKind,
    pub(super) lane: usize,
}

impl Stop {
    pub(super) fn new(kind: FaultKind, lane: usize) -> Box<Self> {
        Box::new(Self { kind, lane })
    }

    pub(super) fn invalid(message: impl Into<String>, mask: Mask) -> Box<Self> {
        Self::new(FaultKind::Invalid(message.into()), mask.trailing_zeros() as usize)
    }
}

/// The way on after an instruction.
pub(super) enum Flow {
    /// The next instruction.
    Next,
    /// The instruction at the program counter, which it has set.
    Jump,
    /// The choice of a group: lanes have split, wait or have exited.
    Choose,
}

/// The state that all blocks of a launch share while they run.
pub(super) struct Interpreter<'a> {
    pub(super) code: &'a Code,
    pub(super) sources: Sources<'a>,
    pub(super) params: &'a [u8],
    /// The threads of a block, and the blocks of the grid.
    pub(super) block: [u32; 3],
    pub(super) grid: [u32; 3],
    /// The index of the block that runs.
    pub(super) index: [u32; 3],
    pub(super) memory: &'a mut dyn GlobalMemory,
    pub(super) checks: Checks,
    pub(super) limits: Limits,
    pub(super) executed: u64,
    pub(super) thread_instructions: u64,
    pub(super) clock: Clock,
    pub(super) printed: Vec<u8>,
    /// The polls of the running warp since it began its slice or stored a new value.
    pub(super) polls: u32,
    /// The last atomic reads of the running warp, as hashes of the instruction, the address and the
    /// value.
    pub(super) recent: [u64; RECENT],
    /// True if a store has changed memory since the launch last looked.
    pub(super) changed: bool,
    /// The bytes of the load or store that runs.
    pub(super) buffer: Vec<u8>,
    /// For each byte of the run that was read last, whether it is undefined: 0 or 0xff; empty if
    /// none is.
    pub(super) unwritten: Vec<u8>,
    /// The results of the operation between lanes that runs, and what it keeps between
    /// instructions.
    pub(super) scratch: Vec<Lanes>,
    pub(super) work: Work,
    /// The accesses of the transfer of matrices that runs.
    pub(super) pieces: Vec<Piece>,
    /// The results of the arithmetic instruction that runs.
    pub(super) results: Box<[Lanes; 2]>,
    /// The accesses to global memory, if their races are checked.
    pub(super) races: Option<Box<Races>>,
    /// The first race of the launch.
    pub(super) race: Option<Box<Fault>>,
    pub(super) cluster: Cluster,
    /// The instruction that runs.
    pub(super) pc: u32,
    /// The end of local memory of the group that runs.
    pub(super) local_end: u32,
}

/// The place of a fault: the thread of a block, and the instruction.
#[derive(Debug)]
pub(super) struct Faulted {
    pub(super) kind: FaultKind,
    pub(super) thread: u32,
    pub(super) pc: u32,
}

impl Interpreter<'_> {
    /// Runs a warp until its slice is spent or all of its lanes wait or have exited.
    ///
    /// The lane group that runs is taken out of the warp's list, so that it and the warp can both
    /// be borrowed. A warp in which every ready group has polled in turn gives its slice up: what
    /// they poll for is stored by another warp.
    pub(super) fn run_warp(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
    ) -> Result<(), Box<Faulted>> {
        self.polls = 0;
        self.recent = [0; RECENT];
        self.clock.start_slice();
        let mut left = SLICE;
        let mut polling = 0;
        warp.polling = false;
        while left > 0 && !warp.polling {
            if warp.groups.len() > 1 {
                warp.merge(LaneGroup::is_ready);
            }
            let Some((index, forced)) = choose(warp) else { break };
            let mut group = warp.groups.swap_remove(index);
            let rank = warp.groups.iter().filter(|f| f.is_ready()).map(LaneGroup::rank).min();
            let rank = rank.filter(|_| !forced);
            let result = self.run_group(block, warp, &mut group, rank, left.min(TURN));
            let ran = result.map_err(|stop| self.faulted(warp, *stop))?;
            left = left.saturating_sub(ran.max(1));
            for other in warp.groups.iter_mut().filter(|other| other.is_ready()) {
                other.passed_over = other.passed_over.saturating_add(ran);
            }
            if group.mask != 0 {
                warp.groups.push(group);
            }
            polling = if self.polls >= POLLS { polling + 1 } else { 0 };
            if polling > 0 {
                // The others run next: one of them may store what this one polls for.
                let ready = warp.groups.iter_mut().filter(|group| group.is_ready());
                let mut others = 0;
                for other in ready {
                    if other.passed_over > 0 {
                        other.passed_over = other.passed_over.saturating_add(STARVED);
                    }
                    others += 1;
                }
                warp.polling = polling >= others;
                self.polls = 0;
            }
            if self.executed > self.limits.instructions {
                let kind = FaultKind::InstructionLimit(self.limits.instructions);
                let lane = warp.live.trailing_zeros() as usize % WARP;
                return Err(self.faulted(warp, Stop { kind, lane }));
            }
            self.run_completed(block, warp)?;
        }
        Ok(())
    }

    /// Returns the fault of a lane of a warp at the instruction that runs.
    pub(super) fn faulted(&self, warp: &Warp, stop: Stop) -> Box<Faulted> {
        let thread = warp.number * WARP as u32 + stop.lane as u32;
        Box::new(Faulted { kind: stop.kind, thread, pc: self.pc })
    }

    /// Runs a group until another one comes first, it splits, waits or exits, or has run `most`
    /// instructions.
    fn run_group(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        next: Option<(std::cmp::Reverse<usize>, u32)>,
        most: u32,
    ) -> Result<u32, Box<Stop>> {
        group.passed_over = 0;
        self.local_end = group.local_end;
        let code = self.code;
        let mut ran = 0;
        let mut has_undefined = !warp.undefined.is_empty();
        while ran < most && self.polls < POLLS {
            self.pc = group.pc;
            let Some(inst) = code.insts.get(group.pc as usize) else {
                return Err(Stop::invalid("the program counter left the program", group.mask));
            };
            ran += 1;
            let mask = warp.guarded(group, inst.guard);
            if has_undefined {
                self.follow(warp, group, inst, mask)?;
                has_undefined = !warp.undefined.is_empty();
            }
            self.executed += 1;
            // Without an instruction for it, a count of bits takes longer than the test.
            let lanes = if mask == Mask::MAX { WARP as u32 } else { mask.count_ones() };
            self.thread_instructions += u64::from(lanes);
            if mask == 0 {
                group.pc += 1;
            } else if let Op::Arith(inst) = &inst.op {
                self.arith(warp, group.base, inst, mask);
                group.pc += 1;
            } else {
                match self.execute(block, warp, group, &inst.op, mask)? {
                    Flow::Next => group.pc += 1,
                    Flow::Jump => {}
                    Flow::Choose => break,
                }
                has_undefined = !warp.undefined.is_empty();
            }
            if let Some(next) = next
                && group.rank() >= next
            {
                break;
            }
        }
        Ok(ran)
    }

    /// Counts a poll: an atomic read of the value that the same instruction has just read at the
    /// same address.
    pub(super) fn count_poll(&mut self, address: u64, value: &[u8]) {
        let mut hash = u64::from(self.pc).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ address;
        for part in value.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            hash = (hash ^ u64::from_le_bytes(bytes))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
        let hash = hash | 1;
        if self.recent.contains(&hash) {
            self.polls += 1;
        } else {
            self.recent.rotate_right(1);
            self.recent[0] = hash;
        }
    }

    /// Returns the lanes of a source operand.
    pub(super) fn value<'w>(&'w self, warp: &'w Warp, base: u32, value: Value) -> &'w Lanes {
        self.sources.fetch(warp, base, value)
    }
}

/// Chooses the group to run: one that was passed over too often, or else the one of the lowest
/// rank.
///
/// The lowest rank alone would starve: a lane that spins on a lock may be before, in the program,
/// the lane that holds it.
fn choose(warp: &Warp) -> Option<(usize, bool)> {
    let ready = || warp.groups.iter().enumerate().filter(|(_, group)| group.is_ready());
    if warp.groups.len() > 1 {
        let starved = ready().filter(|(_, group)| group.passed_over > STARVED);
        if let Some((index, _)) = starved.max_by_key(|(_, group)| group.passed_over) {
            return Some((index, true));
        }
    }
    ready().min_by_key(|(_, group)| group.rank()).map(|(index, _)| (index, false))
}

/// Marks that a group waits.
pub(super) fn wait(group: &mut LaneGroup, state: State) -> Flow {
    group.state = state;
    Flow::Choose
}
