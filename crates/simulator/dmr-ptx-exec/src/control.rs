//! Branches, calls, returns and exits.

use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::block::{BARRIERS, BlockState, Expected};
use super::code::{Barrier, BarrierKind, Op, Source, Value};
use super::fault::{FaultKind, SpaceName};
use super::global::Qualifier;
use super::interpreter::{Flow, Interpreter, Stop, wait};
use super::memory::{Reach, unwritten};
use super::program::{Actual, Call, Formal, Target};
use super::registers::{number, predicate_mask};
use super::space::{FUNCTION_STRIDE, FUNCTIONS, Run, is_same, lanes_where};
use super::transfer::extend;
use super::undefined::{Undefined, undefine};
use super::warp::{Frame, LaneGroup, State, Warp};

/// The maximum number of registers of a warp, in all functions that it is in.
const MOST_REGISTERS: u32 = 1 << 18;

impl Interpreter<'_> {
    pub(super) fn control(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        op: &Op,
        mask: Mask,
    ) -> Result<Flow, Box<Stop>> {
        if let Op::Branch { target } = *op {
            if mask == group.mask {
                group.pc = target;
                return Ok(Flow::Jump);
            }
            let taken = group.split(mask, target);
            warp.groups.push(taken);
            group.pc += 1;
            return Ok(Flow::Choose);
        }
        // The lanes whose predicate is false go on; the rest of this function is about those of
        // `mask`.
        let is_split = warp.skip_others(group, mask);
        match *op {
            Op::BranchIndex { index, table } => self.branch_index(warp, group, index, table),
            Op::Call(call) => {
                let code = self.code;
                let Some(call_inst) = code.calls.get(call as usize) else { return Ok(Flow::Next) };
                let flow = self.call(block, warp, group, call, call_inst)?;
                Ok(if is_split { after_split(group, flow) } else { flow })
            }
            Op::Return if !group.stack.is_empty() => {
                self.return_from(warp, group);
                Ok(Flow::Choose)
            }
            _ => {
                if matches!(op, Op::Return) && !is_split && self.checks.divergence {
                    self.check_left_out(warp, group)?;
                }
                warp.live &= !group.mask;
                warp.undefined.clear(0, group.mask);
                group.mask = 0;
                Ok(Flow::Choose)
            }
        }
    }

    /// Refuses the end of lanes at an instruction behind a barrier at which others of their warp
    /// wait. Lanes that ended elsewhere have exited early, and a barrier does not wait for these.
    fn check_left_out(&self, warp: &Warp, group: &LaneGroup) -> Result<(), Box<Stop>> {
        let waits = |other: &LaneGroup| match &other.state {
            State::Barrier { barrier, .. } => {
                let is_whole = barrier.aligned && barrier.threads.is_none();
                is_whole && self.code.leads(other.pc, group.pc)
            }
            _ => false,
        };
        if !warp.groups.iter().any(waits) {
            return Ok(());
        }
        let message = "the thread ends, and others of its warp wait at a barrier that it left out";
        let lane = group.mask.trailing_zeros() as usize % WARP;
        Err(Stop::new(FaultKind::DivergentBarrier(message.to_owned()), lane))
    }

    /// Branches to the label of a table that each lane's index selects.
    fn branch_index(
        &self,
        warp: &mut Warp,
        group: &mut LaneGroup,
        index: Value,
        table: u32,
    ) -> Result<Flow, Box<Stop>> {
        let indices = *self.value(warp, group.base, index);
        let targets = self.code.tables.get(table as usize).map_or(&[][..], Vec::as_slice);
        let mut rest = group.mask;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let index = indices[first] & 0xffff_ffff;
            let Some(&target) = targets.get(index as usize) else {
                let message =
                    format!("`brx.idx` with index {index}: the list has {} targets", targets.len());
                return Err(Stop::new(FaultKind::Invalid(message), first));
            };
            let mask = lanes_where(rest, |lane| indices[lane] & 0xffff_ffff == index);
            rest &= !mask;
            if mask == group.mask {
                group.pc = target;
            } else {
                warp.groups.push(group.split(mask, target));
            }
        }
        Ok(Flow::Choose)
    }

    fn call(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        number: u32,
        call: &Call,
    ) -> Result<Flow, Box<Stop>> {
        let function = match call.target {
            Target::Function(function) => function,
            Target::Builtin(builtin) => return self.builtin(block, warp, group, builtin, call),
            Target::Indirect(value) => {
                let undefined = warp.undefined.get(group.base, value);
                self.require(undefined, group.mask, "the target of a call")?;
                let targets = *self.value(warp, group.base, value);
                let first = group.mask.trailing_zeros() as usize % WARP;
                if !is_same(group.mask, &targets) {
                    let others = lanes_where(group.mask, |lane| targets[lane] != targets[first]);
                    let pc = group.pc;
                    warp.groups.push(group.split(others, pc));
                }
                let index = targets[first].wrapping_sub(FUNCTIONS) / FUNCTION_STRIDE;
                match u32::try_from(index) {
                    Ok(index) if targets[first].is_multiple_of(FUNCTION_STRIDE) => index,
                    _ => return Err(self.no_function(targets[first], first)),
                }
            }
        };
        let lane = group.mask.trailing_zeros() as usize;
        let code = self.code;
        let Some(callee) =
            code.functions.get(function as usize).filter(|callee| callee.is_callable)
        else {
            return Err(self.no_function(FUNCTIONS + u64::from(function) * FUNCTION_STRIDE, lane));
        };
        if group.stack.len() >= self.limits.call_depth as usize {
            let message = format!("calls are deeper than {}", self.limits.call_depth);
            return Err(Stop::new(FaultKind::StackOverflow(message), lane));
        }
        let base = group.base + call.registers;
        let local = u64::from(group.local) + call.frame_bytes;
        if local + callee.frame_bytes > u64::from(self.limits.local_bytes) {
            let message = format!("more than {} bytes of local memory", self.limits.local_bytes);
            return Err(Stop::new(FaultKind::StackOverflow(message), lane));
        }
        if base + callee.registers > MOST_REGISTERS {
            let message = format!("more than {MOST_REGISTERS} registers in all calls");
            return Err(Stop::new(FaultKind::StackOverflow(message), lane));
        }
        let registers = (base + callee.registers) as usize;
        warp.registers.reserve(registers);
        let local = local as u32;
        warp.local.reserve(local as usize + callee.frame_bytes as usize);
        warp.local.clear(group.mask, local as usize, callee.frame_bytes as usize);
        for (actual, formal) in call.arguments.iter().zip(&callee.formals) {
            self.pass(
                warp,
                group.mask,
                (group.base, group.local, actual),
                (base, local, &formal.as_actual()),
            );
        }
        let frame = Frame {
            call: number,
            function,
            pc: group.pc + 1,
            base: group.base,
            local: group.local,
            local_end: group.local_end,
        };
        group.stack.push(frame);
        group.base = base;
        group.local = local;
        group.pc = callee.entry;
        group.local_end = local + callee.frame_bytes as u32;
        Ok(Flow::Choose)
    }

    fn no_function(&self, address: u64, lane: usize) -> Box<Stop> {
        Stop::new(FaultKind::Invalid(format!("a call to {address:#x}, which is no function")), lane)
    }

    /// Ends a call: copies the return values and restores the frame of the caller.
    fn return_from(&self, warp: &mut Warp, group: &mut LaneGroup) {
        let Some(frame) = group.stack.pop() else { return };
        let code = self.code;
        if let (Some(call), Some(callee)) =
            (code.calls.get(frame.call as usize), code.functions.get(frame.function as usize))
        {
            for (formal, actual) in callee.returns.iter().zip(&call.returns) {
                let from = (group.base, group.local, &Formal::as_actual(formal));
                self.pass(warp, group.mask, from, (frame.base, frame.local, actual));
            }
        }
        warp.undefined.clear(group.base, group.mask);
        group.base = frame.base;
        group.local = frame.local;
        group.pc = frame.pc;
        group.local_end = frame.local_end;
    }

    /// Copies an argument or return value: from and to a register or a variable of the frame.
    fn pass(
        &self,
        warp: &mut Warp,
        mask: Mask,
        from: (u32, u32, &Actual),
        to: (u32, u32, &Actual),
    ) {
        let (from_base, from_local, from) = from;
        let (to_base, to_local, to) = to;
        match (*from, *to) {
            (Actual::Value { value, .. }, Actual::Value { value: dst, .. }) => {
                let lanes = *self.value(warp, from_base, value);
                if let Source::Register(dst) = dst.source() {
                    if !warp.undefined.is_empty() {
                        let undefined = warp.undefined.get(from_base, value).clone();
                        warp.undefined.set(number(to_base, dst), mask, &undefined);
                    }
                    warp.write(to_base, dst, mask, &lanes);
                }
            }
            (Actual::Value { value, bytes }, Actual::Frame { offset, bytes: room }) => {
                let lanes = *self.value(warp, from_base, value);
                let undefined = warp.undefined.get(from_base, value).bits;
                for lane in lanes_of(mask) {
                    let all = lanes[lane].to_le_bytes();
                    let part = &all[..u64::from(bytes).min(room).min(8) as usize];
                    if let Some((to, written)) =
                        warp.local.get(lane, u64::from(to_local) + offset, part.len())
                    {
                        to.copy_from_slice(part);
                        written.fill(1);
                        undefine(written, &undefined[lane].to_le_bytes());
                    }
                }
            }
            (Actual::Frame { offset, bytes }, Actual::Value { value, .. }) => {
                let mut lanes = [0; WARP];
                let mut undefined = None;
                let len = (bytes as usize).min(8);
                let address = u64::from(from_local) + offset;
                for lane in lanes_of(mask) {
                    if let Some((from, written)) = warp.local.get(lane, address, len) {
                        lanes[lane] = extend(from, 0);
                        if self.checks.uninitialised && written.contains(&0) {
                            let bits: Vec<u8> = written.iter().map(|&it| unwritten(it)).collect();
                            let space = SpaceName::Local;
                            let qualifier = Qualifier::Plain;
                            let reach =
                                Reach { space, mask, bytes: len as u32, qualifier, uniform: false };
                            let run = Run { address, first: lane, count: 1 };
                            let all = undefined.get_or_insert(Undefined::NONE);
                            all.bits[lane] = extend(&bits, 0);
                            all.origins[lane] = self.origin(warp, &reach, run, lane);
                        }
                    }
                }
                if let Source::Register(dst) = value.source() {
                    if undefined.is_some() || !warp.undefined.is_empty() {
                        let undefined = undefined.unwrap_or(Undefined::NONE);
                        warp.undefined.set(number(to_base, dst), mask, &undefined);
                    }
                    warp.write(to_base, dst, mask, &lanes);
                }
            }
            (Actual::Frame { offset: from, bytes }, Actual::Frame { offset: to, bytes: room }) => {
                let from = u64::from(from_local) + from;
                let to = u64::from(to_local) + to;
                let len = bytes.min(room) as usize;
                for lane in lanes_of(mask) {
                    let Some((data, set)) = warp.local.get(lane, from, len) else { continue };
                    let data = data.to_vec();
                    let set = set.to_vec();
                    if let Some((into, written)) = warp.local.get(lane, to, len) {
                        into.copy_from_slice(&data);
                        written.copy_from_slice(&set);
                    }
                }
            }
        }
    }

    pub(super) fn barrier(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &mut LaneGroup,
        barrier: &Barrier,
        mask: Mask,
    ) -> Result<Flow, Box<Stop>> {
        let one = |lanes: &Lanes| -> Result<u32, Box<Stop>> {
            if is_same(mask, lanes) {
                Ok(lanes[mask.trailing_zeros() as usize % WARP] as u32)
            } else {
                Err(Stop::invalid(
                    "lanes of a warp use different barriers or numbers of threads",
                    mask,
                ))
            }
        };
        let mut id = one(self.value(warp, group.base, barrier.id))?;
        if id >= BARRIERS {
            // The ISA has no such barrier. An H200 takes another one.
            if self.checks.divergence {
                let kind = FaultKind::DivergentBarrier(format!(
                    "there is no barrier {id}: a block has barriers 0 to 15"
                ));
                return Err(Stop::new(kind, mask.trailing_zeros() as usize));
            }
            id %= BARRIERS;
        }
        let expected = match barrier.threads {
            Some(threads) => Expected::Threads(one(self.value(warp, group.base, threads))?),
            None => Expected::Block,
        };
        let expected = match block.expected(id) {
            Some(first) if !self.checks.divergence => first,
            _ => expected,
        };
        let holds = predicate_mask(self.value(warp, group.base, barrier.predicate));
        block
            .arrive(warp.number, mask, id, expected, holds)
            .map_err(|kind| Stop::new(kind, mask.trailing_zeros() as usize))?;
        warp.skip_others(group, mask);
        if barrier.kind == BarrierKind::Arrive {
            block.go_ahead(warp.number, id);
            group.pc += 1;
            return Ok(Flow::Choose);
        }
        Ok(wait(group, State::Barrier { id, barrier: *barrier }))
    }
}

/// Returns the flow of an instruction that only some lanes of a group execute.
fn after_split(group: &mut LaneGroup, flow: Flow) -> Flow {
    if matches!(flow, Flow::Next) {
        group.pc += 1;
    }
    Flow::Choose
}
