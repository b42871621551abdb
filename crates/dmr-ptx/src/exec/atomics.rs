//! Atomic instructions, copies from global to shared memory, and matrices in memory.

use crate::lanes::{Transfer as MatrixTransfer, Window};
use crate::types::{Lanes, Mask, WARP};

use super::block::Common;
use super::code::{Atomic, Location, NO_REG, Value, WarpStep};
use super::core::{Core, Stop};
use super::fault::{FaultKind, SpaceName};
use super::global::AccessKind;
use super::memory::{Reach, check_aligned, refused};
use super::registers::ZERO;
use super::shadow::Touching;
use super::space::{Run, lanes_of, resolve, window};
use super::sync::MOST_SOURCES;
use super::warp::{Fragment, Warp};

impl Core<'_> {
    pub(super) fn atomic(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        fragment: &Fragment,
        atomic: &Atomic,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let bytes = u32::from(atomic.element) * u32::from(atomic.count);
        let addresses = self.addresses(warp, fragment, &atomic.location);
        if atomic.releases {
            self.fence(common, warp, atomic.scope);
        }
        self.for_each_space(&atomic.location, mask, &addresses, |core, space, mask, addresses| {
            let reach = Reach {
                space,
                mask,
                bytes,
                kind: AccessKind::Atomic(atomic.scope),
                uniform: false,
            };
            check_aligned(&reach, addresses)?;
            for lane in lanes_of(mask) {
                let run = Run { address: addresses[lane], first: lane, count: 1 };
                core.atomic_lane(common, warp, fragment.base, (&reach, run), atomic)?;
            }
            Ok(())
        })?;
        if atomic.acquires {
            self.fence(common, warp, atomic.scope);
        }
        Ok(())
    }

    /// Runs an atomic instruction for one lane.
    fn atomic_lane(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        base: u32,
        place: (&Reach, Run),
        atomic: &Atomic,
    ) -> Result<(), Box<Stop>> {
        let (reach, run) = place;
        let (lane, element) = (run.first, usize::from(atomic.element));
        let wide = element == 16;
        let lane_of = |core: &Self, warp: &Warp, value: Value| core.value(warp, base, value)[lane];
        let mut operands = [0u128; 8];
        for (index, operand) in operands.iter_mut().enumerate().take(usize::from(atomic.count)) {
            *operand = u128::from(lane_of(self, warp, atomic.values[index]));
        }
        let mut swap = u128::from(lane_of(self, warp, atomic.swap[0]));
        if wide {
            operands[0] |= u128::from(lane_of(self, warp, atomic.values[1])) << 64;
            swap |= u128::from(lane_of(self, warp, atomic.swap[1])) << 64;
        }
        let (mut olds, mut differs) = ([0u128; 8], false);
        let mut change = |all: &mut [u8]| {
            for (index, part) in all.chunks_exact_mut(element).enumerate().take(8) {
                let mut bytes = [0; 16];
                bytes[..element].copy_from_slice(part);
                let old = u128::from_le_bytes(bytes);
                let new = atomic.change.apply(old, operands[index], swap, 8 * element as u32);
                part.copy_from_slice(&new.to_le_bytes()[..element]);
                olds[index] = old;
                differs |= old != new;
            }
        };
        let len = element * usize::from(atomic.count);
        match reach.space {
            SpaceName::Shared => {
                let range = self.shared_range(common, reach, run, len)?;
                if self.checks.uninitialised && common.written[range.clone()].contains(&0) {
                    let kind = FaultKind::Uninitialised {
                        space: reach.space,
                        address: run.address,
                        bytes: reach.bytes,
                    };
                    return Err(Stop::new(kind, lane));
                }
                self.touch_shared(common, warp, reach, run, (Touching::StrongWrite, &[]))?;
                change(&mut common.shared[range]);
            }
            SpaceName::Global | SpaceName::Generic => {
                let access = self.global_access(common, warp, reach, run, len);
                self.touch_global(common, warp, reach, run, (Touching::StrongWrite, &[]))?;
                self.memory
                    .atomic(&access, &mut change)
                    .map_err(|error| refused(reach, run, error))?;
            }
            SpaceName::Local | SpaceName::Const | SpaceName::Param => {
                return Err(Stop::new(
                    FaultKind::Invalid(format!("an atomic access to {} memory", reach.space)),
                    lane,
                ));
            }
        }
        let generic = run.address + window(reach.space);
        common.order.observe(warp.number as usize, generic);
        common.order.publish(warp.number as usize, generic);
        if differs {
            (self.polls, self.changed) = (0, true);
        } else if lane == reach.mask.trailing_zeros() as usize {
            self.note_read(generic, &olds[0].to_le_bytes());
        }
        for (&reg, old) in atomic.registers.iter().zip(olds).take(usize::from(atomic.count)) {
            if reg != NO_REG {
                warp.register_mut(base, reg)[lane] = old as u64;
            }
        }
        if wide && atomic.registers[1] != NO_REG {
            warp.register_mut(base, atomic.registers[1])[lane] = (olds[0] >> 64) as u64;
        }
        Ok(())
    }

    /// Copies from global to shared memory at once; `size` is the bytes that are copied, and the rest is zero.
    pub(super) fn copy_async(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        fragment: &Fragment,
        places: (&Location, &Location),
        amount: (u8, Option<Value>),
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let (bytes, size) = amount;
        let to = self.addresses(warp, fragment, places.0);
        let from = self.addresses(warp, fragment, places.1);
        let sizes = size.map(|size| *self.value(warp, fragment.base, size));
        let all = u32::from(bytes);
        let reach = Reach {
            space: SpaceName::Shared,
            mask,
            bytes: all,
            kind: AccessKind::Plain,
            uniform: false,
        };
        check_aligned(&reach, &to)?;
        check_aligned(&Reach { space: SpaceName::Global, ..reach }, &from)?;
        for lane in lanes_of(mask) {
            let mut buffer = [0; 16];
            let copied =
                sizes.map_or(u64::from(bytes), |sizes| sizes[lane].min(u64::from(bytes))) as usize;
            if copied > 0 {
                let (space, offset) = resolve(from[lane]);
                let source = Reach { space, bytes: copied as u32, ..reach };
                let run = Run { address: offset, first: lane, count: 1 };
                self.read_run(common, warp, &source, run, &mut buffer[..copied])?;
            }
            let run = Run { address: to[lane], first: lane, count: 1 };
            self.write_run(common, warp, &reach, run, &buffer[..usize::from(bytes)])?;
        }
        Ok(())
    }

    /// Loads or stores matrices: `ldmatrix`, `stmatrix`, `wmma.load`, `wmma.store`.
    pub(super) fn transfer_matrix(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        fragment: &Fragment,
        instruction: (&MatrixTransfer, &WarpStep),
        executing: Mask,
    ) -> Result<(), Box<Stop>> {
        let (transfer, step) = instruction;
        let base = fragment.base;
        let fetch = |value: Option<Value>| value.map(|value| *self.value(warp, base, value));
        let addresses = fetch(step.address)
            .unwrap_or([0; WARP])
            .map(|base| base.wrapping_add_signed(step.offset));
        let stride = fetch(step.stride);
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        if let Err(defect) = transfer.pieces(&addresses, stride.as_ref(), executing, &mut pieces)
            && self.checks.divergence
        {
            self.report(defect, executing, warp)?;
        }
        let (mut bytes, mut work) =
            (std::mem::take(&mut self.buffer), std::mem::take(&mut self.work));
        bytes.clear();
        if transfer.is_store {
            let mut values: [&Lanes; MOST_SOURCES] = [&ZERO; MOST_SOURCES];
            for (to, &source) in values.iter_mut().zip(&step.sources) {
                *to = self.value(warp, base, source);
            }
            let values = &values[..step.sources.len().min(MOST_SOURCES)];
            transfer.pack(values, executing, &mut work, &mut bytes);
        } else {
            bytes.resize(pieces.iter().map(|piece| piece.bytes as usize).sum(), 0);
        }
        let mut at = 0;
        for piece in &pieces {
            let (space, offset) = match transfer.window {
                Window::Generic => resolve(piece.address),
                Window::Global => (SpaceName::Global, piece.address),
                Window::Shared => (SpaceName::Shared, piece.address),
            };
            let lane = usize::from(piece.lane);
            let reach = Reach {
                space,
                mask: 1 << lane,
                bytes: piece.bytes,
                kind: AccessKind::Plain,
                uniform: false,
            };
            if !piece.address.is_multiple_of(u64::from(piece.align.max(1))) {
                let kind = FaultKind::Misaligned { space, address: offset, bytes: piece.align };
                return Err(Stop::new(kind, lane));
            }
            let Some(part) = bytes.get_mut(at..at + piece.bytes as usize) else { break };
            at += piece.bytes as usize;
            let run = Run { address: offset, first: lane, count: 1 };
            if transfer.is_store {
                self.write_run(common, warp, &reach, run, part)?;
            } else {
                self.read_run(common, warp, &reach, run, part)?;
            }
        }
        if !transfer.is_store {
            let mut out = std::mem::take(&mut self.scratch);
            out.clear();
            out.resize(step.results.len(), [0; WARP]);
            transfer.unpack(&bytes, executing, &mut work, &mut out);
            for (&result, value) in step.results.iter().zip(&out) {
                warp.write(base, result, executing, value);
            }
            self.scratch = out;
        }
        (self.pieces, self.buffer, self.work) = (pieces, bytes, work);
        Ok(())
    }
}
