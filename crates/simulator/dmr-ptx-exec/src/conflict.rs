//! Accesses without order: what is recorded of each access, and the report of two.
//!
//! The accesses are compared in `shadow` (shared memory) and `races` (global memory).

use crate::races::GlobalAccess;
use dmr_ptx_arith::{Mask, WARP, lanes_of};

use super::access::AccessKind;
use super::block::BlockState;
use super::fault::{Fault, FaultKind, SpaceName, Thread};
use super::global::{Qualifier, Scope};
use super::interpreter::{Interpreter, Stop};
use super::memory::Reach;
use super::order::Order;
use super::shadow::SharedAccess;
use super::space::Run;
use super::warp::Warp;

/// Two accesses without order, one of them writing.
struct Pair {
    space: SpaceName,
    address: u64,
    /// The lane of the later access.
    lane: usize,
    kind: AccessKind,
    /// The thread, the access and the instruction of the earlier one.
    other: Thread,
    earlier: EarlierKind,
    instruction: u32,
    equal: bool,
}

/// The kind of the earlier one of two accesses.
enum EarlierKind {
    Access(AccessKind),
    /// An asynchronous copy, and what it does with the bytes.
    Copy(&'static str),
}

impl Interpreter<'_> {
    /// Orders accesses of a warp before its later ones, for the threads of `scope`.
    pub(super) fn fence(&mut self, block: &mut BlockState, warp: &Warp, scope: Scope) {
        block.order.fence(warp.number as usize);
        if let Some(races) = self.races.as_mut().filter(|_| scope != Scope::Cta) {
            races.fence(block.number as u32);
        }
    }

    /// Records an access to shared memory; the bytes are what it writes, and have not been written.
    pub(super) fn record_shared(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        reach: &Reach,
        run: Run,
        access: (AccessKind, &[u8]),
    ) {
        if self.race.is_none()
            && let Err(stop) = self.check_copies(block, reach, run, access)
        {
            self.keep_race(block, warp, *stop);
        }
        self.record_ordered(block, warp, reach, run, access);
    }

    /// Records an access to shared memory that may be one of a copy in flight.
    pub(super) fn record_ordered(
        &mut self,
        block: &mut BlockState,
        warp: &Warp,
        reach: &Reach,
        run: Run,
        access: (AccessKind, &[u8]),
    ) {
        if self.race.is_none()
            && let Err(stop) = self.check_shared(block, warp, reach, run, access)
        {
            self.keep_race(block, warp, *stop);
        }
    }

    /// Records an access to global memory; the bytes are what it writes, and have not been written.
    pub(super) fn record_global(
        &mut self,
        block: &BlockState,
        warp: &Warp,
        reach: &Reach,
        run: Run,
        access: (AccessKind, &[u8]),
    ) {
        if self.race.is_none()
            && let Err(stop) = self.check_global(block, warp, reach, run, access)
        {
            self.keep_race(block, warp, *stop);
        }
    }

    /// Keeps the first race of a launch, which goes on without these checks: memory has then what a
    /// device could have written.
    #[cold]
    fn keep_race(&mut self, block: &BlockState, warp: &Warp, stop: Stop) {
        let thread = self.thread_index(warp.number * WARP as u32 + stop.lane as u32);
        let thread = Thread { block: block.index, thread };
        let place = self.code.place(self.pc);
        let race = Fault { kind: stop.kind, thread, place, printed: Vec::new(), end: None };
        self.race = Some(Box::new(race));
    }

    /// Refuses an access to bytes of an asynchronous copy that is in flight.
    fn check_copies(
        &self,
        block: &BlockState,
        reach: &Reach,
        run: Run,
        access: (AccessKind, &[u8]),
    ) -> Result<(), Box<Stop>> {
        let (kind, new) = access;
        let bytes = run.count as u64 * u64::from(reach.bytes);
        let Some(copy) = block.copies.conflict(run.address, bytes, kind.writes()) else {
            return Ok(());
        };
        let at = run.address.max(copy.address);
        let lane = run.first + ((at - run.address) / u64::from(reach.bytes)) as usize;
        let end = (run.address + bytes).min(copy.address + copy.bytes);
        let kept = block.shared.get(at as usize..end as usize);
        let written = new.get((at - run.address) as usize..(end - run.address) as usize);
        let is_equal = kind == AccessKind::Write && !copy.is_source && written == kept;
        let verb = if copy.is_source { "reads" } else { "writes" };
        self.report_race(&Pair {
            space: SpaceName::Shared,
            address: at,
            lane,
            kind,
            other: Thread { block: block.index, thread: self.thread_index(copy.thread) },
            earlier: EarlierKind::Copy(verb),
            instruction: copy.instruction,
            equal: is_equal,
        })
    }

    /// Refuses an access to bytes of global memory that an asynchronous copy in flight reads or
    /// writes.
    fn check_global_copies(
        &mut self,
        block: &BlockState,
        warp: &Warp,
        reach: &Reach,
        run: Run,
        access: (AccessKind, &[u8]),
    ) -> Result<(), Box<Stop>> {
        let (kind, new) = access;
        let bytes = run.count as u64 * u64::from(reach.bytes);
        let found = block.copies.global_conflict(run.address, bytes, kind.writes());
        let Some((copy, at)) = found else { return Ok(()) };
        let index = ((at - run.address) / u64::from(reach.bytes)) as usize;
        let lane = run.first + index;
        let each = reach.bytes as usize;
        // Kernels that work in place overwrite what the same thread has begun to copy.
        if !copy.is_source && copy.thread == warp.number * WARP as u32 + lane as u32 {
            return Ok(());
        }
        let mut old = vec![0; each];
        let address = run.address + (index * each) as u64;
        let whole =
            self.global_access(block, warp, reach, Run { address, first: lane, count: 1 }, each);
        let is_equal = kind == AccessKind::Write
            && self.memory.read(&whole, &mut old).is_ok()
            && new.get(index * each..(index + 1) * each) == Some(&old[..]);
        let verb = if copy.is_source { "written" } else { "read" };
        self.report_race(&Pair {
            space: SpaceName::Global,
            address: at,
            lane,
            kind,
            other: Thread { block: block.index, thread: self.thread_index(copy.thread) },
            earlier: EarlierKind::Copy(verb),
            instruction: copy.instruction,
            equal: is_equal,
        })
    }

    /// Refuses an access to shared memory that is not ordered with another.
    fn check_shared(
        &self,
        block: &mut BlockState,
        warp: &Warp,
        reach: &Reach,
        run: Run,
        access: (AccessKind, &[u8]),
    ) -> Result<(), Box<Stop>> {
        let Some(shadow) = &mut block.shadow else { return Ok(()) };
        let (kind, new) = access;
        let first_thread = warp.number * WARP as u32;
        let made =
            SharedAccess { run, bytes: reach.bytes, first_thread, kind, instruction: self.pc };
        let mut found = shadow.record(&made, &block.order);
        if reach.uniform && found.is_none() {
            for first in lanes_of(others_to_check(&block.order, warp, reach.mask)) {
                let made = SharedAccess { run: Run { first, ..run }, ..made };
                found = found.or(shadow.record(&made, &block.order));
            }
        }
        let Some(conflict) = found else { return Ok(()) };
        let at = conflict.offset as usize;
        let index = at - run.address as usize;
        let both_write = kind == AccessKind::Write && conflict.earlier.kind == AccessKind::Write;
        let end = (index / reach.bytes as usize + 1) * reach.bytes as usize;
        let equal = both_write && new.get(index..end) == block.shared.get(at..at + (end - index));
        let thread = self.thread_index(u32::from(conflict.earlier.thread));
        self.report_race(&Pair {
            space: SpaceName::Shared,
            address: conflict.offset,
            lane: conflict.lane,
            kind,
            other: Thread { block: block.index, thread },
            earlier: EarlierKind::Access(conflict.earlier.kind),
            instruction: conflict.earlier.instruction,
            equal,
        })
    }

    /// Refuses an access to global memory that is not ordered with another, or with a copy in
    /// flight.
    fn check_global(
        &mut self,
        block: &BlockState,
        warp: &Warp,
        reach: &Reach,
        run: Run,
        access: (AccessKind, &[u8]),
    ) -> Result<(), Box<Stop>> {
        if self.races.is_some() {
            self.check_global_copies(block, warp, reach, run, access)?;
        }
        let Some(races) = &mut self.races else { return Ok(()) };
        let (kind, new) = access;
        let lanes = if reach.uniform { reach.mask.count_ones() } else { run.count as u32 };
        let made = GlobalAccess {
            block: block.number as u32,
            first_thread: warp.number * WARP as u32,
            address: run.address,
            lane_bytes: reach.bytes,
            first_lane: run.first as u32,
            lanes,
            is_same: reach.uniform,
            kind: match kind {
                AccessKind::StrongWrite if reach.qualifier == Qualifier::Atomic(Scope::Cta) => {
                    AccessKind::BlockWrite
                }
                kind => kind,
            },
            instruction: self.pc,
            stamp: block.order.now(),
        };
        let seen = |thread: u32, other: u32, stamp| {
            block.order.has_seen(thread as u16, other as u16, stamp)
        };
        let mut found = races.record(&made, seen);
        if reach.uniform && kind != AccessKind::StrongRead {
            for lane in lanes_of(others_to_check(&block.order, warp, reach.mask)) {
                let made = GlobalAccess { first_lane: lane as u32, ..made };
                found = found.or(races.record(&made, seen));
            }
        }
        let Some(conflict) = found else { return Ok(()) };
        let mut equal = false;
        if kind == AccessKind::Write && conflict.earlier.kind == AccessKind::Write {
            // The bytes that the lane and the earlier one have written, where one access is within
            // the other.
            let address = conflict.address;
            let lane = conflict.lane as usize % WARP;
            let index = (address - run.address) as usize;
            let each = reach.bytes as usize;
            let count = (each - index % each).min(usize::from(conflict.earlier.lane_bytes));
            let mut old = vec![0; count];
            let both = Reach { bytes: count as u32, ..*reach };
            let at = Run { address, first: lane, count: 1 };
            let access = self.global_access(block, warp, &both, at, count);
            equal = self.memory.read(&access, &mut old).is_ok()
                && new.get(index..index + count) == Some(&old[..]);
        }
        let thread = self.thread_index(conflict.earlier.thread);
        self.report_race(&Pair {
            space: SpaceName::Global,
            address: conflict.address,
            lane: conflict.lane as usize % WARP,
            kind,
            other: Thread { block: self.block_index(conflict.earlier.block), thread },
            earlier: EarlierKind::Access(conflict.earlier.kind),
            instruction: conflict.earlier.instruction,
            equal,
        })
    }

    fn report_race(&self, pair: &Pair) -> Result<(), Box<Stop>> {
        if pair.equal && !self.checks.equal_writes {
            return Ok(());
        }
        let place = self.code.place(pair.instruction);
        let kind = FaultKind::Race {
            space: pair.space,
            address: pair.address,
            access: pair.kind.name(),
            other: pair.other,
            earlier: match pair.earlier {
                EarlierKind::Access(kind) => format!("accessed ({}) at {place}", kind.name()),
                EarlierKind::Copy(verb) => {
                    format!("{verb} by an asynchronous copy at {place}, not waited for")
                }
            },
            equal: pair.equal,
        };
        Err(Stop::new(kind, pair.lane))
    }

    /// Returns the index in its block of the thread of this number.
    pub(super) fn thread_index(&self, thread: u32) -> [u32; 3] {
        let [x, y, _] = self.block;
        [thread % x, thread / x % y, thread / x / y]
    }

    /// Returns the index in its grid of the block of this number.
    fn block_index(&self, block: u32) -> [u32; 3] {
        let [x, y, _] = self.grid;
        [block % x, block / x % y, block / x / y]
    }
}

/// Returns the lanes to check beside the first of `mask`, all of which access the same bytes.
///
/// The first and the last are enough: at most one of them is the thread of the earlier access, and
/// what orders one of them orders the other, unless a warp barrier has ordered single lanes.
fn others_to_check(order: &Order, warp: &Warp, mask: Mask) -> Mask {
    if order.has_ordered_pairs(warp.number as usize) {
        return mask & (mask - 1);
    }
    1 << (WARP - 1 - mask.leading_zeros() as usize % WARP)
}
