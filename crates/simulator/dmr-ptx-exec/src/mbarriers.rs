//! Instructions on `mbarrier` objects of shared memory.

use crate::mbarrier::{Instruction, complete_bytes, phase};
use dmr_ptx_arith::{Mask, WARP, lanes_of};

use super::access::AccessKind;
use super::block::BlockState;
use super::cluster::RANKED;
use super::code::{Location, NO_REG, Reg, Value};
use super::fault::{FaultKind, SpaceName};
use super::global::{Qualifier, Scope};
use super::in_flight::Phase;
use super::interpreter::{Interpreter, Stop};
use super::memory::Reach;
use super::space::{Run, window};
use super::warp::{LaneGroup, Warp};

/// The bytes of an object.
const BYTES: u32 = 8;

/// A decoded instruction on an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryBarrier {
    pub(super) instruction: Instruction,
    /// The object; `None` for an instruction on a state.
    pub(super) location: Option<Location>,
    /// The operand behind the address, where the text has one.
    pub(super) operand: Option<Value>,
    pub(super) dst: Reg,
}

impl Interpreter<'_> {
    pub(super) fn memory_barrier(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        barrier: &MemoryBarrier,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let base = group.base;
        let operands = barrier.operand.map(|operand| *self.value(warp, base, operand));
        let operand = |lane: usize| operands.map(|operands| operands[lane]);
        let Some(location) = &barrier.location else {
            for lane in lanes_of(mask) {
                let outcome = barrier.instruction.apply(0, operand(lane));
                let outcome = outcome.map_err(|defect| stop(&defect, lane))?;
                set(warp, base, barrier.dst, lane, outcome.result);
            }
            return Ok(());
        };
        let addresses = self.addresses(warp, group, location);
        if barrier.instruction.releases {
            self.fence(block, warp, Scope::Cta);
        }
        let mut is_seen = false;
        self.for_each_space(location, mask, &addresses, |this, space, mask, addresses| {
            let qualifier = Qualifier::Atomic(Scope::Cta);
            let reach = Reach { space, mask, bytes: BYTES, qualifier, uniform: false };
            if space != SpaceName::Shared {
                let message = format!("an mbarrier object in {space} memory");
                return Err(Stop::invalid(message, mask));
            }
            this.check_aligned(&reach, addresses)?;
            for lane in lanes_of(mask) {
                let run = Run { address: addresses[lane], first: lane, count: 1 };
                let place = (&reach, run);
                let result = this.memory_barrier_lane(
                    block,
                    warp,
                    place,
                    &barrier.instruction,
                    operand(lane),
                )?;
                set(warp, base, barrier.dst, lane, result);
                is_seen |= result != 0;
            }
            Ok(())
        })?;
        if barrier.instruction.acquires && is_seen {
            self.fence(block, warp, Scope::Cta);
        }
        if barrier.instruction.is_read() && !is_seen {
            self.polls += 1;
        }
        Ok(())
    }

    /// Runs an instruction on the object of one lane, and returns its result.
    fn memory_barrier_lane(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        place: (&Reach, Run),
        instruction: &Instruction,
        operand: Option<u64>,
    ) -> Result<u64, Box<Stop>> {
        let (reach, run) = place;
        if run.address >= RANKED {
            return self.in_block(block, (run.address, run.first), |this, block, address| {
                block.visited.insert(address);
                let place = (reach, Run { address, ..run });
                this.memory_barrier_lane(block, warp, place, instruction, operand)
            });
        }
        let range = self.shared_range(block, reach, run, BYTES as usize)?;
        if range.is_empty() {
            return Ok(0);
        }
        let reads = instruction.is_read();
        let kind = if reads { AccessKind::StrongRead } else { AccessKind::StrongWrite };
        self.record_shared(block, warp, reach, run, (kind, &[]));
        let mut bits = [0; BYTES as usize];
        bits.copy_from_slice(&block.shared[range.clone()]);
        let outcome = instruction.apply(u64::from_le_bytes(bits), operand);
        let outcome = outcome.map_err(|defect| stop(&defect, run.first))?;
        let generic = run.address.wrapping_add(window(SpaceName::Shared));
        if reads {
            if outcome.result != 0 {
                block.order.observe(warp.number as usize, generic);
                block.copies.complete(run.address, phase(outcome.object));
                if block.visited.contains(&run.address) {
                    // The order of the threads of other blocks is not known.
                    block.order.block();
                }
            }
            return Ok(outcome.result);
        }
        if instruction.counts_copies() {
            self.count_copies(block, warp, run, phase(u64::from_le_bytes(bits)))?;
        }
        block.order.publish(warp.number as usize, generic);
        block.shared[range.clone()].copy_from_slice(&outcome.object.to_le_bytes());
        if self.checks.uninitialised {
            block.written[range].fill(1);
        }
        self.polls = 0;
        self.changed = true;
        Ok(outcome.result)
    }
}

impl Interpreter<'_> {
    /// Returns the phase of the object at `address` of shared memory.
    pub(super) fn phase_of(
        &self,
        block: &BlockState,
        address: u64,
        lane: usize,
    ) -> Result<Phase, Box<Stop>> {
        debug_assert!(address < RANKED);
        let qualifier = Qualifier::Atomic(Scope::Cta);
        let reach = Reach {
            space: SpaceName::Shared,
            mask: 1 << lane,
            bytes: BYTES,
            qualifier,
            uniform: false,
        };
        let run = Run { address, first: lane, count: 1 };
        let range = self.shared_range(block, &reach, run, BYTES as usize)?;
        let mut bits = [0; BYTES as usize];
        if !range.is_empty() {
            bits.copy_from_slice(&block.shared[range]);
        }
        Ok(Phase { object: address, number: phase(u64::from_le_bytes(bits)) })
    }

    /// Counts the bytes of a copy that a lane has made at the object at `address` of shared memory.
    pub(super) fn count_bytes(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<(), Box<Stop>> {
        if address >= RANKED {
            return self.in_block(block, (address, lane), |this, block, address| {
                block.visited.insert(address);
                this.count_bytes(block, warp, lane, address, bytes)
            });
        }
        let qualifier = Qualifier::Atomic(Scope::Cta);
        let reach = Reach {
            space: SpaceName::Shared,
            mask: 1 << lane,
            bytes: BYTES,
            qualifier,
            uniform: false,
        };
        let run = Run { address, first: lane, count: 1 };
        let range = self.shared_range(block, &reach, run, BYTES as usize)?;
        if range.is_empty() {
            return Ok(());
        }
        self.record_shared(block, warp, &reach, run, (AccessKind::StrongWrite, &[]));
        self.fence(block, warp, Scope::Cta);
        block.order.publish(warp.number as usize, address.wrapping_add(window(SpaceName::Shared)));
        let mut bits = [0; BYTES as usize];
        bits.copy_from_slice(&block.shared[range.clone()]);
        let object = complete_bytes(u64::from_le_bytes(bits), bytes)
            .map_err(|defect| stop(&defect, lane))?;
        block.shared[range].copy_from_slice(&object.to_le_bytes());
        self.polls = 0;
        self.changed = true;
        Ok(())
    }
}

fn stop(defect: &crate::mbarrier::Defect, lane: usize) -> Box<Stop> {
    Stop::new(FaultKind::Invalid(defect.to_string()), lane % WARP)
}

fn set(warp: &mut Warp, base: u32, dst: Reg, lane: usize, value: u64) {
    if dst != NO_REG {
        warp.register_mut(base, dst)[lane] = value;
    }
}
