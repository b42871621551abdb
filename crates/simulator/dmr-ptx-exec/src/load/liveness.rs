//! Fewer registers: those whose values are never needed at the same time share a number.
//!
//! Lanes of a warp share nothing of a register, so that what holds for a thread holds for its lane,
//! wherever the other lanes are.

use super::registers::{Use, Visitor};
use crate::code::{Guard, Inst, Op, Reg};
use crate::program::Formal;

/// The maximum number of bits of each set of registers for all blocks of a function: beyond, it
/// keeps its registers.
const MOST_BITS: u64 = 1 << 28;

/// The maximum number of words of sets that are computed.
const MOST_WORK: u64 = 1 << 28;

/// For each register, the first and the last instruction for which it keeps a value; `None` for one
/// that is not used.
type Ranges = Vec<Option<(usize, usize)>>;

/// The instructions of a function.
pub(super) struct Insts<'s> {
    pub(super) insts: &'s mut [Inst],
    /// The number of the first instruction in the program.
    pub(super) first: u32,
    pub(super) tables: &'s [Vec<u32>],
    pub(super) registers: u32,
    pub(super) formals: &'s mut [Formal],
}

/// Insts that run one after another.
struct BasicBlock {
    start: usize,
    end: usize,
    successors: Vec<usize>,
}

/// A set of registers for each block.
struct Sets {
    words: usize,
    bits: Vec<u64>,
}

impl Sets {
    fn new(blocks: usize, registers: usize) -> Self {
        let words = registers.div_ceil(64);
        Self { words, bits: vec![0; words * blocks] }
    }

    fn of(&self, block: usize) -> &[u64] {
        &self.bits[block * self.words..(block + 1) * self.words]
    }

    fn add(&mut self, block: usize, register: Reg) {
        self.bits[block * self.words + register as usize / 64] |= 1 << (register % 64);
    }

    fn has(&self, block: usize, register: Reg) -> bool {
        (self.bits[block * self.words + register as usize / 64] >> (register % 64)) & 1 != 0
    }

    fn registers(&self, block: usize) -> impl Iterator<Item = Reg> + '_ {
        self.of(block).iter().enumerate().flat_map(|(word, &bits)| {
            (0..64)
                .filter(move |bit| (bits >> bit) & 1 != 0)
                .map(move |bit| (word * 64 + bit) as Reg)
        })
    }
}

impl Insts<'_> {
    /// Renumbers the registers, and returns how many there are.
    pub(super) fn renumber(&mut self, visitor: &mut Visitor<'_>) -> u32 {
        let blocks = self.blocks();
        let registers = self.registers as usize;
        if blocks.len() as u64 * registers as u64 > MOST_BITS {
            return self.registers;
        }
        let Some(ranges) = self.ranges(&blocks, visitor) else { return self.registers };
        let (numbers, count) = assign(&ranges);
        let mut replace = |register: &mut Reg, _: Use| {
            if let Some(&number) = numbers.get(*register as usize) {
                *register = number;
            }
        };
        // Each instruction is visited once. The registers of its call or warp operation are
        // replaced in place: a second visit would replace the new numbers.
        for inst in self.insts.iter_mut().filter(|inst| !matches!(inst.op, Op::Return)) {
            visitor.inst(inst, &mut replace);
        }
        for inst in self.insts.iter_mut().filter(|inst| matches!(inst.op, Op::Return)) {
            if inst.guard != Guard::NONE {
                replace(&mut inst.guard.register, Use::Read);
            }
        }
        for formal in self.formals.iter_mut().chain(visitor.returns.iter_mut()) {
            if let Formal::Register { register, .. } = formal {
                replace(register, Use::Write);
            }
        }
        count.max(1)
    }

    fn blocks(&self) -> Vec<BasicBlock> {
        let len = self.insts.len();
        let local =
            |target: u32| (target.saturating_sub(self.first) as usize).min(len.saturating_sub(1));
        let targets = |inst: &Inst| match inst.op {
            Op::Branch { target } => vec![local(target)],
            Op::BranchIndex { table, .. } => self
                .tables
                .get(table as usize)
                .into_iter()
                .flatten()
                .map(|&target| local(target))
                .collect(),
            _ => Vec::new(),
        };
        let ends = |inst: &Inst| {
            matches!(
                inst.op,
                Op::Branch { .. } | Op::BranchIndex { .. } | Op::Return | Op::Exit | Op::Trap
            )
        };
        let mut starts = vec![false; len + 1];
        starts[0] = true;
        for (index, inst) in self.insts.iter().enumerate() {
            if ends(inst) {
                starts[index + 1] = true;
            }
            targets(inst).into_iter().for_each(|target| starts[target] = true);
        }
        let starts: Vec<usize> = (0..len).filter(|&index| starts[index]).collect();
        let number = |inst: usize| starts.partition_point(|&start| start <= inst) - 1;
        let block = |(index, &start): (usize, &usize)| {
            let end = starts.get(index + 1).copied().unwrap_or(len);
            let last = &self.insts[end - 1];
            let mut successors: Vec<usize> = targets(last).into_iter().map(number).collect();
            if (!ends(last) || last.guard != Guard::NONE) && end < len {
                successors.push(index + 1);
            }
            BasicBlock { start, end, successors }
        };
        starts.iter().enumerate().map(block).collect()
    }

    /// Returns the range of each register; `None` if that takes too long.
    fn ranges(&mut self, blocks: &[BasicBlock], visitor: &mut Visitor<'_>) -> Option<Ranges> {
        let registers = self.registers as usize;
        let mut read = Sets::new(blocks.len(), registers);
        let mut written = Sets::new(blocks.len(), registers);
        let mut ranges: Ranges = vec![None; registers];
        let widen = |ranges: &mut Ranges, register: Reg, at: usize| {
            if let Some(range) = ranges.get_mut(register as usize) {
                *range =
                    Some(range.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
            }
        };
        for formal in &*self.formals {
            if let Formal::Register { register, .. } = formal {
                widen(&mut ranges, *register, 0);
            }
        }
        for (number, block) in blocks.iter().enumerate() {
            for index in block.start..block.end {
                let inst = &mut self.insts[index];
                let always = inst.guard == Guard::NONE;
                let mut writes = Vec::new();
                visitor.inst(inst, &mut |register, usage| {
                    widen(&mut ranges, *register, index);
                    if usage == Use::Write && always {
                        writes.push(*register);
                    } else if !written.has(number, *register) {
                        read.add(number, *register);
                    }
                });
                writes.into_iter().for_each(|register| written.add(number, register));
            }
        }
        let needed = flow(blocks, &read, &written)?;
        for (number, block) in blocks.iter().enumerate() {
            needed.registers(number).for_each(|register| widen(&mut ranges, register, block.start));
            for &successor in &block.successors {
                needed
                    .registers(successor)
                    .for_each(|register| widen(&mut ranges, register, block.end - 1));
            }
        }
        Some(ranges)
    }
}

/// Returns the registers whose values are needed at the start of each block; `None` if that takes
/// too long.
fn flow(blocks: &[BasicBlock], read: &Sets, written: &Sets) -> Option<Sets> {
    let mut needed = Sets { words: read.words, bits: read.bits.clone() };
    let mut changed = true;
    let mut work = 0;
    while changed {
        changed = false;
        work += needed.bits.len() as u64;
        if work > MOST_WORK {
            return None;
        }
        for (number, block) in blocks.iter().enumerate().rev() {
            for word in 0..needed.words {
                let after =
                    block.successors.iter().fold(0, |all, &next| all | needed.of(next)[word]);
                let new = needed.of(number)[word] | (after & !written.of(number)[word]);
                changed |= new != needed.of(number)[word];
                needed.bits[number * needed.words + word] = new;
            }
        }
    }
    Some(needed)
}

/// Gives each register a number that no other has in the same range, and returns the count of
/// numbers.
fn assign(ranges: &[Option<(usize, usize)>]) -> (Vec<Reg>, u32) {
    let mut order: Vec<(usize, usize, usize)> = ranges
        .iter()
        .enumerate()
        .filter_map(|(register, range)| range.map(|(first, last)| (first, last, register)))
        .collect();
    order.sort_unstable();
    let mut numbers = vec![0; ranges.len()];
    let mut free: Vec<Reg> = Vec::new();
    let mut busy: std::collections::BinaryHeap<std::cmp::Reverse<(usize, Reg)>> =
        std::collections::BinaryHeap::new();
    let mut count = 0;
    for (first, last, register) in order {
        while let Some(&std::cmp::Reverse((end, number))) = busy.peek()
            && end < first
        {
            busy.pop();
            free.push(number);
        }
        let number = free.pop().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        numbers[register] = number;
        busy.push(std::cmp::Reverse((last, number)));
    }
    (numbers, count)
}
