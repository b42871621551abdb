//! The execution of a warp: the choice of its fragments, and one instruction after another.

use crate::syntax::SpecialRegister;
use crate::types::{Lanes, Mask, WARP};

use super::block::Common;
use super::code::{ArithStep, Guard, NO_REG, Op, Reg, Source, Value};
use super::fault::{Checks, FaultKind, Limits};
use super::global::GlobalMemory;
use super::program::Code;
use super::space::{lanes_of, resolve};
use super::warp::{Fragment, State, Warp};
use crate::races::Races;

/// The instructions that a warp runs before the next warp does.
const SLICE: u32 = 1024;
/// The instructions that a fragment runs before the others of its warp are considered.
const TURN: u32 = 256;
/// The instructions for which a fragment is passed over before it runs whatever its rank.
const STARVED: u32 = 1024;
/// The polls after which a warp has spent its slice.
const POLLS: u32 = 6;
/// The number of atomic reads that are compared to find polls.
pub(super) const RECENT: usize = 8;

/// A fault of a lane of the running fragment.
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
    /// The choice of a fragment: lanes have split, wait or have exited.
    Choose,
}

/// The state that all blocks of a launch share while they run.
pub(super) struct Core<'a> {
    pub(super) code: &'a Code,
    /// The addresses that the launch determines, by [`Source::Address`].
    pub(super) addresses: Vec<Lanes>,
    pub(super) params: &'a [u8],
    /// The threads of a block, and the blocks of the grid.
    pub(super) block: [u32; 3],
    pub(super) grid: [u32; 3],
    pub(super) memory: &'a mut dyn GlobalMemory,
    pub(super) checks: Checks,
    pub(super) limits: Limits,
    pub(super) executed: u64,
    pub(super) thread_instructions: u64,
    /// Nanoseconds that `nanosleep` has added to the time.
    pub(super) slept: u64,
    pub(super) printed: Vec<u8>,
    /// The polls of the running warp since it began its slice or stored a new value.
    pub(super) polls: u32,
    /// The last atomic reads of the running warp, as hashes of the instruction, the address and the value.
    pub(super) recent: [u64; RECENT],
    /// True if a store has changed memory since the launch last looked.
    pub(super) changed: bool,
    pub(super) scratch: Vec<Lanes>,
    /// The results of the arithmetic instruction that runs.
    pub(super) results: Box<[Lanes; 2]>,
    /// The accesses to global memory, if their races are checked.
    pub(super) races: Option<Box<Races>>,
    /// The instruction that runs.
    pub(super) pc: u32,
    /// The end of local memory of the fragment that runs.
    pub(super) local_end: u32,
}

/// The place of a fault: the thread of a block, and the instruction.
#[derive(Debug)]
pub(super) struct Faulted {
    pub(super) kind: FaultKind,
    pub(super) thread: u32,
    pub(super) pc: u32,
}

impl Core<'_> {
    /// Runs a warp until its slice is spent or all of its lanes wait or have exited.
    pub(super) fn run_warp(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
    ) -> Result<(), Box<Faulted>> {
        (self.polls, self.recent) = (0, [0; RECENT]);
        let (mut left, mut polling) = (SLICE, 0);
        warp.polling = false;
        while left > 0 && !warp.polling {
            if warp.fragments.len() > 1 {
                warp.merge();
            }
            let Some((index, forced)) = choose(warp) else { break };
            let mut fragment = warp.fragments.swap_remove(index);
            let rank = warp.fragments.iter().filter(|f| f.is_ready()).map(Fragment::rank).min();
            let rank = rank.filter(|_| !forced);
            let result = self.run_fragment(common, warp, &mut fragment, rank, left.min(TURN));
            let ran = match result {
                Ok(ran) => ran,
                Err(stop) => {
                    let thread = warp.number * WARP as u32 + stop.lane as u32;
                    return Err(Box::new(Faulted { kind: stop.kind, thread, pc: self.pc }));
                }
            };
            left = left.saturating_sub(ran.max(1));
            for other in warp.fragments.iter_mut().filter(|other| other.is_ready()) {
                other.passed_over = other.passed_over.saturating_add(ran);
            }
            if fragment.mask != 0 {
                warp.fragments.push(fragment);
            }
            polling = if self.polls >= POLLS { polling + 1 } else { 0 };
            if polling > 0 {
                // The others run next: one of them may store what this one polls for.
                let ready = warp.fragments.iter_mut().filter(|fragment| fragment.is_ready());
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
                let lane = warp.live.trailing_zeros() % WARP as u32;
                let thread = warp.number * WARP as u32 + lane;
                return Err(Box::new(Faulted { kind, thread, pc: self.pc }));
            }
            self.settle(common, warp)?;
        }
        Ok(())
    }

    /// Runs a fragment until another one comes first, it splits, waits or exits, or has run `most` instructions.
    fn run_fragment(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        fragment: &mut Fragment,
        next: Option<(std::cmp::Reverse<usize>, u32)>,
        most: u32,
    ) -> Result<u32, Box<Stop>> {
        fragment.passed_over = 0;
        self.local_end = fragment.local_end;
        let code = self.code;
        let mut ran = 0;
        while ran < most && self.polls < POLLS {
            self.pc = fragment.pc;
            let Some(step) = code.steps.get(fragment.pc as usize) else {
                return Err(Stop::invalid("the program counter left the program", fragment.mask));
            };
            ran += 1;
            let mask = guarded(warp, fragment, step.guard);
            self.executed += 1;
            self.thread_instructions += u64::from(mask.count_ones());
            if mask == 0 {
                fragment.pc += 1;
            } else {
                match self.execute(common, warp, fragment, &step.op, mask)? {
                    Flow::Next => fragment.pc += 1,
                    Flow::Jump => {}
                    Flow::Choose => break,
                }
            }
            if let Some(next) = next
                && fragment.rank() >= next
            {
                break;
            }
        }
        Ok(ran)
    }

    fn execute(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        fragment: &mut Fragment,
        op: &Op,
        mask: Mask,
    ) -> Result<Flow, Box<Stop>> {
        let base = fragment.base;
        match op {
            Op::Nop => {}
            Op::Arith(step) => self.arith(warp, base, step, mask),
            Op::Copy { dst, src } => {
                let value = *self.value(warp, base, *src);
                write(warp, base, *dst, mask, &value);
            }
            Op::Not { dst, src } => {
                let value = self.value(warp, base, *src).map(|value| value ^ 1);
                write(warp, base, *dst, mask, &value);
            }
            Op::Pack { dst, sources, count, bits } => {
                self.pack(warp, base, mask, dst, &sources[..usize::from(*count)], *bits)
            }
            Op::Unpack { dst, sources, count, bits } => {
                self.unpack(warp, base, mask, &dst[..usize::from(*count)], sources, *bits)
            }
            Op::Special { dst, register } => {
                let value = self.special(*register);
                write(warp, base, *dst, mask, &[value; WARP]);
            }
            Op::FrameAddress { dst, offset } => {
                let value = u64::from(fragment.local).wrapping_add_signed(*offset);
                write(warp, base, *dst, mask, &[value; WARP]);
            }
            Op::ToGeneric { dst, src, delta } => {
                let value = self.value(warp, base, *src).map(|value| value.wrapping_add(*delta));
                write(warp, base, *dst, mask, &value);
            }
            Op::IsSpace { dst, src, space } => {
                let value =
                    self.value(warp, base, *src).map(|value| u64::from(resolve(value).0 == *space));
                write(warp, base, *dst, mask, &value);
            }
            Op::Load(transfer) => self.load(common, warp, fragment, transfer, mask)?,
            Op::Store(transfer) => self.store(common, warp, fragment, transfer, mask)?,
            Op::Atomic(atomic) => self.atomic(common, warp, fragment, atomic, mask)?,
            Op::MemoryBarrier(barrier) => {
                self.memory_barrier(common, warp, fragment, barrier, mask)?;
            }
            Op::CopyBulk(copy) => self.copy_bulk(common, warp, fragment, copy, mask)?,
            Op::CopyAsync { to, from, bytes, size } => {
                self.copy_async(common, warp, fragment, (to, from), (*bytes, *size), mask)?;
            }
            Op::Fence(scope) => self.fence(common, warp, *scope),
            Op::Branch { .. } | Op::BranchIndex { .. } | Op::Call(_) | Op::Return | Op::Exit => {
                return self.control(common, warp, fragment, op, mask);
            }
            Op::Barrier(barrier) => return self.barrier(common, warp, fragment, barrier, mask),
            Op::WarpBarrier { .. } | Op::Warp(_) => {
                return self.warp_operation(common, warp, fragment, op, mask);
            }
            Op::Trap => return Err(Stop::new(FaultKind::Trap, mask.trailing_zeros() as usize)),
            Op::Sleep => {
                self.slept += 100;
                self.polls += POLLS;
            }
            Op::Refused(index) => {
                let message = code_refusal(self.code, *index);
                return Err(Stop::new(
                    FaultKind::Unsupported(message),
                    mask.trailing_zeros() as usize,
                ));
            }
        }
        Ok(Flow::Next)
    }

    /// Counts a poll: an atomic read of the value that the same instruction has just read at the same address.
    pub(super) fn note_read(&mut self, address: u64, value: &[u8]) {
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
        fetch(self.code, &self.addresses, warp, base, value)
    }

    fn arith(&mut self, warp: &mut Warp, base: u32, step: &ArithStep, mask: Mask) {
        let count = usize::from(step.count).min(step.sources.len());
        let [result, other] = &mut *self.results;
        if mask != Mask::MAX {
            *result = *register(warp, base, step.dst);
            *other = *register(warp, base, step.second);
        }
        let mut carry = warp.carry;
        let mut values = [&ZERO; 6];
        for (value, &source) in values.iter_mut().zip(&step.sources[..count]) {
            *value = fetch(self.code, &self.addresses, warp, base, source);
        }
        step.arith.eval(&values[..count], result, other, mask, &mut carry);
        warp.carry = carry;
        if step.bits < 64 {
            let kept = (1u64 << step.bits) - 1;
            result.iter_mut().for_each(|value| *value &= kept);
        }
        if step.dst != NO_REG {
            *register_mut(warp, base, step.dst) = *result;
        }
        if step.second != NO_REG {
            *register_mut(warp, base, step.second) = *other;
        }
    }

    fn pack(
        &self,
        warp: &mut Warp,
        base: u32,
        mask: Mask,
        dst: &[Reg; 2],
        sources: &[Value],
        bits: u8,
    ) {
        let each = (64 / usize::from(bits.max(1))).max(1);
        for (part, &dst) in sources.chunks(each).zip(dst) {
            let mut all = [0; WARP];
            for (index, &source) in part.iter().enumerate() {
                let value = self.value(warp, base, source);
                let kept = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
                for (to, &from) in all.iter_mut().zip(value) {
                    *to |= (from & kept) << ((index * usize::from(bits)) & 63);
                }
            }
            write(warp, base, dst, mask, &all);
        }
    }

    fn unpack(
        &self,
        warp: &mut Warp,
        base: u32,
        mask: Mask,
        dst: &[Reg],
        sources: &[Value; 2],
        bits: u8,
    ) {
        let each = (64 / usize::from(bits.max(1))).max(1);
        let values = sources.map(|source| *self.value(warp, base, source));
        let kept = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        for (index, &dst) in dst.iter().enumerate() {
            let value = &values[(index / each).min(1)];
            let shift = (index % each * usize::from(bits)) & 63;
            write(warp, base, dst, mask, &value.map(|value| (value >> shift) & kept));
        }
    }

    /// Returns the value of a special register that changes while a warp runs.
    fn special(&self, register: SpecialRegister) -> u64 {
        let time = self.executed + self.slept;
        match register {
            SpecialRegister::Clock | SpecialRegister::GlobaltimerLo => time & 0xffff_ffff,
            SpecialRegister::ClockHi | SpecialRegister::GlobaltimerHi => time >> 32,
            SpecialRegister::Clock64 | SpecialRegister::Globaltimer => time,
            _ => 0,
        }
    }
}

pub(super) static ZERO: Lanes = [0; WARP];

fn code_refusal(code: &Code, index: u32) -> String {
    code.refusals.get(index as usize).cloned().unwrap_or_default()
}

fn fetch<'w>(
    code: &'w Code,
    addresses: &'w [Lanes],
    warp: &'w Warp,
    base: u32,
    value: Value,
) -> &'w Lanes {
    let found = match value.source() {
        Source::Register(index) => warp.registers.get((base + index) as usize),
        Source::Constant(index) => code.constants.get(index as usize),
        Source::Address(index) => addresses.get(index as usize),
        Source::Special(index) => warp.specials.get(index as usize),
    };
    found.unwrap_or(&ZERO)
}

/// Chooses the fragment to run: one that was passed over too often, or else the one of the lowest rank.
fn choose(warp: &Warp) -> Option<(usize, bool)> {
    let ready = || warp.fragments.iter().enumerate().filter(|(_, fragment)| fragment.is_ready());
    if warp.fragments.len() > 1 {
        let starved = ready().filter(|(_, fragment)| fragment.passed_over > STARVED);
        if let Some((index, _)) = starved.max_by_key(|(_, fragment)| fragment.passed_over) {
            return Some((index, true));
        }
    }
    ready().min_by_key(|(_, fragment)| fragment.rank()).map(|(index, _)| (index, false))
}

/// Returns the lanes of a fragment for which the predicate of an instruction holds.
fn guarded(warp: &Warp, fragment: &Fragment, guard: Guard) -> Mask {
    if guard == Guard::NONE {
        return fragment.mask;
    }
    let holds = predicate_mask(register(warp, fragment.base, guard.register));
    fragment.mask & if guard.negated { !holds } else { holds }
}

/// Returns the lanes whose predicate is true.
pub(super) fn predicate_mask(lanes: &Lanes) -> Mask {
    let mut mask = 0;
    for (lane, &value) in lanes.iter().enumerate() {
        mask |= ((value & 1) as Mask) << lane;
    }
    mask
}

pub(super) fn register(warp: &Warp, base: u32, reg: Reg) -> &Lanes {
    warp.registers.get(base.saturating_add(reg) as usize).unwrap_or(&ZERO)
}

/// Returns a register; register numbers are below the number that the function declares.
pub(super) fn register_mut(warp: &mut Warp, base: u32, reg: Reg) -> &mut Lanes {
    let index = ((base + reg) as usize).min(warp.registers.len() - 1);
    &mut warp.registers[index]
}

/// Writes the lanes of `mask`.
pub(super) fn write(warp: &mut Warp, base: u32, reg: Reg, mask: Mask, value: &Lanes) {
    if reg == NO_REG {
        return;
    }
    let register = register_mut(warp, base, reg);
    if mask == Mask::MAX {
        *register = *value;
    } else {
        lanes_of(mask).for_each(|lane| register[lane] = value[lane]);
    }
}

/// Marks that a fragment waits.
pub(super) fn wait(fragment: &mut Fragment, state: State) -> Flow {
    fragment.state = state;
    Flow::Choose
}
