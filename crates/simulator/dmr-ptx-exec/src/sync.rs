//! Operations between lanes: where lanes of a warp meet, and what they exchange.

use dmr_ptx_arith::lanes::{Defect, Exchange, Instruction, Meeting};
use dmr_ptx_arith::{Lanes, Mask, WARP};

use super::block::Common;
use super::code::{NO_REG, Op, Reg, Value, WarpStep};
use super::core::{Core, Faulted, Flow, Stop, wait};
use super::fault::FaultKind;
use super::registers::{ZERO, number};
use super::space::lanes_of;
use super::undefined::Undefined;
use super::warp::{Fragment, State, Warp};

/// The maximum number of source registers of an operation between lanes.
pub(super) const MOST_SOURCES: usize = 48;

impl Core<'_> {
    /// Runs an operation between lanes, or makes the fragment wait for the other lanes.
    pub(super) fn warp_operation(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        fragment: &mut Fragment,
        op: &Op,
        mask: Mask,
    ) -> Result<Flow, Box<Stop>> {
        let code = self.code;
        let step = self.warp_step(op);
        let (meeting, members) = match op {
            Op::WarpBarrier { members } => (Meeting::Members, Some(*members)),
            _ => (
                step.map_or(Meeting::Executing, |step| step.instruction.meeting()),
                step.and_then(|step| step.members),
            ),
        };
        if meeting == Meeting::Executing {
            self.run_meeting(common, warp, fragment, &mut [], (op, mask, mask))?;
            return Ok(Flow::Next);
        }
        let parted = mask != fragment.mask;
        if parted {
            let others = fragment.split(fragment.mask & !mask, fragment.pc + 1);
            warp.fragments.push(others);
        }
        if meeting == Meeting::Warp {
            if fragment.mask == warp.live {
                self.check_whole(warp, fragment)?;
                self.run_meeting(common, warp, fragment, &mut [], (op, Mask::MAX, fragment.mask))?;
                fragment.pc += 1;
                return Ok(if parted { Flow::Choose } else { Flow::Jump });
            }
            return Ok(wait(fragment, State::Warp));
        }
        let named = members.map_or([u64::from(Mask::MAX); WARP], |members| {
            *self.value(warp, fragment.base, members)
        });
        let first = fragment.mask.trailing_zeros() as usize % WARP;
        let members = named[first] as Mask;
        let others = lanes_of(fragment.mask).filter(|&lane| named[lane] as Mask != members);
        let others = others.fold(0, |mask: Mask, lane| mask | 1 << lane);
        if others != 0 {
            let pc = fragment.pc;
            warp.fragments.push(fragment.split(others, pc));
        }
        let strangers = fragment.mask & !members;
        if strangers != 0 && self.checks.divergence {
            let message = format!("the lane is not in the member mask {members:#010x}");
            return Err(Stop::new(
                FaultKind::DivergentWarp(message),
                strangers.trailing_zeros() as usize,
            ));
        }
        let required = members & warp.live;
        if fragment.mask & required == required {
            self.run_meeting(common, warp, fragment, &mut [], (op, members, fragment.mask))?;
            fragment.pc += 1;
            return Ok(if parted || others != 0 { Flow::Choose } else { Flow::Jump });
        }
        let mut present = fragment.mask;
        let mut together: Vec<usize> = Vec::new();
        for (index, other) in warp.fragments.iter().enumerate() {
            let same = matches!(other.state, State::Members(mask) if mask == members);
            if same
                && code
                    .steps
                    .get(other.pc as usize)
                    .is_some_and(|step| self.is_same_operation(&step.op, op))
            {
                together.push(index);
                present |= other.mask;
            }
        }
        if present & required != required {
            return Ok(wait(fragment, State::Members(members)));
        }
        let mut met: Vec<Fragment> = Vec::new();
        for &index in together.iter().rev() {
            met.push(warp.fragments.swap_remove(index));
        }
        self.run_meeting(common, warp, fragment, &mut met, (op, members, present))?;
        fragment.pc += 1;
        for mut other in met {
            other.pc += 1;
            other.state = State::Ready;
            warp.fragments.push(other);
        }
        Ok(Flow::Choose)
    }

    fn warp_step(&self, op: &Op) -> Option<&WarpStep> {
        match op {
            Op::Warp(index) => self.code.warp_steps.get(*index as usize),
            _ => None,
        }
    }

    fn is_same_operation(&self, one: &Op, two: &Op) -> bool {
        match (one, two) {
            (Op::WarpBarrier { .. }, Op::WarpBarrier { .. }) => true,
            (Op::Warp(_), Op::Warp(_)) => {
                self.warp_step(one).map(|step| step.instruction)
                    == self.warp_step(two).map(|step| step.instruction)
            }
            _ => false,
        }
    }

    fn check_whole(&self, warp: &Warp, fragment: &Fragment) -> Result<(), Box<Stop>> {
        if warp.live != Mask::MAX && self.checks.divergence {
            let lane = fragment.mask.trailing_zeros() as usize;
            let message = format!("only the lanes {:#010x} of the warp execute it", warp.live);
            return Err(Stop::new(FaultKind::DivergentWarp(message), lane));
        }
        Ok(())
    }

    /// Runs an operation for the lanes of `fragment` and of those it has met; `meeting` is the
    /// operation, the members and the lanes that execute it.
    fn run_meeting(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        fragment: &Fragment,
        met: &mut [Fragment],
        meeting: (&Op, Mask, Mask),
    ) -> Result<(), Box<Stop>> {
        let (op, members, executing) = meeting;
        let code = self.code;
        if matches!(op, Op::WarpBarrier { .. }) {
            common.order.lanes(warp.number as usize, executing);
            return Ok(());
        }
        let Op::Warp(index) = op else { return Ok(()) };
        let Some(step) = code.warp_steps.get(*index as usize) else { return Ok(()) };
        let exchange = match &step.instruction {
            Instruction::Exchange(exchange) => exchange,
            Instruction::Transfer(transfer) => {
                return self.transfer_matrix(common, warp, fragment, (transfer, step), executing);
            }
        };
        let mut out = std::mem::take(&mut self.scratch);
        if out.len() < step.results.len() {
            out.resize(step.results.len(), [0; WARP]);
        }
        let results = &mut out[..step.results.len()];
        let mut sources: [&Lanes; MOST_SOURCES] = [&ZERO; MOST_SOURCES];
        let gathered;
        if met.is_empty() {
            for (to, &source) in sources.iter_mut().zip(&step.sources) {
                *to = self.sources.fetch(warp, fragment.base, source);
            }
        } else {
            let value = |base, source| *self.value(warp, base, source);
            gathered =
                self.gather(fragment, met, step, value, |to, from, lane| to[lane] = from[lane]);
            sources.iter_mut().zip(&gathered).for_each(|(to, from)| *to = from);
        }
        let sources = &sources[..step.sources.len().min(MOST_SOURCES)];
        let undefined = if warp.undefined.is_empty() {
            None
        } else {
            let lanes = (members, executing);
            Some(self.meet_undefined(warp, fragment, met, (step, exchange), sources, lanes)?)
        };
        let defect = exchange.eval(sources, members, executing, &mut self.work, results);
        let mut write = |place: &Fragment, registers: &[Reg]| {
            for (index, (&result, value)) in registers.iter().zip(&*results).enumerate() {
                warp.write(place.base, result, executing & place.mask, value);
                if let Some(undefined) = undefined.as_ref().filter(|_| result != NO_REG) {
                    let number = number(place.base, result);
                    let undefined = &undefined[index.min(undefined.len().saturating_sub(1))];
                    warp.undefined.set(number, executing & place.mask, undefined);
                }
            }
        };
        write(fragment, &step.results);
        met.iter().for_each(|other| write(other, self.results_at(other.pc)));
        self.scratch = out;
        match defect {
            Err(defect) if self.checks.divergence => self.report(defect, executing, warp),
            _ => Ok(()),
        }
    }

    /// Collects the sources of all lanes that meet, those of each fragment from its own
    /// instruction: by `value`, and by `take` for one lane.
    fn gather<V>(
        &self,
        fragment: &Fragment,
        met: &[Fragment],
        step: &WarpStep,
        value: impl Fn(u32, Value) -> V,
        take: impl Fn(&mut V, &V, usize),
    ) -> Vec<V> {
        let mut gathered: Vec<V> = Vec::with_capacity(step.sources.len());
        for (index, &source) in step.sources.iter().enumerate() {
            let mut all = value(fragment.base, source);
            for other in met {
                let Some(Op::Warp(number)) =
                    self.code.steps.get(other.pc as usize).map(|step| &step.op)
                else {
                    continue;
                };
                let theirs = self
                    .code
                    .warp_steps
                    .get(*number as usize)
                    .and_then(|step| step.sources.get(index));
                let Some(&source) = theirs else { continue };
                let theirs = value(other.base, source);
                lanes_of(other.mask).for_each(|lane| take(&mut all, &theirs, lane));
            }
            gathered.push(all);
        }
        gathered
    }

    /// Returns the undefined bits of the results of an operation between the lanes of fragments
    /// that meet.
    #[cold]
    #[inline(never)]
    fn meet_undefined(
        &self,
        warp: &Warp,
        fragment: &Fragment,
        met: &[Fragment],
        (step, exchange): (&WarpStep, &Exchange),
        sources: &[&Lanes],
        (members, executing): (Mask, Mask),
    ) -> Result<Vec<Undefined>, Box<Stop>> {
        let value = |base, source| warp.undefined.get(base, source).clone();
        let all = self.gather(fragment, met, step, value, Undefined::take);
        self.exchange_undefined(exchange, sources, &all, (members, executing))
    }

    fn results_at(&self, pc: u32) -> &[u32] {
        match self.code.steps.get(pc as usize).map(|step| &step.op) {
            Some(Op::Warp(index)) => {
                self.code.warp_steps.get(*index as usize).map_or(&[], |step| &step.results)
            }
            _ => &[],
        }
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

    /// Runs what waiting fragments have become ready for: other lanes have arrived or exited.
    pub(super) fn settle(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
    ) -> Result<(), Box<Faulted>> {
        if warp.fragments.iter().all(|f| !matches!(f.state, State::Members(_) | State::Warp)) {
            return Ok(());
        }
        merge_waiting(warp);
        let mut index = 0;
        while index < warp.fragments.len() {
            let fragment = &warp.fragments[index];
            let required = match fragment.state {
                State::Warp => warp.live,
                State::Members(members) => members & warp.live,
                State::Ready | State::Barrier { .. } | State::Cluster => {
                    index += 1;
                    continue;
                }
            };
            let is_members = matches!(fragment.state, State::Members(_));
            let exited = matches!(fragment.state, State::Members(members) if members & warp.lanes & !warp.live != 0);
            if (!is_members && fragment.mask != required) || (is_members && !exited) {
                index += 1;
                continue;
            }
            let mut fragment = warp.fragments.swap_remove(index);
            fragment.state = State::Ready;
            self.pc = fragment.pc;
            let code = self.code;
            let Some(step) = code.steps.get(fragment.pc as usize) else { continue };
            let mask = fragment.mask;
            let result = self.warp_operation(common, warp, &mut fragment, &step.op, mask);
            let still_waits = !fragment.is_ready();
            warp.fragments.push(fragment);
            if let Err(stop) = result {
                let thread = warp.number * WARP as u32 + stop.lane as u32;
                return Err(Box::new(Faulted { kind: stop.kind, thread, pc: self.pc }));
            }
            if still_waits {
                let last = warp.fragments.len() - 1;
                warp.fragments.swap(index, last);
                index += 1;
            } else {
                index = 0;
            }
        }
        Ok(())
    }
}

/// Joins the fragments that wait for their whole warp at the same instruction.
fn merge_waiting(warp: &mut Warp) {
    let mut index = 0;
    while index + 1 < warp.fragments.len() {
        let mut other = index + 1;
        while other < warp.fragments.len() {
            let (head, tail) = warp.fragments.split_at_mut(other);
            let one = &mut head[index];
            let two = &tail[0];
            let both = matches!(one.state, State::Warp) && matches!(two.state, State::Warp);
            if both && one.meets(two) {
                one.mask |= two.mask;
                warp.fragments.swap_remove(other);
            } else {
                other += 1;
            }
        }
        index += 1;
    }
}
