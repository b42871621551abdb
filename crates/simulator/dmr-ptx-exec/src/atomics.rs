//! Atomic instructions, and matrices in memory.

use dmr_ptx_arith::lanes::{Piece, Transfer as MatrixTransfer, Window};
use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::access::AccessKind;
use super::block::BlockState;
use super::cluster::RANKED;
use super::code::{Atomic, NO_REG, Value, WarpInst};
use super::fault::{FaultKind, SpaceName};
use super::global::Qualifier;
use super::interpreter::{Interpreter, Stop};
use super::memory::{Reach, refused};
use super::registers::{ZERO, number};
use super::space::{Run, next_same, resolve, window};
use super::sync::MOST_SOURCES;
use super::undefined::{Origin, Undefined};
use super::warp::{LaneGroup, Warp};

impl Interpreter<'_> {
    pub(super) fn atomic(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        atomic: &Atomic,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let bytes = u32::from(atomic.element) * u32::from(atomic.count);
        let addresses = self.addresses(warp, group, &atomic.location);
        if atomic.releases {
            self.fence(block, warp, atomic.scope);
        }
        self.for_each_space(&atomic.location, mask, &addresses, |this, space, mask, addresses| {
            let reach = Reach {
                space,
                mask,
                bytes,
                qualifier: Qualifier::Atomic(atomic.scope),
                uniform: false,
            };
            this.check_aligned(&reach, addresses)?;
            if atomic.count == 1 && atomic.element <= 8 {
                return this.atomic_words(block, warp, group.base, (&reach, addresses), atomic);
            }
            for lane in lanes_of(mask) {
                let run = Run { address: addresses[lane], first: lane, count: 1 };
                this.atomic_lane(block, warp, group.base, (&reach, run), atomic)?;
            }
            Ok(())
        })?;
        if atomic.acquires {
            self.fence(block, warp, atomic.scope);
        }
        Ok(())
    }

    /// Runs an atomic instruction on one element of 64 bits or fewer. Lanes of the same address
    /// make one access to memory, in which they follow each other.
    fn atomic_words(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        base: u32,
        place: (&Reach, &Lanes),
        atomic: &Atomic,
    ) -> Result<(), Box<Stop>> {
        let (reach, addresses) = place;
        let element = usize::from(atomic.element);
        let operands = *self.value(warp, base, atomic.values[0]);
        let swaps = *self.value(warp, base, atomic.swap[0]);
        let is_global = reach.space != SpaceName::Shared;
        let bits = 8 * element as u32;
        let mut olds = [0; WARP];
        let mut rest = reach.mask;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize % WARP;
            let same = match next_same(&mut rest, addresses) {
                0 => 1 << first,
                same => same,
            };
            rest &= !same;
            let mut first_differs = false;
            let mut differs = false;
            let mut change = |bytes: &mut [u8]| {
                let mut value = value_of(bytes);
                for lane in lanes_of(same) {
                    olds[lane] = value;
                    let operand = operands[lane];
                    let swap = swaps[lane];
                    value = atomic.change.apply(value, operand, swap, bits, is_global);
                    differs |= value != olds[lane];
                    first_differs |= lane == first && differs;
                }
                set_value(bytes, value);
            };
            let reach = Reach { mask: same, uniform: same.count_ones() > 1, ..*reach };
            let run = Run { address: addresses[first], first, count: 1 };
            self.change(block, warp, (&reach, run), element, &mut change)?;
            if !first_differs && first == place.0.first_lane() {
                self.count_poll(
                    run.address.wrapping_add(window(reach.space)),
                    &olds[first].to_le_bytes(),
                );
            }
            if differs {
                self.polls = 0;
                self.changed = true;
            }
        }
        warp.write(base, atomic.registers[0], place.0.mask, &olds);
        Ok(())
    }

    /// Changes the bytes of one lane, or of lanes of the same address.
    fn change(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        place: (&Reach, Run),
        len: usize,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Box<Stop>> {
        let (reach, run) = place;
        match reach.space {
            SpaceName::Shared if run.address >= RANKED => {
                return self.in_block(block, (run.address, run.first), |this, block, address| {
                    this.change(block, warp, (reach, Run { address, ..run }), len, change)
                });
            }
            SpaceName::Shared => {
                let range = self.shared_range(block, reach, run, len)?;
                if range.is_empty() {
                    return Ok(());
                }
                if self.checks.uninitialised && block.written[range.clone()].contains(&0) {
                    let origin = self.origin(warp, reach, run, run.first);
                    return Err(self.uninitialised(&origin, run.first, "an atomic operation"));
                }
                self.record_shared(block, warp, reach, run, (AccessKind::StrongWrite, &[]));
                change(&mut block.shared[range]);
            }
            SpaceName::Global | SpaceName::Generic => {
                let access = self.global_access(block, warp, reach, run, len);
                self.record_global(block, warp, reach, run, (AccessKind::StrongWrite, &[]));
                self.memory.atomic(&access, change).map_err(|error| refused(reach, run, error))?;
            }
            SpaceName::Local | SpaceName::Const | SpaceName::Param => {
                return Err(Stop::new(
                    FaultKind::Invalid(format!("an atomic access to {} memory", reach.space)),
                    run.first,
                ));
            }
        }
        let generic = run.address.wrapping_add(window(reach.space));
        block.order.observe(warp.number as usize, generic);
        block.order.publish(warp.number as usize, generic);
        Ok(())
    }

    /// Runs an atomic instruction for one lane: on a vector, or on an element of 128 bits.
    fn atomic_lane(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        base: u32,
        place: (&Reach, Run),
        atomic: &Atomic,
    ) -> Result<(), Box<Stop>> {
        let (reach, run) = place;
        let lane = run.first;
        let element = usize::from(atomic.element);
        let wide = element == 16;
        let operands = atomic.values.map(|value| self.value(warp, base, value)[lane]);
        let swaps = atomic.swap.map(|value| self.value(warp, base, value)[lane]);
        let pair = |values: &[u64]| u128::from(values[0]) | u128::from(values[1]) << 64;
        let is_global = reach.space != SpaceName::Shared;
        let mut olds = [0u64; 8];
        let mut differs = false;
        let mut change = |all: &mut [u8]| {
            if let (true, Ok(bytes)) = (wide, <[u8; 16]>::try_from(&*all)) {
                let old = u128::from_le_bytes(bytes);
                let new = atomic.change.apply_wide(old, pair(&operands), pair(&swaps));
                all.copy_from_slice(&new.to_le_bytes());
                olds[0] = old as u64;
                olds[1] = (old >> 64) as u64;
                differs |= old != new;
                return;
            }
            for (index, part) in all.chunks_exact_mut(element).enumerate().take(8) {
                let old = value_of(part);
                let bits = 8 * element as u32;
                let new = atomic.change.apply(old, operands[index], swaps[0], bits, is_global);
                set_value(part, new);
                olds[index] = old;
                differs |= old != new;
            }
        };
        let len = element * usize::from(atomic.count);
        self.change(block, warp, place, len, &mut change)?;
        if differs {
            self.polls = 0;
            self.changed = true;
        } else if lane == reach.first_lane() {
            let generic = run.address.wrapping_add(window(reach.space));
            self.count_poll(generic, &pair(&olds).to_le_bytes());
        }
        let registers = if wide { 2 } else { usize::from(atomic.count) };
        for (&reg, old) in atomic.registers.iter().zip(olds).take(registers) {
            if reg != NO_REG {
                warp.register_mut(base, reg)[lane] = old;
            }
        }
        Ok(())
    }

    /// Loads or stores matrices: `ldmatrix`, `stmatrix`, `wmma.load`, `wmma.store`.
    ///
    /// All lanes take part at once, and which register an element goes to depends on all of their
    /// addresses. So the arithmetic crate lists the pieces of memory (rows), in the order in which
    /// `pack` and `unpack` have their bytes in one buffer; here the pieces are accessed, as few
    /// runs. Undefined bits take the same way a second time, as the bytes of a second buffer: that
    /// is how they reach the registers that their elements go to.
    pub(super) fn transfer_matrix(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        instruction: (&MatrixTransfer, &WarpInst),
        executing: Mask,
    ) -> Result<(), Box<Stop>> {
        let (transfer, inst) = instruction;
        let base = group.base;
        for value in inst.address.iter().chain(&inst.stride) {
            self.require(warp.undefined.get(base, *value), executing, "an address")?;
        }
        let fetch = |value: Option<Value>| value.map(|value| *self.value(warp, base, value));
        let addresses = fetch(inst.address)
            .unwrap_or([0; WARP])
            .map(|base| base.wrapping_add_signed(inst.offset));
        let stride = fetch(inst.stride);
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        if let Err(defect) = transfer.pieces(&addresses, stride.as_ref(), executing, &mut pieces)
            && self.checks.divergence
        {
            self.report(defect, executing, warp)?;
        }
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        if transfer.is_store {
            let mut values: [&Lanes; MOST_SOURCES] = [&ZERO; MOST_SOURCES];
            for (to, &source) in values.iter_mut().zip(&inst.sources) {
                *to = self.sources.fetch(warp, base, source);
            }
            let values = &values[..inst.sources.len().min(MOST_SOURCES)];
            transfer.pack(values, executing, &mut self.work, &mut bytes);
        } else {
            bytes.resize(pieces.iter().map(|piece| piece.bytes as usize).sum(), 0);
        }
        // The undefined bits of `bytes`, byte for byte; shorter if the last ones have none.
        let mut undefined = Vec::new();
        let mut origin = None;
        if transfer.is_store && !warp.undefined.is_empty() {
            let sources = inst.sources.iter().map(|&source| &warp.undefined.get(base, source).bits);
            transfer.pack(&sources.collect::<Vec<_>>(), executing, &mut self.work, &mut undefined);
        }
        let mut at = 0;
        let mut rest = &pieces[..];
        while let [piece, ..] = rest {
            // Rows that follow each other are one run.
            let follows = |pair: &[Piece]| {
                let one = &pair[0];
                let next = &pair[1];
                next.address == one.address.wrapping_add(u64::from(one.bytes))
                    && (next.lane == one.lane + 1 && next.bytes == one.bytes)
            };
            let (space, offset) = match transfer.window {
                Window::Generic => resolve(piece.address),
                Window::Global => (SpaceName::Global, piece.address),
                Window::Shared => (SpaceName::Shared, piece.address),
            };
            let count = match space {
                SpaceName::Local => 1,
                _ => 1 + rest.windows(2).take_while(|pair| follows(pair)).count(),
            };
            rest = &rest[count..];
            let run = Run { address: offset, first: usize::from(piece.lane), count };
            let reach = Reach {
                space,
                mask: run.mask(),
                bytes: piece.bytes,
                qualifier: Qualifier::Plain,
                uniform: false,
            };
            // A power of two.
            let below = u64::from(piece.align.max(1)) - 1;
            let is_aligned = (offset | u64::from(piece.bytes)) & below == 0;
            let misaligned = (0..if is_aligned { 0 } else { count as u64 })
                .find(|index| (offset + index * u64::from(piece.bytes)) & below != 0);
            if let Some(index) = misaligned {
                let address = offset + index * u64::from(piece.bytes);
                self.check_multiple(space, address, piece.align, run.first + index as usize)?;
            }
            let range = at..at + count * piece.bytes as usize;
            at = range.end;
            let Some(part) = bytes.get_mut(range.clone()) else { break };
            if transfer.is_store {
                self.write_run(block, warp, &reach, run, part)?;
                if let Some(bits) = undefined.get(range) {
                    self.unwrite(block, warp, &reach, run, bits)?;
                }
                continue;
            }
            self.read_run(block, warp, &reach, run, part)?;
            if !self.unwritten.is_empty() {
                origin.get_or_insert(self.origin(warp, &reach, run, run.first));
                undefined.resize(range.end, 0);
                // Bytes beyond the memory count as written, where that is not checked.
                undefined[range.start..][..self.unwritten.len()].copy_from_slice(&self.unwritten);
            }
        }
        if !transfer.is_store {
            let mut out = std::mem::take(&mut self.scratch);
            if out.len() < inst.results.len() {
                out.resize(inst.results.len(), [0; WARP]);
            }
            let results = &mut out[..inst.results.len()];
            transfer.unpack(&bytes, executing, &mut self.work, results);
            for (&result, value) in inst.results.iter().zip(results) {
                warp.write(base, result, executing, value);
            }
            if origin.is_some() || !warp.undefined.is_empty() {
                undefined.resize(bytes.len(), 0);
                out.fill([0; WARP]);
                transfer.unpack(
                    &undefined,
                    executing,
                    &mut self.work,
                    &mut out[..inst.results.len()],
                );
                let origins = [origin.unwrap_or(Origin::NONE); WARP];
                for (&result, &bits) in inst.results.iter().zip(&out) {
                    if result == NO_REG {
                        continue;
                    }
                    let index = number(base, result);
                    warp.undefined.set(index, executing, &Undefined { bits, origins });
                }
            }
            self.scratch = out;
        }
        self.pieces = pieces;
        self.buffer = bytes;
        Ok(())
    }
}

/// Returns the number of 8 bytes or fewer.
#[inline]
fn value_of(bytes: &[u8]) -> u64 {
    if let Ok(word) = <[u8; 4]>::try_from(bytes) {
        return u64::from(u32::from_le_bytes(word));
    }
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// Overwrites 8 bytes or fewer by the lowest ones of a number.
#[inline]
fn set_value(bytes: &mut [u8], value: u64) {
    let all = value.to_le_bytes();
    match <&mut [u8; 4]>::try_from(&mut *bytes) {
        Ok(word) => word.copy_from_slice(&all[..4]),
        Err(_) => bytes.copy_from_slice(&all[..bytes.len()]),
    }
}
