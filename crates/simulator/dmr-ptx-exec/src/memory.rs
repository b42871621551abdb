//! Accesses to memory: addresses into spaces, checks, and runs of adjacent lanes.

use dmr_ptx_arith::{Lanes, Mask, WARP, lanes_of};

use super::access::AccessKind;
use super::block::BlockState;
use super::cluster::RANKED;
use super::code::Location;
use super::fault::{FaultKind, SpaceName};
use super::global::{Access, Qualifier};
use super::interpreter::{Interpreter, Stop};
use super::space::{Run, SHARED, lanes_where, resolve, window};
use super::warp::Warp;

/// The bytes of the largest run: 32 lanes of 32 bytes.
pub(super) const RUN_BYTES: usize = WARP * 32;

/// An access by lanes of a warp, in one space.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub(super) space: SpaceName,
    pub(super) mask: Mask,
    /// The bytes of a lane.
    pub(super) bytes: u32,
    pub(super) qualifier: Qualifier,
    /// True if all lanes of `mask` access the same bytes, those of one run.
    pub(super) uniform: bool,
}

impl Reach {
    /// Returns the lanes of a run.
    #[inline]
    pub(super) fn lanes(&self, run: Run) -> Mask {
        if self.uniform { self.mask } else { run.mask() }
    }

    /// Returns the offset of a lane's bytes in those of a run.
    #[inline]
    pub(super) fn offset(&self, run: Run, lane: usize) -> usize {
        if self.uniform { 0 } else { (lane - run.first) * self.bytes as usize }
    }

    /// Returns the first lane.
    #[inline]
    pub(super) fn first_lane(&self) -> usize {
        self.mask.trailing_zeros() as usize % WARP
    }
}

impl Interpreter<'_> {
    /// Calls `access` for each space that lanes of `mask` address, with the offsets in that space.
    pub(super) fn for_each_space(
        &mut self,
        location: &Location,
        mask: Mask,
        addresses: &Lanes,
        mut access: impl FnMut(&mut Self, SpaceName, Mask, &Lanes) -> Result<(), Box<Stop>>,
    ) -> Result<(), Box<Stop>> {
        if location.space != SpaceName::Generic {
            return access(self, location.space, mask, addresses);
        }
        // The windows of other spaces begin at a power of two.
        if addresses.iter().fold(0, |any, address| any | address) < SHARED {
            return access(self, SpaceName::Global, mask, addresses);
        }
        let mut rest = mask;
        while rest != 0 {
            let (space, _) = resolve(addresses[rest.trailing_zeros() as usize]);
            let part = lanes_where(rest, |lane| resolve(addresses[lane]).0 == space);
            rest &= !part;
            let offsets = addresses.map(|address| address.wrapping_sub(window(space)));
            access(self, space, part, &offsets)?;
        }
        Ok(())
    }

    /// Reads the bytes of a run that do not go to registers: each lane reads a byte that was
    /// written.
    pub(super) fn read_written(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        reach: &Reach,
        run: Run,
        into: &mut [u8],
    ) -> Result<(), Box<Stop>> {
        self.read_run(block, warp, reach, run, into)?;
        let mut lanes = self.unwritten.chunks(reach.bytes as usize);
        match lanes.position(|lane| !lane.contains(&0)) {
            None => Ok(()),
            Some(index) => {
                let lane = run.first + index;
                Err(self.uninitialised(&self.origin(warp, reach, run, lane), lane, "a copy"))
            }
        }
    }

    /// Reads the bytes of a run. Then `unwritten` is empty, or has all bits of each byte set that
    /// no thread has written.
    pub(super) fn read_run(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        reach: &Reach,
        run: Run,
        into: &mut [u8],
    ) -> Result<(), Box<Stop>> {
        self.unwritten.clear();
        let strong = reach.qualifier.is_strong();
        if strong {
            let generic = run.address.wrapping_add(window(reach.space));
            for index in 0..run.count as u64 {
                block.order.observe(
                    warp.number as usize,
                    generic.wrapping_add(index * u64::from(reach.bytes)),
                );
            }
        }
        match reach.space {
            SpaceName::Shared if run.address >= RANKED => {
                into.fill(0);
                self.in_block(block, (run.address, run.first), |this, block, address| {
                    this.read_run(block, warp, reach, Run { address, ..run }, into)
                })
            }
            SpaceName::Shared => {
                let range = self.shared_range(block, reach, run, into.len())?;
                if range.len() < into.len() {
                    return self.read_head(block, warp, reach, run, into, range.len());
                }
                into.copy_from_slice(&block.shared[range.clone()]);
                if self.checks.uninitialised && block.written[range.clone()].contains(&0) {
                    self.mark_unwritten(into.len(), 0, &block.written[range]);
                }
                let kind = AccessKind::read(strong);
                if strong {
                    self.count_poll(run.address, into);
                }
                self.record_shared(block, warp, reach, run, (kind, &[]));
                Ok(())
            }
            SpaceName::Local => {
                let at = run.address;
                let each = reach.bytes as usize;
                let len = into.len();
                if !self.is_in_frame(reach, run)? {
                    into.fill(0);
                    return Ok(());
                }
                for (index, part) in into.chunks_exact_mut(each).enumerate() {
                    let Some((bytes, written)) = warp.local.get(run.first + index, at, each) else {
                        continue;
                    };
                    part.copy_from_slice(bytes);
                    if self.checks.uninitialised && written.contains(&0) {
                        self.mark_unwritten(len, index * each, written);
                    }
                }
                Ok(())
            }
            SpaceName::Param => {
                let found = usize::try_from(run.address).ok();
                let found = found.and_then(|at| self.params.get(at..at.checked_add(into.len())?));
                if let Some(bytes) = found {
                    into.copy_from_slice(bytes);
                    return Ok(());
                }
                for (index, part) in into.chunks_exact_mut(reach.bytes as usize).enumerate() {
                    let address = run.address.wrapping_add(index as u64 * u64::from(reach.bytes));
                    let found = usize::try_from(address).ok();
                    match found.and_then(|at| self.params.get(at..at.checked_add(part.len())?)) {
                        Some(bytes) => part.copy_from_slice(bytes),
                        None => {
                            let lane = run.first + index;
                            let len = self.params.len() as u64;
                            self.check_bounds(reach, lane, address, len)?;
                            part.fill(0);
                        }
                    }
                }
                Ok(())
            }
            SpaceName::Global | SpaceName::Const | SpaceName::Generic => {
                let access = self.global_access(block, warp, reach, run, into.len());
                let kind = AccessKind::read(strong);
                self.record_global(block, warp, reach, run, (kind, &[]));
                self.memory.read(&access, into).map_err(|error| refused(reach, run, error))?;
                if strong {
                    self.count_poll(run.address, into);
                }
                Ok(())
            }
        }
    }

    /// Reads the first `len` bytes of a run in shared memory, and zeros for the lanes beyond it.
    #[cold]
    fn read_head(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        reach: &Reach,
        run: Run,
        into: &mut [u8],
        len: usize,
    ) -> Result<(), Box<Stop>> {
        let (into, beyond) = into.split_at_mut(len);
        beyond.fill(0);
        match run.head(len, reach.bytes) {
            Some(run) => self.read_run(block, warp, reach, run, into),
            None => Ok(()),
        }
    }

    /// Records the unwritten bytes of a run of `len` bytes among those from `at` on.
    #[cold]
    fn mark_unwritten(&mut self, len: usize, at: usize, written: &[u8]) {
        self.unwritten.resize(len, 0);
        let to = self.unwritten[at..].iter_mut();
        to.zip(written).for_each(|(to, &from)| *to = unwritten(from));
    }

    /// Writes the bytes of a run.
    pub(super) fn write_run(
        &mut self,
        block: &mut BlockState,
        warp: &mut Warp,
        reach: &Reach,
        run: Run,
        bytes: &[u8],
    ) -> Result<(), Box<Stop>> {
        let strong = reach.qualifier.is_strong();
        if strong {
            let generic = run.address.wrapping_add(window(reach.space));
            for index in 0..run.count as u64 {
                block.order.publish(
                    warp.number as usize,
                    generic.wrapping_add(index * u64::from(reach.bytes)),
                );
            }
        }
        if reach.space != SpaceName::Local {
            self.polls = 0;
            self.changed = true;
        }
        match reach.space {
            SpaceName::Shared if run.address >= RANKED => {
                self.in_block(block, (run.address, run.first), |this, block, address| {
                    this.write_run(block, warp, reach, Run { address, ..run }, bytes)
                })
            }
            SpaceName::Shared => {
                let range = self.shared_range(block, reach, run, bytes.len())?;
                if range.len() < bytes.len() {
                    return match run.head(range.len(), reach.bytes) {
                        Some(run) => self.write_run(block, warp, reach, run, &bytes[..range.len()]),
                        None => Ok(()),
                    };
                }
                let kind = AccessKind::write(strong);
                self.record_shared(block, warp, reach, run, (kind, bytes));
                block.shared[range.clone()].copy_from_slice(bytes);
                if self.checks.uninitialised {
                    block.written[range].fill(1);
                }
                Ok(())
            }
            SpaceName::Local => {
                let at = run.address;
                let each = reach.bytes as usize;
                if !self.is_in_frame(reach, run)? {
                    return Ok(());
                }
                for (index, part) in bytes.chunks_exact(each).enumerate() {
                    let Some((to, written)) = warp.local.get(run.first + index, at, each) else {
                        continue;
                    };
                    to.copy_from_slice(part);
                    written.fill(1);
                }
                Ok(())
            }
            SpaceName::Param | SpaceName::Const => {
                let message = format!("a write to {} memory", reach.space);
                Err(Stop::new(FaultKind::Invalid(message), run.first))
            }
            SpaceName::Global | SpaceName::Generic => {
                let access = self.global_access(block, warp, reach, run, bytes.len());
                let kind = AccessKind::write(strong);
                self.record_global(block, warp, reach, run, (kind, bytes));
                self.memory.write(&access, bytes).map_err(|error| refused(reach, run, error))
            }
        }
    }

    pub(super) fn global_access(
        &self,
        block: &BlockState,
        warp: &Warp,
        reach: &Reach,
        run: Run,
        len: usize,
    ) -> Access {
        Access {
            address: run.address,
            bytes: len as u32,
            lane_bytes: reach.bytes,
            lanes: reach.lanes(run),
            block: block.number,
            first_thread: warp.number * WARP as u32,
            qualifier: reach.qualifier,
            instruction: self.pc,
        }
    }

    /// Returns the bytes of a run in shared memory; those of its first lanes if the others are out
    /// of bounds, and that is not checked.
    pub(super) fn shared_range(
        &self,
        block: &BlockState,
        reach: &Reach,
        run: Run,
        len: usize,
    ) -> Result<std::ops::Range<usize>, Box<Stop>> {
        let size = block.shared.len() as u64;
        let end = run.address.checked_add(len as u64);
        if end.is_none_or(|end| end > size) {
            let each = u64::from(reach.bytes);
            let fit = size.saturating_sub(run.address) / each;
            let index = fit.min(run.count as u64 - 1);
            let lane = run.first + index as usize;
            self.check_bounds(reach, lane, run.address + index * each, size)?;
            let start = run.address.min(size) as usize;
            return Ok(start..start + (index * each) as usize);
        }
        Ok(run.address as usize..run.address as usize + len)
    }

    /// Returns whether a run in local memory is below the end of the frame; refuses one that is
    /// not.
    fn is_in_frame(&self, reach: &Reach, run: Run) -> Result<bool, Box<Stop>> {
        let end = run.address.checked_add(u64::from(reach.bytes));
        let len = u64::from(self.local_end);
        let is_in = end.is_some_and(|end| end <= len);
        if !is_in {
            self.check_bounds(reach, run.first, run.address, len)?;
        }
        Ok(is_in)
    }

    /// Refuses an access by a lane beyond the `len` bytes of a space.
    #[cold]
    fn check_bounds(
        &self,
        reach: &Reach,
        lane: usize,
        address: u64,
        len: u64,
    ) -> Result<(), Box<Stop>> {
        if !self.checks.out_of_bounds {
            return Ok(());
        }
        let space = reach.space;
        let bytes = reach.bytes;
        Err(Stop::new(FaultKind::OutOfBounds { space, address, bytes, len }, lane))
    }

    /// Refuses the first lane whose address is not a multiple of its bytes.
    pub(super) fn check_aligned(&self, reach: &Reach, addresses: &Lanes) -> Result<(), Box<Stop>> {
        let low = u64::from(reach.bytes) - 1;
        let any = addresses.iter().fold(0, |any, address| any | address) & low;
        if any == 0 {
            return Ok(());
        }
        match lanes_of(reach.mask).find(|&lane| addresses[lane] & low != 0) {
            None => Ok(()),
            Some(lane) => self.check_multiple(reach.space, addresses[lane], reach.bytes, lane),
        }
    }

    /// Refuses an address that is not a multiple of `align`.
    pub(super) fn check_multiple(
        &self,
        space: SpaceName,
        address: u64,
        align: u32,
        lane: usize,
    ) -> Result<(), Box<Stop>> {
        if !self.checks.misaligned || address.is_multiple_of(u64::from(align.max(1))) {
            return Ok(());
        }
        Err(Stop::new(FaultKind::Misaligned { space, address, bytes: align }, lane))
    }
}

/// Returns the undefined bits of a byte.
pub(super) fn unwritten(written: u8) -> u8 {
    if written == 0 { u8::MAX } else { 0 }
}

pub(super) fn refused(reach: &Reach, run: Run, error: super::global::AccessError) -> Box<Stop> {
    let index = (error.offset / reach.bytes) as usize;
    let lane = run.first + index.min(run.count - 1);
    Stop::new(FaultKind::Memory { address: run.address, message: error.message }, lane)
}
