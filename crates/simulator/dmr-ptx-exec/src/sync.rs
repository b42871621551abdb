//! Operations between lanes: which lanes of a warp take part, and what they exchange.

use dmr_ptx_arith::lanes::{Defect, Exchange, Instruction, Participation};
use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::block::BlockState;
use super::code::{NO_REG, Op, Reg, Value, WarpInst};
use super::fault::FaultKind;
use super::interpreter::{Faulted, Flow, Interpreter, Stop, wait};
use super::registers::{ZERO, number};
use super::space::lanes_where;
use super::undefined::Undefined;
use super::warp::{LaneGroup, State, Warp};

/// The maximum number of source registers of an operation between lanes.
pub(super) const MOST_SOURCES: usize = 48;

impl Interpreter<'_> {
    /// Runs an operation between lanes, or makes the group wait for the other lanes.
    ///
    /// A `.sync` operation runs once, for all lanes that take part, when the last of them arrives.
    /// Until then the groups that have arrived wait in the list of the warp, each at its own
    /// program counter: lanes of one member mask may be at different copies of an instruction that
    /// the compiler has duplicated into both sides of a branch. The group that arrives last takes
    /// the others out of the list, runs the operation and puts them back, all of them one
    /// instruction further.
    pub(super) fn warp_operation(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        op: &Op,
        mask: Mask,
    ) -> Result<Flow, Box<Stop>> {
        let code = self.code;
        let inst = self.warp_inst(op);
        let (participation, members) = match op {
            Op::WarpBarrier { members } => (Participation::Members, Some(*members)),
            _ => (
                inst.map_or(Participation::Executing, |inst| inst.instruction.participation()),
                inst.and_then(|inst| inst.members),
            ),
        };
        if participation == Participation::Executing {
            self.run_converged(block, warp, group, &mut [], (op, mask, mask))?;
            return Ok(Flow::Next);
        }
        // Lanes whose guard is false do not take part: they go on behind the instruction.
        let is_split = warp.skip_others(group, mask);
        if participation == Participation::Warp {
            if group.mask == warp.live {
                self.check_whole(warp, group)?;
                self.run_converged(block, warp, group, &mut [], (op, Mask::MAX, group.mask))?;
                group.pc += 1;
                return Ok(if is_split { Flow::Choose } else { Flow::Jump });
            }
            return Ok(wait(group, State::Warp));
        }
        // Each lane names its members itself. Lanes that name others than the first one does are a
        // group of their own, which runs this instruction again.
        let named = members
            .map_or([u64::from(Mask::MAX); WARP], |members| *self.value(warp, group.base, members));
        let first = group.mask.trailing_zeros() as usize % WARP;
        let members = named[first] as Mask;
        let others = lanes_where(group.mask, |lane| named[lane] as Mask != members);
        if others != 0 {
            let pc = group.pc;
            warp.groups.push(group.split(others, pc));
        }
        let non_members = group.mask & !members;
        if non_members != 0 && self.checks.divergence {
            let message = format!("the lane is not in the member mask {members:#010x}");
            return Err(Stop::new(
                FaultKind::DivergentWarp(message),
                non_members.trailing_zeros() as usize,
            ));
        }
        // Lanes that have exited are not waited for, as on the device.
        let required = members & warp.live;
        if group.mask & required == required {
            self.run_converged(block, warp, group, &mut [], (op, members, group.mask))?;
            group.pc += 1;
            return Ok(if is_split || others != 0 { Flow::Choose } else { Flow::Jump });
        }
        let mut present = group.mask;
        let mut arrived: Vec<usize> = Vec::new();
        for (index, other) in warp.groups.iter().enumerate() {
            let same = matches!(other.state, State::Members(mask) if mask == members);
            if same
                && code
                    .insts
                    .get(other.pc as usize)
                    .is_some_and(|inst| self.is_same_operation(&inst.op, op))
            {
                arrived.push(index);
                present |= other.mask;
            }
        }
        if present & required != required {
            return Ok(wait(group, State::Members(members)));
        }
        let mut converged: Vec<LaneGroup> = Vec::new();
        for &index in arrived.iter().rev() {
            converged.push(warp.groups.swap_remove(index));
        }
        self.run_converged(block, warp, group, &mut converged, (op, members, present))?;
        group.pc += 1;
        for mut other in converged {
            other.pc += 1;
            other.state = State::Ready;
            warp.groups.push(other);
        }
        Ok(Flow::Choose)
    }

    fn warp_inst(&self, op: &Op) -> Option<&WarpInst> {
        match op {
            Op::Warp(index) => self.code.warp_insts.get(*index as usize),
            _ => None,
        }
    }

    fn is_same_operation(&self, one: &Op, two: &Op) -> bool {
        match (one, two) {
            (Op::WarpBarrier { .. }, Op::WarpBarrier { .. }) => true,
            (Op::Warp(_), Op::Warp(_)) => {
                self.warp_inst(one).map(|inst| inst.instruction)
                    == self.warp_inst(two).map(|inst| inst.instruction)
            }
            _ => false,
        }
    }

    fn check_whole(&self, warp: &Warp, group: &LaneGroup) -> Result<(), Box<Stop>> {
        if warp.live != Mask::MAX && self.checks.divergence {
            let lane = group.mask.trailing_zeros() as usize;
            let message = format!("only the lanes {:#010x} of the warp execute it", warp.live);
            return Err(Stop::new(FaultKind::DivergentWarp(message), lane));
        }
        Ok(())
    }

    /// Runs an operation for the lanes of `group` and of the groups that have converged with it;
    /// `operation` is the instruction, the members and the lanes that execute it.
    fn run_converged(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        converged: &mut [LaneGroup],
        operation: (&Op, Mask, Mask),
    ) -> Result<(), Box<Stop>> {
        let (op, members, executing) = operation;
        let code = self.code;
        if matches!(op, Op::WarpBarrier { .. }) {
            block.order.lanes(warp.number as usize, executing);
            return Ok(());
        }
        let Op::Warp(index) = op else { return Ok(()) };
        let Some(inst) = code.warp_insts.get(*index as usize) else { return Ok(()) };
        let exchange = match &inst.instruction {
            Instruction::Exchange(exchange) => exchange,
            Instruction::Transfer(transfer) => {
                return self.transfer_matrix(block, warp, group, (transfer, inst), executing);
            }
        };
        let mut out = std::mem::take(&mut self.scratch);
        if out.len() < inst.results.len() {
            out.resize(inst.results.len(), [0; WARP]);
        }
        let results = &mut out[..inst.results.len()];
        let mut sources: [&Lanes; MOST_SOURCES] = [&ZERO; MOST_SOURCES];
        let gathered;
        if converged.is_empty() {
            for (to, &source) in sources.iter_mut().zip(&inst.sources) {
                *to = self.sources.fetch(warp, group.base, source);
            }
        } else {
            let value = |base, source| *self.value(warp, base, source);
            gathered =
                self.gather(group, converged, inst, value, |to, from, lane| to[lane] = from[lane]);
            sources.iter_mut().zip(&gathered).for_each(|(to, from)| *to = from);
        }
        let sources = &sources[..inst.sources.len().min(MOST_SOURCES)];
        let undefined = if warp.undefined.is_empty() {
            None
        } else {
            let lanes = (members, executing);
            Some(self.converged_undefined(
                warp,
                group,
                converged,
                (inst, exchange),
                sources,
                lanes,
            )?)
        };
        let defect = exchange.eval(sources, members, executing, &mut self.work, results);
        let mut write = |place: &LaneGroup, registers: &[Reg]| {
            for (index, (&result, value)) in registers.iter().zip(&*results).enumerate() {
                warp.write(place.base, result, executing & place.mask, value);
                if let Some(undefined) = undefined.as_ref().filter(|_| result != NO_REG) {
                    let number = number(place.base, result);
                    let undefined = &undefined[index.min(undefined.len().saturating_sub(1))];
                    warp.undefined.set(number, executing & place.mask, undefined);
                }
            }
        };
        write(group, &inst.results);
        for other in converged {
            write(other, self.warp_inst_at(other.pc).map_or(&[], |inst| &inst.results));
        }
        self.scratch = out;
        match defect {
            Err(defect) if self.checks.divergence => self.report(defect, executing, warp),
            _ => Ok(()),
        }
    }

    /// Collects the sources of all lanes that take part, those of each group from its own
    /// instruction: by `value`, and by `take` for one lane.
    fn gather<V>(
        &self,
        group: &LaneGroup,
        converged: &[LaneGroup],
        inst: &WarpInst,
        value: impl Fn(u32, Value) -> V,
        take: impl Fn(&mut V, &V, usize),
    ) -> Vec<V> {
        let mut gathered: Vec<V> = Vec::with_capacity(inst.sources.len());
        for (index, &source) in inst.sources.iter().enumerate() {
            let mut all = value(group.base, source);
            for other in converged {
                let theirs = self.warp_inst_at(other.pc).and_then(|inst| inst.sources.get(index));
                let Some(&source) = theirs else { continue };
                let theirs = value(other.base, source);
                lanes_of(other.mask).for_each(|lane| take(&mut all, &theirs, lane));
            }
            gathered.push(all);
        }
        gathered
    }

    /// Returns the undefined bits of the results of an operation between the lanes of groups
    /// that meet.
    #[cold]
    #[inline(never)]
    fn converged_undefined(
        &self,
        warp: &Warp,
        group: &LaneGroup,
        converged: &[LaneGroup],
        (inst, exchange): (&WarpInst, &Exchange),
        sources: &[&Lanes],
        (members, executing): (Mask, Mask),
    ) -> Result<Vec<Undefined>, Box<Stop>> {
        let value = |base, source| warp.undefined.get(base, source).clone();
        let all = self.gather(group, converged, inst, value, Undefined::take);
        self.exchange_undefined(exchange, sources, &all, (members, executing))
    }

    fn warp_inst_at(&self, pc: u32) -> Option<&WarpInst> {
        self.code.insts.get(pc as usize).and_then(|inst| self.warp_inst(&inst.op))
    }

    /// Returns the fault of a use that the ISA leaves undefined; `executing` are the lanes that
    /// executed it.
    pub(super) fn report(
        &self,
        defect: Defect,
        executing: Mask,
        warp: &Warp,
    ) -> Result<(), Box<Stop>> {
        let first = executing.trailing_zeros() as usize % WARP;
        let (lane, message) = match defect {
            Defect::NotMembers(lanes) => {
                (lanes.trailing_zeros() as usize, "the lane is not in the member mask".to_owned())
            }
            // A member that has exited, or is beyond the block, is not waited for.
            Defect::Missing(lanes) if lanes & warp.live == 0 => return Ok(()),
            Defect::Missing(lanes) => {
                (first, format!("the lanes {lanes:#010x} of the member mask do not execute it"))
            }
            // Legal where the lane drops the value, as in a reduction by fewer lanes than it
            // shuffles over.
            Defect::ReadsInactive { .. } => return Ok(()),
            Defect::Differs { lane } => (
                usize::from(lane),
                "the address or stride differs from that of the first lane".to_owned(),
            ),
        };
        Err(Stop::new(FaultKind::DivergentWarp(message), lane % WARP))
    }

    /// Runs the operations between lanes that waited for lanes which have now arrived or exited.
    ///
    /// [`Self::warp_operation`] runs an operation when the last lane arrives; this is for the two
    /// cases in which no lane arrives last. A lane that others wait for has exited. And lanes that
    /// wait for their whole warp come one group after another, and are only then joined into one.
    pub(super) fn run_completed(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
    ) -> Result<(), Box<Faulted>> {
        if warp.groups.iter().all(|f| !matches!(f.state, State::Members(_) | State::Warp)) {
            return Ok(());
        }
        warp.merge(|group| matches!(group.state, State::Warp));
        let mut index = 0;
        while index < warp.groups.len() {
            let group = &warp.groups[index];
            let required = match group.state {
                State::Warp => warp.live,
                State::Members(members) => members & warp.live,
                State::Ready | State::Barrier { .. } | State::Cluster => {
                    index += 1;
                    continue;
                }
            };
            let is_members = matches!(group.state, State::Members(_));
            let exited = matches!(group.state, State::Members(members) if members & warp.lanes & !warp.live != 0);
            if (!is_members && group.mask != required) || (is_members && !exited) {
                index += 1;
                continue;
            }
            let mut group = warp.groups.swap_remove(index);
            group.state = State::Ready;
            self.pc = group.pc;
            let code = self.code;
            let Some(inst) = code.insts.get(group.pc as usize) else { continue };
            let mask = group.mask;
            let result = self.warp_operation(block, warp, &mut group, &inst.op, mask);
            let still_waits = !group.is_ready();
            warp.groups.push(group);
            if let Err(stop) = result {
                return Err(self.faulted(warp, *stop));
            }
            if still_waits {
                let last = warp.groups.len() - 1;
                warp.groups.swap(index, last);
                index += 1;
            } else {
                index = 0;
            }
        }
        Ok(())
    }
}
