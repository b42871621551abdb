//! Undefined bits of registers, followed from the sources of an instruction to its results and to
//! memory.

use dmr_ptx_arith::lanes::{Exchange, Work};
use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::block::BlockState;
use super::cluster::{ClusterInst, RANKED};
use super::code::{ArithInst, Guard, Inst, NO_REG, Op, Reg, Transfer, Value};
use super::execute::{join, parts, split};
use super::fault::{FaultKind, SpaceName, Thread};
use super::interpreter::{Interpreter, Stop};
use super::load::{Use, Visitor};
use super::memory::Reach;
use super::registers::{ZERO, number};
use super::space::Run;
use super::transfer::{collect, extend};
use super::undefined::{DEFINED, Origin, Undefined, undefine};
use super::warp::{LaneGroup, Warp};

impl Interpreter<'_> {
    /// Follows undefined bits through an instruction before the lanes of `mask` run it.
    ///
    /// It runs before, because the instruction may overwrite its own sources, and what its results
    /// depend on is then gone. There are three classes of instructions. Those that move bits have
    /// results that are undefined bit by bit. Those that compute have results of which all bits are
    /// undefined if any bit of a source is. Those that have an effect (stores, branches, atomics)
    /// may not depend on undefined bits at all; the loads and stores among them may have them as
    /// their data. Lanes whose guard is undefined get an undefined result even if they do not run
    /// the instruction: whether they do is not known.
    #[cold]
    #[inline(never)]
    pub(super) fn follow(
        &self,
        warp: &mut Warp,
        group: &LaneGroup,
        inst: &Inst,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let base = group.base;
        let guard = match inst.guard.register {
            NO_REG => Undefined::NONE,
            register => warp.undefined.get(base, Value::register(register)).clone(),
        };
        let unsure = guard.lanes(group.mask);
        let mut read = Undefined::NONE;
        let mut written = Vec::new();
        let mut visited = Inst { guard: Guard::NONE, op: inst.op.clone() };
        // Calls and warp-level instructions propagate undefined bits themselves.
        let mut visitor = Visitor { calls: &mut [], warp_insts: &mut [], returns: &mut [] };
        visitor.inst(&mut visited, &mut |register, usage| {
            if usage == Use::Read {
                read.spread(warp.undefined.get(base, Value::register(*register)), mask);
            } else {
                written.push(*register);
            }
        });
        // The results of an instruction that moves bits, and what any other result is.
        let mut moved: Vec<(Reg, Undefined)> = Vec::new();
        let mut result = Undefined::NONE;
        match &inst.op {
            Op::Nop | Op::Special { .. } | Op::FrameAddress { .. } => {}
            Op::Arith(arith) if arith.arith.moves_bits() && read.lanes(mask) != 0 => {
                let bits = self.inverted(warp, base, arith);
                let results = bits.map(|bits| Undefined { bits, ..read.clone() });
                moved.extend([arith.dst, arith.second].into_iter().zip(results));
            }
            Op::Copy { dst, src } | Op::Not { dst, src } => {
                moved.push((*dst, warp.undefined.get(base, *src).clone()));
            }
            Op::Pack { dst, sources, count, bits } => {
                for (&dst, part) in dst.iter().zip(parts(&sources[..usize::from(*count)], *bits)) {
                    let part: Vec<_> =
                        part.iter().map(|&it| warp.undefined.get(base, it)).collect();
                    let joined = join(part.iter().map(|source| &source.bits), *bits);
                    moved.push((dst, Undefined::moved(joined, &part)));
                }
            }
            Op::Unpack { dst, sources, count, bits } => {
                let all = sources.map(|source| warp.undefined.get(base, source));
                for (index, &dst) in dst.iter().enumerate().take(usize::from(*count)) {
                    let part = split([&all[0].bits, &all[1].bits], index, *bits);
                    moved.push((dst, Undefined::moved(part, &all)));
                }
            }
            Op::Arith(_)
            | Op::ToGeneric { .. }
            | Op::IsSpace { .. }
            | Op::Cluster(ClusterInst::Map { .. } | ClusterInst::Rank { .. }) => result = read,
            Op::Load(transfer) => {
                let base = warp.undefined.get(base, transfer.location.base);
                self.require(base, mask, "an address")?;
            }
            op => {
                let condition = match op {
                    Op::Branch { .. } => "a branch",
                    _ => "the predicate of an instruction",
                };
                self.require(&guard, group.mask, condition)?;
                let (used, name) = match op {
                    Op::Store(transfer) => {
                        (warp.undefined.get(base, transfer.location.base), "an address")
                    }
                    Op::Warp(index) => {
                        let inst = self.code.warp_insts.get(*index as usize);
                        let members = inst.and_then(|inst| inst.members);
                        let used = members.map_or(&DEFINED, |it| warp.undefined.get(base, it));
                        (used, "a member mask")
                    }
                    Op::Atomic(_) => (&read, "an atomic operation"),
                    Op::BranchIndex { .. } => (&read, "a branch"),
                    _ => (&read, "an operand"),
                };
                self.require(used, mask, name)?;
            }
        }
        for register in written {
            let found = moved.iter().find(|(moved, _)| *moved == register);
            let result = found.map_or(&result, |(_, result)| result);
            warp.undefined.set(number(base, register), mask & !unsure, result);
            // Where the predicate is undefined, all bits of the result are.
            let mut all = Undefined::NONE;
            all.spread(&guard, unsure);
            warp.undefined.set(number(base, register), unsure, &all);
        }
        Ok(())
    }

    /// Returns the bits of the results of an operation on bits that change with undefined bits of
    /// its sources.
    ///
    /// It runs the operation with the undefined bits as they are and inverted: a result bit that
    /// never changes does not depend on them, as those of `and` with a defined 0. That needs no
    /// rule for each instruction.
    fn inverted(&self, warp: &Warp, base: u32, inst: &ArithInst) -> [Lanes; 2] {
        let sources = &inst.sources[..usize::from(inst.count).min(inst.sources.len())];
        let mut distinct: Vec<Value> = Vec::new();
        for &source in sources {
            if warp.undefined.get(base, source).bits != ZERO && !distinct.contains(&source) {
                distinct.push(source);
            }
        }
        let mut defined = [ZERO; 2];
        let mut bits = [ZERO; 2];
        // The results for all combinations of undefined sources with their undefined bits inverted.
        for inverted in 0..1u32 << distinct.len() {
            let mut values = [ZERO; 6];
            for ((to, &source), ty) in
                values.iter_mut().zip(sources).zip(inst.arith.operands().sources())
            {
                *to = *self.value(warp, base, source);
                let index = distinct.iter().position(|&other| other == source);
                if index.is_some_and(|index| inverted >> index & 1 != 0) {
                    let undefined = &warp.undefined.get(base, source).bits;
                    to.iter_mut().zip(undefined).for_each(|(to, bits)| *to ^= bits & ty.mask());
                }
            }
            let [mut first, mut second] = [ZERO; 2];
            let values = values.each_ref();
            let carry = &mut warp.carry.clone();
            inst.arith.eval(&values[..sources.len()], &mut first, &mut second, Mask::MAX, carry);
            if inverted == 0 {
                defined = [first, second];
            }
            for (bits, (result, defined)) in
                bits.iter_mut().zip([first, second].iter().zip(&defined))
            {
                for lane in 0..WARP {
                    bits[lane] |= result[lane] ^ defined[lane];
                }
            }
        }
        bits
    }

    /// Reports the first lane of `mask` that has undefined bits.
    pub(super) fn require(
        &self,
        value: &Undefined,
        mask: Mask,
        used: &'static str,
    ) -> Result<(), Box<Stop>> {
        match value.lanes(mask) {
            0 => Ok(()),
            lanes => {
                let lane = lanes.trailing_zeros() as usize % WARP;
                Err(self.uninitialised(&value.origins[lane], lane, used))
            }
        }
    }

    pub(super) fn uninitialised(
        &self,
        origin: &Origin,
        lane: usize,
        used: &'static str,
    ) -> Box<Stop> {
        let Origin { space, address, bytes, thread, instruction } = *origin;
        let reader = Thread { block: self.index, thread: self.thread_index(thread) };
        let read = self.code.place(instruction);
        Stop::new(FaultKind::Uninitialised { space, address, bytes, reader, read, used }, lane)
    }

    /// Makes the registers undefined that a load of a run has read from bytes that no thread has
    /// written.
    #[cold]
    #[inline(never)]
    pub(super) fn mark_loaded(
        &self,
        warp: &mut Warp,
        base: u32,
        transfer: &Transfer,
        place: (&Reach, Run),
    ) {
        let (reach, run) = place;
        let each = usize::from(transfer.element);
        let lanes = reach.lanes(run);
        for (index, &register) in transfer.registers.iter().enumerate() {
            let mut loaded = Undefined::NONE;
            if index >= usize::from(transfer.count) || register == NO_REG {
                continue;
            }
            for lane in lanes_of(lanes) {
                let first = reach.offset(run, lane);
                let at = first + index * each;
                let Some(unwritten) = self.unwritten.get(at..at + each) else { continue };
                loaded.bits[lane] = extend(unwritten, transfer.extend);
                loaded.origins[lane] = self.origin(warp, reach, run, lane);
                loaded.origins[lane].address += (index * each) as u64;
                loaded.origins[lane].bytes = each as u32;
            }
            warp.undefined.set(number(base, register), loaded.lanes(lanes), &loaded);
        }
    }

    /// Returns the read of a lane of a run.
    pub(super) fn origin(&self, warp: &Warp, reach: &Reach, run: Run, lane: usize) -> Origin {
        let is_local = reach.space == SpaceName::Local;
        let skipped = if is_local { 0 } else { reach.offset(run, lane) as u64 };
        Origin {
            space: reach.space,
            address: run.address.wrapping_add(skipped),
            bytes: reach.bytes,
            thread: warp.number * WARP as u32 + lane as u32,
            instruction: self.pc,
        }
    }

    /// Makes the bytes unwritten in which a store of a run has put undefined bits.
    #[cold]
    #[inline(never)]
    pub(super) fn mark_stored(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        base: u32,
        transfer: &Transfer,
        place: (&Reach, Run),
    ) -> Result<(), Box<Stop>> {
        let (reach, run) = place;
        let mut bits = vec![0; run.count * reach.bytes as usize];
        for (index, &value) in transfer.values.iter().enumerate().take(usize::from(transfer.count))
        {
            collect(&warp.undefined.get(base, value).bits, transfer, index, run, &mut bits);
        }
        self.unwrite(block, warp, reach, run, &bits)
    }

    /// Makes the bytes of a run unwritten that have undefined `bits`. In global memory this holds
    /// only for a lane that has stored no defined bit: the padding of a struct is copied with it.
    pub(super) fn unwrite(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        reach: &Reach,
        run: Run,
        bits: &[u8],
    ) -> Result<(), Box<Stop>> {
        let each = reach.bytes as usize;
        match reach.space {
            SpaceName::Shared if run.address >= RANKED => {
                self.in_block(block, (run.address, run.first), |this, block, address| {
                    this.unwrite(block, warp, reach, Run { address, ..run }, bits)
                })
            }
            SpaceName::Shared => {
                let range = self.shared_range(block, reach, run, bits.len())?;
                undefine(&mut block.written[range], bits);
                Ok(())
            }
            SpaceName::Local => {
                for (index, bits) in bits.chunks_exact(each).enumerate() {
                    if let Some((_, written)) = warp.local.get(run.first + index, run.address, each)
                    {
                        undefine(written, bits);
                    }
                }
                Ok(())
            }
            _ => {
                for (index, bits) in bits.chunks_exact(each).enumerate() {
                    if bits.iter().all(|&bits| bits != 0) {
                        let address = run.address.wrapping_add((index * each) as u64);
                        let lane = Run { address, first: run.first + index, count: 1 };
                        let access = self.global_access(block, warp, reach, lane, each);
                        self.memory.undefine(&access);
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the undefined bits of the results of an operation between lanes, at least of the
    /// first two.
    pub(super) fn exchange_undefined(
        &self,
        exchange: &Exchange,
        values: &[&Lanes],
        undefined: &[Undefined],
        (members, executing): (Mask, Mask),
    ) -> Result<Vec<Undefined>, Box<Stop>> {
        let mut results = vec![Undefined::NONE; 2];
        let (Exchange::Shuffle(_), [value, others @ ..]) = (exchange, undefined) else {
            let lanes = undefined.iter().map(|source| (source, source.lanes(executing)));
            let Some((source, lanes)) = lanes.clone().find(|(_, lanes)| *lanes != 0) else {
                return Ok(results);
            };
            let origins = [source.origins[lanes.trailing_zeros() as usize % WARP]; WARP];
            let bits = match exchange {
                Exchange::Product(product) => {
                    let sources: Vec<&Lanes> = undefined.iter().map(|it| &it.bits).collect();
                    product.depending(&sources)
                }
                // The result of each lane depends on the values of all.
                _ => vec![[u64::MAX; WARP]; 2],
            };
            return Ok(bits.into_iter().map(|bits| Undefined { bits, origins }).collect());
        };
        for other in others {
            self.require(other, executing, "the source lane of a shuffle")?;
        }
        // The numbers of lanes in place of the values are those of the lanes that are read.
        let numbers: Lanes = std::array::from_fn(|lane| lane as u64);
        let mut sources = values.to_vec();
        sources[0] = &numbers;
        let mut out = [ZERO; 2];
        let _ = exchange.eval(&sources, members, executing, &mut Work::default(), &mut out);
        for lane in lanes_of(executing) {
            let from = out[0][lane] as usize % WARP;
            results[0].bits[lane] = value.bits[from];
            results[0].origins[lane] = value.origins[from];
        }
        Ok(results)
    }
}
