//! The registers that an instruction reads and writes.

use crate::cluster::ClusterInst;
use crate::code::{
    Atomic, Guard, Inst, Location, NO_REG, Op, Reg, Source, Transfer, Value, WarpInst,
};
use crate::copies::{CopyInst, SharedAccess};
use crate::program::{Actual, Call, Formal};

/// The use of a register by an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// Calls a function for each register of an instruction.
pub(crate) struct Visitor<'v> {
    pub(crate) calls: &'v mut [Call],
    pub(crate) warp_insts: &'v mut [WarpInst],
    /// The registers of the return values of the function.
    pub(crate) returns: &'v mut [Formal],
}

impl Visitor<'_> {
    /// Calls `visit` for each register of an instruction, in any order; it may replace the
    /// register.
    pub(crate) fn inst(&mut self, inst: &mut Inst, visit: &mut dyn FnMut(&mut Reg, Use)) {
        if inst.guard != Guard::NONE {
            visit(&mut inst.guard.register, Use::Read);
        }
        match &mut inst.op {
            Op::Nop | Op::Branch { .. } | Op::Exit | Op::Trap | Op::Fence(_) | Op::Refused(_) => {}
            Op::Arith(arith) => {
                arith.sources.iter_mut().for_each(|source| read(source, visit));
                write(&mut arith.dst, visit);
                write(&mut arith.second, visit);
            }
            Op::Copy { dst, src }
            | Op::Not { dst, src }
            | Op::ToGeneric { dst, src, .. }
            | Op::IsSpace { dst, src, .. } => {
                read(src, visit);
                write(dst, visit);
            }
            Op::Pack { dst, sources, .. } => {
                sources.iter_mut().for_each(|source| read(source, visit));
                dst.iter_mut().for_each(|dst| write(dst, visit));
            }
            Op::Unpack { dst, sources, .. } => {
                sources.iter_mut().for_each(|source| read(source, visit));
                dst.iter_mut().for_each(|dst| write(dst, visit));
            }
            Op::Special { dst, .. } | Op::FrameAddress { dst, .. } => write(dst, visit),
            Op::BranchIndex { index, .. } => read(index, visit),
            Op::Sleep(duration) => read(duration, visit),
            Op::Call(index) => self.call(*index, visit),
            Op::Return => {
                for formal in &mut *self.returns {
                    if let Formal::Register { register, .. } = formal {
                        visit(register, Use::Read);
                    }
                }
            }
            Op::Load(access) | Op::Store(access) => transfer(access, visit),
            Op::Atomic(access) => atomic(access, visit),
            Op::Barrier(barrier) => {
                read(&mut barrier.id, visit);
                read(&mut barrier.predicate, visit);
                barrier.threads.iter_mut().for_each(|threads| read(threads, visit));
                write(&mut barrier.dst, visit);
            }
            Op::WarpBarrier { members } => read(members, visit),
            Op::Warp(index) => self.warp(*index, visit),
            Op::MemoryBarrier(barrier) => {
                barrier.location.iter_mut().for_each(|at| location(at, visit));
                barrier.operand.iter_mut().for_each(|operand| read(operand, visit));
                write(&mut barrier.dst, visit);
            }
            Op::Copies(inst) => copy(inst, visit),
            Op::Cluster(ClusterInst::Arrive(_) | ClusterInst::Wait) => {}
            Op::Cluster(ClusterInst::Map { dst, src, rank }) => {
                read(src, visit);
                read(rank, visit);
                write(dst, visit);
            }
            Op::Cluster(ClusterInst::Rank { dst, src }) => {
                read(src, visit);
                write(dst, visit);
            }
        }
    }

    fn call(&mut self, index: u32, visit: &mut dyn FnMut(&mut Reg, Use)) {
        let Some(call) = self.calls.get_mut(index as usize) else { return };
        if let crate::program::Target::Indirect(value) = &mut call.target {
            read(value, visit);
        }
        for argument in &mut call.arguments {
            if let Actual::Value { value, .. } = argument {
                read(value, visit);
            }
        }
        for result in &mut call.returns {
            if let Actual::Value { value, .. } = result
                && let Source::Register(mut register) = value.source()
            {
                visit(&mut register, Use::Write);
                *value = Value::register(register);
            }
        }
    }

    fn warp(&mut self, index: u32, visit: &mut dyn FnMut(&mut Reg, Use)) {
        let Some(inst) = self.warp_insts.get_mut(index as usize) else { return };
        inst.sources.iter_mut().for_each(|source| read(source, visit));
        for value in [&mut inst.members, &mut inst.address, &mut inst.stride].into_iter().flatten()
        {
            read(value, visit);
        }
        inst.results.iter_mut().for_each(|dst| write(dst, visit));
    }
}

fn read(value: &mut Value, visit: &mut dyn FnMut(&mut Reg, Use)) {
    if let Source::Register(mut register) = value.source() {
        visit(&mut register, Use::Read);
        *value = Value::register(register);
    }
}

fn write(dst: &mut Reg, visit: &mut dyn FnMut(&mut Reg, Use)) {
    if *dst != NO_REG {
        visit(dst, Use::Write);
    }
}

fn location(location: &mut Location, visit: &mut dyn FnMut(&mut Reg, Use)) {
    read(&mut location.base, visit);
}

fn transfer(transfer: &mut Transfer, visit: &mut dyn FnMut(&mut Reg, Use)) {
    location(&mut transfer.location, visit);
    transfer.values.iter_mut().for_each(|value| read(value, visit));
    transfer.registers.iter_mut().for_each(|dst| write(dst, visit));
}

fn atomic(atomic: &mut Atomic, visit: &mut dyn FnMut(&mut Reg, Use)) {
    location(&mut atomic.location, visit);
    atomic.values.iter_mut().for_each(|value| read(value, visit));
    atomic.swap.iter_mut().for_each(|value| read(value, visit));
    atomic.registers.iter_mut().for_each(|dst| write(dst, visit));
}

fn copy(inst: &mut CopyInst, visit: &mut dyn FnMut(&mut Reg, Use)) {
    match inst {
        CopyInst::Lanes(copy) => {
            location(&mut copy.to, visit);
            location(&mut copy.from, visit);
            copy.size.iter_mut().chain(&mut copy.ignores).for_each(|value| read(value, visit));
        }
        CopyInst::Bulk(copy) => {
            location(&mut copy.to, visit);
            location(&mut copy.from, visit);
            read(&mut copy.size, visit);
            copy.barrier.iter_mut().for_each(|at| location(at, visit));
            copy.ranks.iter_mut().for_each(|value| read(value, visit));
        }
        CopyInst::Counted(counted) => {
            match &mut counted.access {
                SharedAccess::Store(access) => transfer(access, visit),
                SharedAccess::Change(access) => atomic(access, visit),
            }
            location(&mut counted.barrier, visit);
        }
        CopyInst::Tensor(copy) => {
            location(&mut copy.map, visit);
            location(&mut copy.shared, visit);
            copy.coordinates.iter_mut().for_each(|value| read(value, visit));
            copy.ranks.iter_mut().for_each(|value| read(value, visit));
            copy.barrier.iter_mut().for_each(|at| location(at, visit));
        }
        CopyInst::Reducing(copy) => {
            location(&mut copy.to, visit);
            location(&mut copy.from, visit);
            read(&mut copy.size, visit);
        }
        CopyInst::Commit(_) | CopyInst::Wait { .. } | CopyInst::WaitAll => {}
    }
}
