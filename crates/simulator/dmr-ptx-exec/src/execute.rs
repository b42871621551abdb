//! One instruction of a group: what computes on registers is here, the rest is called.

use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};
use dmr_ptx_syntax::SpecialRegister;

use super::block::BlockState;
use super::code::{ArithInst, Op, Reg, Value};
use super::fault::FaultKind;
use super::interpreter::{Flow, Interpreter, POLLS, RECENT, Stop};
use super::program::Code;
use super::registers::ZERO;
use super::space::resolve;
use super::warp::{LaneGroup, Warp};

/// The number of lanes from which on an operation is computed for all of them.
const DENSE: u32 = 8;

impl Interpreter<'_> {
    pub(super) fn execute(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        op: &Op,
        mask: Mask,
    ) -> Result<Flow, Box<Stop>> {
        let base = group.base;
        match op {
            Op::Nop => {}
            Op::Arith(inst) => self.arith(warp, base, inst, mask),
            Op::Copy { dst, src } => self.map(warp, base, mask, (*dst, *src), |value| value),
            Op::Not { dst, src } => self.map(warp, base, mask, (*dst, *src), |value| value ^ 1),
            Op::Pack { dst, sources, count, bits } => {
                self.pack(warp, base, mask, dst, &sources[..usize::from(*count)], *bits)
            }
            Op::Unpack { dst, sources, count, bits } => {
                self.unpack(warp, base, mask, &dst[..usize::from(*count)], sources, *bits)
            }
            Op::Special { dst, register } => {
                warp.write_uniform(base, *dst, mask, self.special(*register));
            }
            Op::FrameAddress { dst, offset } => {
                let value = u64::from(group.local).wrapping_add_signed(*offset);
                warp.write_uniform(base, *dst, mask, value);
            }
            Op::ToGeneric { dst, src, delta } => {
                self.map(warp, base, mask, (*dst, *src), |value| value.wrapping_add(*delta));
            }
            Op::IsSpace { dst, src, space } => {
                let is_in = |value| u64::from(resolve(value).0 == *space);
                self.map(warp, base, mask, (*dst, *src), is_in);
            }
            Op::Load(transfer) => self.load(block, warp, group, transfer, mask)?,
            Op::Store(transfer) => self.store(block, warp, group, transfer, mask)?,
            Op::Atomic(atomic) => self.atomic(block, warp, group, atomic, mask)?,
            Op::MemoryBarrier(barrier) => {
                self.memory_barrier(block, warp, group, barrier, mask)?;
            }
            Op::Copies(inst) => self.copy_inst(block, warp, group, inst, mask)?,
            Op::Cluster(inst) => {
                return self.cluster_inst(block, warp, group, inst, mask);
            }
            Op::Fence(scope) => self.fence(block, warp, *scope),
            Op::Branch { .. } | Op::BranchIndex { .. } | Op::Call(_) | Op::Return | Op::Exit => {
                return self.control(block, warp, group, op, mask);
            }
            Op::Barrier(barrier) => return self.barrier(block, warp, group, barrier, mask),
            Op::WarpBarrier { .. } | Op::Warp(_) => {
                return self.warp_operation(block, warp, group, op, mask);
            }
            Op::Trap => return Err(Stop::new(FaultKind::Trap, mask.trailing_zeros() as usize)),
            Op::Sleep(duration) => {
                let durations = self.value(warp, base, *duration);
                let longest = lanes_of(mask).map(|lane| durations[lane] & 0xffff_ffff).max();
                self.clock.sleep(longest.unwrap_or(0));
                // A warp that has read nothing since it began its slice waits for no store.
                self.changed |= self.polls == 0 && self.recent == [0; RECENT];
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

    /// Computes a register from another one, lane by lane.
    #[inline]
    fn map(
        &self,
        warp: &mut Warp,
        base: u32,
        mask: Mask,
        (dst, src): (Reg, Value),
        f: impl Fn(u64) -> u64,
    ) {
        let value = self.value(warp, base, src);
        if self.sources.is_uniform(warp, base, src) {
            let value = f(value[0]);
            warp.write_uniform(base, dst, mask, value);
        } else {
            let value = value.map(f);
            warp.write(base, dst, mask, &value);
        }
    }

    #[inline(never)]
    pub(super) fn arith(&mut self, warp: &mut Warp, base: u32, inst: &ArithInst, mask: Mask) {
        let count = usize::from(inst.count).min(inst.sources.len());
        let [result, other] = &mut *self.results;
        let mut values = [&ZERO; 6];
        let mut uniform = !inst.arith.has_carry();
        for (value, &source) in values.iter_mut().zip(&inst.sources[..count]) {
            *value = self.sources.fetch(warp, base, source);
            uniform &= self.sources.is_uniform(warp, base, source);
        }
        let kept = u64::MAX >> (64 - u32::from(inst.bits.clamp(1, 64)));
        if uniform {
            inst.arith.eval(&values[..count], result, other, 1, &mut 0);
            warp.write_uniform(base, inst.dst, mask, result[0] & kept);
            warp.write_uniform(base, inst.second, mask, other[0]);
            return;
        }
        // A plain loop over all lanes is faster than one over many of them.
        let is_dense = mask == Mask::MAX || mask.count_ones() >= DENSE;
        let computed = if is_dense { Mask::MAX } else { mask };
        let mut carry = warp.carry;
        inst.arith.eval(&values[..count], result, other, computed, &mut carry);
        warp.carry = warp.carry & !mask | carry & mask;
        if kept != u64::MAX {
            result.iter_mut().for_each(|value| *value &= kept);
        }
        warp.write(base, inst.dst, mask, result);
        warp.write(base, inst.second, mask, other);
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
        for (part, &dst) in parts(sources, bits).zip(dst) {
            let all = join(part.iter().map(|&source| self.value(warp, base, source)), bits);
            warp.write(base, dst, mask, &all);
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
        let values = sources.map(|source| *self.value(warp, base, source));
        for (index, &dst) in dst.iter().enumerate() {
            warp.write(base, dst, mask, &split(values.each_ref(), index, bits));
        }
    }

    /// Returns the value of a special register that changes while a warp runs.
    fn special(&mut self, register: SpecialRegister) -> u64 {
        let time = self.clock.read(self.pc, self.executed);
        match register {
            SpecialRegister::Clock | SpecialRegister::GlobaltimerLo => time & 0xffff_ffff,
            SpecialRegister::ClockHi | SpecialRegister::GlobaltimerHi => time >> 32,
            SpecialRegister::Clock64 | SpecialRegister::Globaltimer => time,
            _ => 0,
        }
    }
}

/// Returns the sources of each register that sources of `bits` are packed into.
pub(super) fn parts(sources: &[Value], bits: u8) -> impl Iterator<Item = &[Value]> {
    sources.chunks((64 / usize::from(bits.max(1))).max(1))
}

/// Joins the low `bits` of each value, the first in the low bits.
pub(super) fn join<'l>(values: impl Iterator<Item = &'l Lanes>, bits: u8) -> Lanes {
    let kept = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    let mut all = [0; WARP];
    for (index, value) in values.enumerate() {
        for (to, &from) in all.iter_mut().zip(value) {
            *to |= (from & kept) << ((index * usize::from(bits)) & 63);
        }
    }
    all
}

/// Returns part number `index` of the parts of `bits` in two registers.
pub(super) fn split(values: [&Lanes; 2], index: usize, bits: u8) -> Lanes {
    let each = (64 / usize::from(bits.max(1))).max(1);
    let kept = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    let shift = (index % each * usize::from(bits)) & 63;
    values[(index / each).min(1)].map(|value| (value >> shift) & kept)
}

fn code_refusal(code: &Code, index: u32) -> String {
    code.refusals.get(index as usize).cloned().unwrap_or_default()
}
