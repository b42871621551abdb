//! Asynchronous copies between global and shared memory: `cp.async`, `cp.async.bulk`, and the waits
//! for them.

use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::access::AccessKind;
use super::block::BlockState;
use super::cluster::RANKED;
use super::code::{Atomic, Location, Transfer, Value};
use super::fault::{FaultKind, SpaceName};
use super::global::{Qualifier, Scope};
use super::in_flight::{CopyKind, InFlight, Phase};
use super::interpreter::{Interpreter, Stop};
use super::memory::{RUN_BYTES, Reach};
use super::space::{Run, resolve};
use super::tensors::{ReducingCopy, TensorCopy};
use super::warp::{LaneGroup, Warp};

/// A decoded instruction of asynchronous copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopyInst {
    Lanes(LaneCopy),
    Bulk(BulkCopy),
    Tensor(TensorCopy),
    Reducing(ReducingCopy),
    Counted(CountedAccess),
    /// Ends the group of the copies since the last one.
    Commit(CopyKind),
    /// Waits for all groups but the last ones.
    Wait {
        kind: CopyKind,
        but: u32,
        /// True if it waits until they have read their bytes.
        is_read: bool,
    },
    /// Waits for all copies of `cp.async`.
    WaitAll,
}

/// A copy of a few bytes by each lane, from global to shared memory: `cp.async`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneCopy {
    pub(super) to: Location,
    pub(super) from: Location,
    pub(super) bytes: u8,
    /// The bytes that are copied; the rest is zero.
    pub(super) size: Option<Value>,
    /// True if nothing is copied, and all bytes are zero.
    pub(super) ignores: Option<Value>,
}

/// A copy of bytes by one thread: `cp.async.bulk`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BulkCopy {
    pub(super) to: Location,
    pub(super) from: Location,
    pub(super) size: Value,
    /// The object that counts the bytes.
    pub(super) barrier: Option<Location>,
    /// The ranks of the blocks that get the bytes, as bits; `None` for the block of the address.
    pub(super) ranks: Option<Value>,
}

/// An access to shared memory whose bytes an object counts: `st.async`, `red.async`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedAccess {
    pub(super) access: SharedAccess,
    /// The bytes of a lane.
    pub(super) bytes: u8,
    pub(super) barrier: Location,
}

/// A store, or an atomic change.
#[derive(Clone, Copy, Debug)]
pub(super) enum SharedAccess {
    Store(Transfer),
    Change(Atomic),
}

/// The place that a copy writes.
pub(super) struct CopyTarget {
    pub(super) place: (SpaceName, u64),
    /// The object that counts the bytes.
    pub(super) object: Option<u64>,
}

/// The bytes of a copy in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) is_source: bool,
    /// The first of the bytes in global memory, if they are followed.
    pub(super) global: Option<u64>,
}

impl Interpreter<'_> {
    pub(super) fn copy_inst(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        inst: &CopyInst,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        match inst {
            CopyInst::Lanes(copy) => self.copy_lanes(block, warp, group, copy, mask),
            CopyInst::Bulk(copy) => self.copy_bulk(block, warp, group, copy, mask),
            CopyInst::Tensor(copy) => self.copy_tensor(block, warp, group, copy, mask),
            CopyInst::Reducing(copy) => self.copy_reducing(block, warp, group, copy, mask),
            CopyInst::Counted(access) => self.counted_access(block, warp, group, access, mask),
            CopyInst::Commit(kind) => {
                let threads = threads_of(warp, mask);
                threads.for_each(|thread| block.copies.commit(thread, *kind));
                Ok(())
            }
            CopyInst::Wait { kind, but, is_read } => {
                for thread in threads_of(warp, mask) {
                    let copies = block.copies.wait(thread, *kind, *but, *is_read);
                    self.finish_copies(block, warp, &copies)?;
                }
                Ok(())
            }
            CopyInst::WaitAll => {
                for thread in threads_of(warp, mask) {
                    block.copies.commit(thread, CopyKind::Lane);
                    let copies = block.copies.wait(thread, CopyKind::Lane, 0, false);
                    self.finish_copies(block, warp, &copies)?;
                }
                Ok(())
            }
        }
    }

    fn copy_lanes(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        copy: &LaneCopy,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let to = self.addresses(warp, group, &copy.to).map(|address| self.own_address(address));
        let from = self.addresses(warp, group, &copy.from);
        let fetch = |value: Option<Value>| value.map(|value| *self.value(warp, group.base, value));
        let sizes = fetch(copy.size);
        let ignores = fetch(copy.ignores);
        let all = u64::from(copy.bytes);
        let reach = Reach {
            space: SpaceName::Shared,
            mask,
            bytes: u32::from(copy.bytes),
            qualifier: Qualifier::Plain,
            uniform: false,
        };
        self.check_aligned(&reach, &to)?;
        self.check_aligned(&Reach { space: SpaceName::Global, ..reach }, &from)?;
        for lane in lanes_of(mask) {
            let mut buffer = [0; 16];
            let size = sizes.map_or(all, |sizes| (sizes[lane] & 0xffff_ffff).min(all));
            let is_ignored = ignores.is_some_and(|ignores| ignores[lane] != 0);
            let copied = if is_ignored { 0 } else { size as usize };
            let mut global = None;
            if copied > 0 {
                let (space, offset) = resolve(from[lane]);
                // Of a part, the bytes are not followed.
                let is_followed = space == SpaceName::Global && copied as u64 == all;
                global = is_followed.then_some(offset);
                let source = Reach { space, bytes: copied as u32, ..reach };
                let run = Run { address: offset, first: lane, count: 1 };
                self.read_written(block, warp, &source, run, &mut buffer[..copied])?;
            }
            let run = Run { address: to[lane], first: lane, count: 1 };
            self.write_run(block, warp, &reach, run, &buffer[..usize::from(copy.bytes)])?;
            let part = Part { address: to[lane], bytes: all, is_source: false, global };
            self.start_copy(block, warp, (CopyKind::Lane, lane), part, None);
        }
        Ok(())
    }

    fn copy_bulk(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        copy: &BulkCopy,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        let to = self.addresses(warp, group, &copy.to);
        let from = self.addresses(warp, group, &copy.from);
        let sizes = *self.value(warp, group.base, copy.size);
        let barriers = copy.barrier.map(|barrier| self.addresses(warp, group, &barrier));
        let ranks = copy.ranks.map(|ranks| *self.value(warp, group.base, ranks));
        for lane in lanes_of(mask) {
            let size = sizes[lane] & 0xffff_ffff;
            if !size.is_multiple_of(16) {
                let message = format!("a bulk copy of {size} bytes: not a multiple of 16");
                return Err(Stop::new(FaultKind::Invalid(message), lane));
            }
            let barrier = barriers.map(|barriers| self.own_address(resolve(barriers[lane]).1));
            let place = |this: &Self, location: &Location, addresses: &Lanes| {
                let (space, address) = match location.space {
                    SpaceName::Generic => resolve(addresses[lane]),
                    space => (space, addresses[lane]),
                };
                let is_shared = space == SpaceName::Shared;
                (space, if is_shared { this.own_address(address) } else { address })
            };
            let source = place(self, &copy.from, &from);
            let target = place(self, &copy.to, &to);
            let targets = self.targets(target, barrier, ranks.map(|ranks| ranks[lane]));
            let mut buffer = [0; RUN_BYTES];
            let mut at = 0;
            while at < size {
                let part = (size - at).min(RUN_BYTES as u64) as usize;
                let (reach, run) = self.bulk_run(source, at, part, lane)?;
                self.read_written(block, warp, &reach, run, &mut buffer[..part])?;
                for target in &targets {
                    let (reach, run) = self.bulk_run(target.place, at, part, lane)?;
                    self.write_run(block, warp, &reach, run, &buffer[..part])?;
                }
                at += part as u64;
            }
            if barrier.is_none() && source.0 == SpaceName::Shared {
                let global = (target.0 == SpaceName::Global).then_some(target.1);
                let part = Part { address: source.1, bytes: size, is_source: true, global };
                self.start_copy(block, warp, (CopyKind::Bulk, lane), part, None);
            }
            for target in &targets {
                let global = (source.0 == SpaceName::Global).then_some(source.1);
                let address = target.place.1;
                let part = Part { address, bytes: size, is_source: false, global };
                self.finish_target(block, warp, lane, target, part)?;
            }
        }
        Ok(())
    }

    /// Returns the places that a copy writes: one, or one in each block of `ranks`.
    pub(super) fn targets(
        &self,
        place: (SpaceName, u64),
        object: Option<u64>,
        ranks: Option<u64>,
    ) -> Vec<CopyTarget> {
        let (Some(ranks), Some(of)) = (ranks, object) else {
            return vec![CopyTarget { place, object }];
        };
        let places = self.in_blocks(place.1, ranks).zip(self.in_blocks(of, ranks));
        places
            .map(|(at, object)| CopyTarget { place: (place.0, at), object: Some(object) })
            .collect()
    }

    /// Records what a copy has written as in flight, and counts its bytes.
    pub(super) fn finish_target(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        lane: usize,
        target: &CopyTarget,
        part: Part,
    ) -> Result<(), Box<Stop>> {
        let Some(object) = target.object else { return Ok(()) };
        // Copies to other blocks are not noted.
        if target.place.1 < RANKED && object < RANKED {
            let phase = self.phase_of(block, object, lane)?;
            self.start_copy(block, warp, (CopyKind::Bulk, lane), part, Some(phase));
        }
        self.count_bytes(block, warp, lane, object, part.bytes)
    }

    fn counted_access(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        group: &LaneGroup,
        access: &CountedAccess,
        mask: Mask,
    ) -> Result<(), Box<Stop>> {
        match &access.access {
            SharedAccess::Store(transfer) => self.store(block, warp, group, transfer, mask)?,
            SharedAccess::Change(atomic) => self.atomic(block, warp, group, atomic, mask)?,
        }
        let objects = self.addresses(warp, group, &access.barrier);
        for lane in lanes_of(mask) {
            let object = self.own_address(resolve(objects[lane]).1);
            self.count_bytes(block, warp, lane, object, u64::from(access.bytes))?;
        }
        Ok(())
    }

    /// Records a copy by a lane as in flight.
    pub(super) fn start_copy(
        &self,
        block: &mut BlockState,
        warp: &Warp,
        origin: (CopyKind, usize),
        part: Part,
        phase: Option<Phase>,
    ) {
        let Part { address, bytes, is_source, global } = part;
        let end = address.checked_add(bytes);
        let is_inside = end.is_some_and(|end| end <= block.shared.len() as u64);
        if block.shadow.is_none() || bytes == 0 || !is_inside {
            return;
        }
        let (kind, lane) = origin;
        let thread = warp.number * WARP as u32 + lane as u32;
        let instruction = self.pc;
        let is_read = false;
        let copy = InFlight {
            kind,
            thread,
            instruction,
            address,
            bytes,
            is_source,
            global,
            is_read,
            phase,
        };
        block.copies.start(copy, block.shared.len());
    }

    /// Makes the phase of an object in shared memory end with the `cp.async` copies of a lane.
    pub(super) fn count_copies(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        object: Run,
        number: u64,
    ) -> Result<(), Box<Stop>> {
        let thread = warp.number * WARP as u32 + object.first as u32;
        let copies = block.copies.count(thread, Phase { object: object.address, number });
        self.finish_copies(block, warp, &copies)?;
        self.fence(block, warp, Scope::Cta);
        Ok(())
    }

    /// Records the bytes of copies as accessed now, by the threads that have waited for them.
    fn finish_copies(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        copies: &[InFlight],
    ) -> Result<(), Box<Stop>> {
        for copy in copies {
            let lane = copy.thread as usize % WARP;
            let run = Run { address: copy.address, first: lane, count: 1 };
            let reach = Reach {
                space: SpaceName::Shared,
                mask: 1 << lane,
                bytes: copy.bytes as u32,
                qualifier: Qualifier::Plain,
                uniform: false,
            };
            let kind = if copy.is_source { AccessKind::Read } else { AccessKind::Write };
            let range = self.shared_range(block, &reach, run, copy.bytes as usize)?;
            let bytes = block.shared[range].to_vec();
            self.record_ordered(block, warp, &reach, run, (kind, &bytes));
            if let Some(address) = copy.global.filter(|_| !copy.is_source) {
                let reach = Reach { space: SpaceName::Global, ..reach };
                let run = Run { address, ..run };
                self.record_global(block, warp, &reach, run, (AccessKind::Read, &[]));
            }
        }
        Ok(())
    }

    /// Returns the access to a part of the bytes of a bulk copy by a lane.
    fn bulk_run(
        &self,
        place: (SpaceName, u64),
        at: u64,
        bytes: usize,
        lane: usize,
    ) -> Result<(Reach, Run), Box<Stop>> {
        let space = place.0;
        let address = place.1.wrapping_add(at);
        self.check_multiple(space, address, 16, lane)?;
        let mask = 1 << lane;
        let qualifier = Qualifier::Plain;
        let reach = Reach { space, mask, bytes: bytes as u32, qualifier, uniform: false };
        Ok((reach, Run { address, first: lane, count: 1 }))
    }
}

/// Returns the numbers in the block of the threads of `mask`.
fn threads_of(warp: &Warp, mask: Mask) -> impl Iterator<Item = u32> + use<> {
    let first = warp.number * WARP as u32;
    lanes_of(mask).map(move |lane| first + lane as u32)
}
