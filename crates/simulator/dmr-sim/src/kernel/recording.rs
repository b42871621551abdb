//! The footprint of a launch that is recorded while it runs: the bytes that it touches, and the
//! places in the kernel that touch them.
//!
//! A launch is one operation for the checks, so only what it does to the outside is kept: the bytes
//! that it reads before it has written them itself, and those that it writes, as sets. Accesses of
//! neighbouring threads join in these sets, which is why the boundaries that one access crosses are
//! kept beside them. Races inside of a launch are the interpreter's matter.

use std::sync::Arc;

use dmr_ptx::Program;

use crate::access::{AccessKind, KernelSite};
use crate::kernel::{ByteSet, Chunk};

/// The granularity of recorded boundary crossings: the alignment of allocations, so that no two
/// allocations meet anywhere else.
const BOUNDARY: u64 = crate::memory::address::ALIGNMENT;

/// The bytes that a launch has touched, and where.
pub(crate) struct Recording {
    /// The bytes of each kind, in the order of their checks: reads of earlier content first.
    pub(crate) sets: [(ByteSet, AccessKind); 5],
    /// The written bytes that have undefined values.
    pub(crate) undefined: ByteSet,
    /// Boundaries of allocations (in units of [`BOUNDARY`]) that a single access crosses.
    pub(crate) crossed: ByteSet,
    pub(crate) sites: Sites,
    pub(crate) panicked: bool,
    /// The time that the launch takes beside its start.
    pub(crate) nanoseconds: u64,
    /// Faults that the interpreter has found.
    pub(crate) faults: Vec<String>,
}

impl Default for Recording {
    fn default() -> Self {
        use AccessKind::{AtomicRead, AtomicWrite, Read, ReadBack, Write};
        let kinds = [Read, AtomicRead, Write, AtomicWrite, ReadBack];
        Self {
            sets: kinds.map(|kind| (ByteSet::default(), kind)),
            undefined: ByteSet::default(),
            crossed: ByteSet::default(),
            sites: Sites::default(),
            panicked: false,
            nanoseconds: 0,
            faults: Vec::new(),
        }
    }
}

/// The size of the largest vector that a lane loads or stores, in bytes.
const LANE_BYTES: u32 = 32;

impl Recording {
    /// The number of ranges of one launch that are checked.
    pub(crate) const MAX_RANGES: usize = 1 << 20;

    /// Records an access of the bytes from `from` to `to`.
    pub(crate) fn touch(&mut self, from: u64, to: u64, kind: AccessKind, lanes: Option<Lanes>) {
        if to <= from {
            return;
        }
        if kind.writes() && !self.undefined.is_empty() {
            self.undefined.remove(from, to);
        }
        let first = from / BOUNDARY;
        let last = (to - 1) / BOUNDARY;
        // Aligned registers of a lane cross no border; a copy of a lane and misaligned registers
        // can.
        let is_one = lanes.is_none_or(|Lanes { bytes, .. }| {
            bytes == 0 || bytes > LANE_BYTES || !from.is_multiple_of(u64::from(bytes))
        });
        if first < last && is_one {
            self.crossed.insert(first + 1, last + 1);
        }
        let is_new = if kind.writes() || !self.may_be_own(from, to) {
            self.insert(kind, from, to)
        } else {
            Chunk::of(from, to).map(|chunk| self.read(kind, chunk)).filter(|is_new| *is_new).count()
                > 0
        };
        if let Some(lanes) = lanes
            && is_new
        {
            self.sites.add(from, u32::try_from(to - from).unwrap_or(u32::MAX), kind, lanes);
        }
    }

    /// Records that the bytes from `from` to `to`, which the launch has written, have undefined
    /// values.
    pub(crate) fn undefine(&mut self, from: u64, to: u64) {
        self.undefined.insert(from, to);
    }

    /// Returns whether all bytes from `from` to `to`, in one chunk, were changed by atomic
    /// operations.
    pub(crate) fn has_changed(&self, from: u64, to: u64) -> bool {
        let mut chunks = Chunk::of(from, to);
        match (chunks.next(), chunks.next()) {
            (Some(only), None) => {
                self.undefined.is_empty()
                    && self.set(AccessKind::AtomicWrite).within(only) == only.mask
            }
            _ => false,
        }
    }

    /// Records a read, without the bytes that the launch has written itself with a defined value.
    fn read(&mut self, kind: AccessKind, chunk: Chunk) -> bool {
        let own = self.set(AccessKind::Write).within(chunk);
        let left = chunk.mask & !(own & !self.undefined.within(chunk));
        let atomic = self.set(AccessKind::AtomicWrite).within(Chunk { mask: left, ..chunk });
        let atomic = atomic & !self.undefined.within(chunk);
        let old = Chunk { mask: left & !atomic, ..chunk };
        let mut is_new = old.mask != 0 && self.set_mut(kind).insert_chunk(old);
        if atomic != 0 && kind == AccessKind::Read {
            let back = Chunk { mask: atomic, ..chunk };
            is_new |= self.set_mut(AccessKind::ReadBack).insert_chunk(back);
        }
        is_new
    }

    fn insert(&mut self, kind: AccessKind, from: u64, to: u64) -> bool {
        let set = self.set_mut(kind);
        let mut chunks = Chunk::of(from, to);
        match (chunks.next(), chunks.next()) {
            (Some(only), None) => set.insert_chunk(only),
            _ => {
                set.insert(from, to);
                true
            }
        }
    }

    /// Returns whether the launch may have written a byte of the range.
    fn may_be_own(&self, from: u64, to: u64) -> bool {
        let own = [AccessKind::Write, AccessKind::AtomicWrite].map(|kind| self.set(kind));
        // The pages are searched for a long range only.
        let is_long = to - from > 4096;
        own.iter().any(|set| !set.is_empty() && (!is_long || set.may_overlap(from, to)))
    }

    fn set(&self, kind: AccessKind) -> &ByteSet {
        &self.sets[kind as usize].0
    }

    fn set_mut(&mut self, kind: AccessKind) -> &mut ByteSet {
        &mut self.sets[kind as usize].0
    }
}

/// The places of accesses: runs of threads that touch memory side by side, as the lanes of a warp
/// do.
#[derive(Default)]
pub(crate) struct Sites {
    runs: Vec<Run>,
    /// The program whose instructions the lines are, if they are.
    pub(crate) program: Option<Arc<Program>>,
}

/// The lanes of an access side by side, from the first thread on.
#[derive(Clone, Copy)]
pub(crate) struct Lanes {
    pub(crate) first: KernelSite,
    /// The bytes of each; 0 if one thread makes the whole access.
    pub(crate) bytes: u32,
}

struct Run {
    from: u64,
    /// The bytes of each thread.
    bytes: u32,
    threads: u32,
    first: KernelSite,
    kind: AccessKind,
}

impl Sites {
    /// The number of runs that are kept. The places of later accesses are not recorded.
    const MAX: usize = 1 << 18;

    fn add(&mut self, from: u64, all: u32, kind: AccessKind, lanes: Lanes) {
        let site = lanes.first;
        let bytes = if lanes.bytes == 0 { all } else { lanes.bytes };
        let threads = (all / bytes).max(1);
        if let Some(last) = self.runs.last_mut()
            && last.kind == kind
            && last.bytes == bytes
            && last.first.line == site.line
            && last.first.block == site.block
            && last.first.thread.checked_add(last.threads) == Some(site.thread)
            && last.from.wrapping_add(u64::from(bytes) * u64::from(last.threads)) == from
        {
            last.threads += threads;
        } else if self.runs.len() < Self::MAX {
            self.runs.push(Run { from, bytes, threads, first: site, kind });
        }
    }

    /// Returns the place that has touched the byte first.
    pub(crate) fn find(&self, at: u64, kind: AccessKind) -> Option<KernelSite> {
        let kind = if kind == AccessKind::ReadBack { AccessKind::Read } else { kind };
        let index = |run: &Run| at.checked_sub(run.from).map(|skip| skip / u64::from(run.bytes));
        let found = |run: &&Run| {
            run.kind == kind && index(run).is_some_and(|index| index < u64::from(run.threads))
        };
        let run = self.runs.iter().find(found)?;
        Some(KernelSite { thread: run.first.thread + index(run)? as u32, ..run.first })
    }

    /// Returns the line of a place, and the file and line of the source that was compiled to it, if
    /// that is known.
    pub(crate) fn line(&self, site: KernelSite) -> (KernelSite, Option<Arc<str>>) {
        let Some(program) = &self.program else { return (site, None) };
        let place = program.place(site.line);
        let source = place.source.map(|source| source.to_string().into());
        (KernelSite { line: place.line, ..site }, source)
    }
}
