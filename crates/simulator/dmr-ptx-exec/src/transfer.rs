//! Loads and stores: the lanes of registers to and from runs of bytes.

use dmr_ptx_arith::{Lanes, Mask, WARP};

use super::block::BlockState;
use super::code::{Location, NO_REG, Transfer};
use super::fault::SpaceName;
use super::interpreter::{Interpreter, Stop};
use super::memory::{RUN_BYTES, Reach};
use super::space::{Run, is_one_run, next_run, next_same, resolve};
use super::warp::{LaneGroup, Warp};

impl Interpreter<'_> {
    pub(super) fn load(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        transfer: &Transfer,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(RUN_BYTES, 0);
        let done = if self.sources.is_uniform(warp, group.base, transfer.location.base) {
            self.load_same(block, warp, group, transfer, mask, &mut buffer)?
        } else {
            false
        };
        if !done {
            self.load_lanes(block, warp, group, transfer, mask, &mut buffer)?;
        }
        self.buffer = buffer;
        if let Some(scope) = transfer.fence {
            self.fence(block, warp, scope);
        }
        Ok(())
    }

    /// Loads the bytes that all lanes of `mask` read, as loads of parameters and loop bounds do:
    /// one access to memory and one check instead of 32. Returns false in local memory, where each
    /// lane has bytes of its own.
    fn load_same(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        transfer: &Transfer,
        mask: Mask,
        buffer: &mut [u8],
    ) -> Result<bool, Box<Stop>> {
        let location = &transfer.location;
        let qualifier = transfer.qualifier;
        let base = self.value(warp, group.base, location.base)[0];
        let address = self.address(group, location, base);
        let (space, address) = match location.space {
            SpaceName::Generic => resolve(address),
            space => (space, address),
        };
        if space == SpaceName::Local {
            return Ok(false);
        }
        let bytes = u32::from(transfer.element) * u32::from(transfer.count);
        let reach = Reach { space, mask, bytes, qualifier, uniform: true };
        if address & u64::from(bytes - 1) != 0 {
            self.check_aligned(&reach, &[address; WARP])?;
        }
        let buffer = &mut buffer[..bytes as usize];
        let run = Run { address, first: mask.trailing_zeros() as usize % WARP, count: 1 };
        self.read_used(block, warp, &reach, (run, transfer.used), buffer)?;
        self.broadcast(warp, group.base, transfer, (&reach, run), buffer);
        Ok(true)
    }

    /// Loads the bytes of each lane, as few runs: lanes whose addresses are adjacent, or are the
    /// same, are one access to memory.
    fn load_lanes(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        transfer: &Transfer,
        mask: Mask,
        buffer: &mut [u8],
    ) -> Result<(), Box<Stop>> {
        let bytes = u32::from(transfer.element) * u32::from(transfer.count);
        let addresses = self.addresses(warp, group, &transfer.location);
        let qualifier = transfer.qualifier;
        let base = group.base;
        self.for_each_space(&transfer.location, mask, &addresses, |this, space, mask, addresses| {
            let reach = Reach { space, mask, bytes, qualifier, uniform: false };
            this.check_aligned(&reach, addresses)?;
            let distance = distance(space, bytes);
            if mask == Mask::MAX && is_one_run(addresses, distance) {
                let run = Run { address: addresses[0], first: 0, count: WARP };
                let buffer = &mut buffer[..WARP * bytes as usize];
                this.read_used(block, warp, &reach, (run, transfer.used), buffer)?;
                this.scatter(warp, base, transfer, (&reach, run), buffer);
                return Ok(());
            }
            let mut rest = mask;
            while rest != 0 {
                let same =
                    if space == SpaceName::Local { 0 } else { next_same(&mut rest, addresses) };
                if same != 0 {
                    let lane = same.trailing_zeros() as usize % WARP;
                    let run = Run { address: addresses[lane], first: lane, count: 1 };
                    let buffer = &mut buffer[..bytes as usize];
                    let reach = Reach { mask: same, uniform: true, ..reach };
                    this.read_used(block, warp, &reach, (run, transfer.used), buffer)?;
                    this.broadcast(warp, base, transfer, (&reach, run), buffer);
                } else if let Some(run) = next_run(&mut rest, addresses, distance) {
                    let buffer = &mut buffer[..run.count * bytes as usize];
                    this.read_used(block, warp, &reach, (run, transfer.used), buffer)?;
                    this.scatter(warp, base, transfer, (&reach, run), buffer);
                }
            }
            Ok(())
        })
    }

    /// Reads the bytes of a run, of each lane those of the mask `bytes.1`. The others are zero:
    /// they are not used, and reading them could be a race that the program does not have.
    fn read_used(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        reach: &Reach,
        bytes: (Run, u32),
        into: &mut [u8],
    ) -> Result<(), Box<Stop>> {
        let (run, used) = bytes;
        if used == u32::MAX {
            return self.read_run(block, warp, reach, run, into);
        }
        into.fill(0);
        let each = reach.bytes as usize;
        let mut unwritten = vec![0; into.len()];
        for (index, lane) in into.chunks_exact_mut(each).enumerate() {
            let start = run.address.wrapping_add(index as u64 * distance(reach.space, reach.bytes));
            let mut at = 0;
            while at < each {
                let len = (used >> at).trailing_ones() as usize;
                if len > 0 {
                    let first = run.first + index;
                    let count = 1;
                    let part = Run { address: start.wrapping_add(at as u64), first, count };
                    let end = each.min(at + len);
                    let reach = Reach { bytes: (end - at) as u32, ..*reach };
                    self.read_run(block, warp, &reach, part, &mut lane[at..end])?;
                    let at = index * each + at;
                    unwritten[at..at + self.unwritten.len()].copy_from_slice(&self.unwritten);
                }
                at += len + 1;
            }
        }
        let is_written = unwritten.iter().all(|&bits| bits == 0);
        self.unwritten = if is_written { Vec::new() } else { unwritten };
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        transfer: &Transfer,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let bytes = u32::from(transfer.element) * u32::from(transfer.count);
        let addresses = self.addresses(warp, group, &transfer.location);
        let qualifier = transfer.qualifier;
        let base = group.base;
        if let Some(scope) = transfer.fence {
            self.fence(block, warp, scope);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(RUN_BYTES, 0);
        self.for_each_space(
            &transfer.location,
            mask,
            &addresses,
            |this, space, mask, addresses| {
                let reach = Reach { space, mask, bytes, qualifier, uniform: false };
                this.check_aligned(&reach, addresses)?;
                let distance = distance(space, bytes);
                let mut rest = mask;
                while rest != 0 {
                    let run = if rest == Mask::MAX && is_one_run(addresses, distance) {
                        rest = 0;
                        Run { address: addresses[0], first: 0, count: WARP }
                    } else if let Some(run) = next_run(&mut rest, addresses, distance) {
                        run
                    } else {
                        break;
                    };
                    let buffer = &mut buffer[..run.count * bytes as usize];
                    for index in 0..usize::from(transfer.count) {
                        let value = this.value(warp, base, transfer.values[index & 7]);
                        collect(value, transfer, index, run, buffer);
                    }
                    this.write_run(block, warp, &reach, run, buffer)?;
                    if !warp.undefined.is_empty() {
                        this.mark_stored(block, warp, base, transfer, (&reach, run))?;
                    }
                }
                Ok(())
            },
        )?;
        self.buffer = buffer;
        Ok(())
    }

    /// Writes the loaded bytes, which are the same for all lanes, to their registers.
    fn broadcast(
        &self,
        warp: &mut Warp,
        base: u32,
        transfer: &Transfer,
        place: (&Reach, Run),
        bytes: &[u8],
    ) {
        for (index, part) in bytes.chunks_exact(usize::from(transfer.element)).enumerate() {
            let value = extend(part, transfer.extend);
            warp.write_uniform(base, transfer.registers[index & 7], place.0.mask, value);
        }
        if !self.unwritten.is_empty() {
            self.mark_loaded(warp, base, transfer, place);
        }
    }

    /// Writes the loaded bytes of a run to the registers of its lanes.
    #[inline(never)]
    fn scatter(
        &self,
        warp: &mut Warp,
        base: u32,
        transfer: &Transfer,
        place: (&Reach, Run),
        bytes: &[u8],
    ) {
        let run = place.1;
        let each = usize::from(transfer.element);
        let stride = usize::from(transfer.element) * usize::from(transfer.count);
        for index in 0..usize::from(transfer.count) {
            let reg = transfer.registers[index & 7];
            if reg == NO_REG {
                continue;
            }
            let lanes = &mut warp.register_mut(base, reg)[run.first..run.first + run.count];
            let parts =
                bytes.chunks_exact(stride).map(|part| &part[index * each..(index + 1) * each]);
            if each == 4 && transfer.extend == 0 {
                for (lane, part) in lanes.iter_mut().zip(parts) {
                    *lane = u64::from(u32::from_le_bytes([part[0], part[1], part[2], part[3]]));
                }
            } else {
                for (lane, part) in lanes.iter_mut().zip(parts) {
                    *lane = extend(part, transfer.extend);
                }
            }
        }
        if !self.unwritten.is_empty() {
            self.mark_loaded(warp, base, transfer, place);
        }
    }

    /// Returns the address of an access whose base is `base`, in the space of `location`.
    fn address(&self, group: &LaneGroup, location: &Location, base: u64) -> u64 {
        let frame = if location.frame { u64::from(group.local) } else { 0 };
        let address = base.wrapping_add(frame.wrapping_add_signed(location.offset));
        if location.narrow { address & 0xffff_ffff } else { address }
    }

    /// Returns the addresses of all lanes, in the space of `location`.
    pub(super) fn addresses(&self, warp: &Warp, group: &LaneGroup, location: &Location) -> Lanes {
        let base = self.value(warp, group.base, location.base);
        let add = self.address(group, &Location { narrow: false, ..*location }, 0);
        let kept = if location.narrow { 0xffff_ffff } else { u64::MAX };
        let mut addresses = [0; WARP];
        for (address, base) in addresses.iter_mut().zip(base) {
            *address = base.wrapping_add(add) & kept;
        }
        addresses
    }
}

/// Returns the distance of the addresses of a run, whose lanes access `bytes` each.
fn distance(space: SpaceName, bytes: u32) -> u64 {
    if space == SpaceName::Local { 0 } else { u64::from(bytes) }
}

/// Returns the value of an element, extended to 64 bits as the instruction says.
#[inline]
pub(super) fn extend(bytes: &[u8], to_bits: u8) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    let value = u64::from_le_bytes(all);
    if to_bits == 0 {
        return value;
    }
    let shift = 64 - 8 * bytes.len().min(8) as u32;
    let extended = ((value << shift) as i64 >> shift) as u64;
    if to_bits >= 64 { extended } else { extended & ((1 << to_bits) - 1) }
}

/// Puts the values of a run's lanes where they are stored.
#[inline]
pub(super) fn collect(
    value: &Lanes,
    transfer: &Transfer,
    index: usize,
    run: Run,
    bytes: &mut [u8],
) {
    let each = usize::from(transfer.element);
    let stride = usize::from(transfer.element) * usize::from(transfer.count);
    for (part, value) in bytes.chunks_exact_mut(stride).zip(&value[run.first..]) {
        let all = value.to_le_bytes();
        let to = &mut part[index * each..(index + 1) * each];
        if each == 4 {
            to.copy_from_slice(&all[..4]);
        } else {
            to.copy_from_slice(&all[..each.min(8)]);
        }
    }
}
