//! The footprint of a launch that is recorded while it runs: the bytes that it touches, and the
//! places in the kernel that touch them.

use std::fmt;
use std::sync::Arc;

use crate::access::byte_set::{ByteSet, Chunk};
use crate::kernel::interpreter::Loaded;

/// A place in a kernel, as the body of a kernel names it: a thread and a line of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelSite {
    block: u64,
    thread: u32,
    line: u32,
}

impl KernelSite {
    /// Makes a place: the linear index of the block in its grid and of the thread in its block, and
    /// a line.
    #[must_use]
    pub const fn new(block: u64, thread: u32, line: u32) -> Self {
        Self { block, thread, line }
    }

    /// Returns the linear index of the block in its grid.
    #[must_use]
    pub const fn block(&self) -> u64 {
        self.block
    }

    /// Returns the linear index of the thread in its block.
    #[must_use]
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// Returns the line of the kernel's source.
    #[must_use]
    pub const fn line(&self) -> u32 {
        self.line
    }
}

impl fmt::Display for KernelSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, thread, line } = self;
        write!(f, "line {line}, block {block}, thread {thread}")
    }
}

/// The kind of an access of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    AtomicRead,
    Write,
    AtomicWrite,
    /// A plain read of bytes that the launch has written before by atomic operations: it needs no
    /// earlier content, but it can race with the atomic operations of others.
    ReadBack,
}

impl Touch {
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicRead | Self::AtomicWrite)
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::AtomicWrite)
    }
}

/// The distance of the addresses at which an access is recorded to cross from one block of memory
/// into the next: the alignment of allocations.
const BLOCK: u64 = crate::memory::address::ALIGNMENT;

/// The bytes that a launch has touched, and where.
pub(crate) struct Recording {
    /// The bytes of each kind, in the order of their checks: reads of earlier content first.
    pub(crate) sets: [(ByteSet, Touch); 5],
    /// The written bytes that have undefined values.
    pub(crate) undefined: ByteSet,
    /// The multiples of [`BLOCK`], divided by it, that lie inside of one access.
    pub(crate) straddled: ByteSet,
    pub(crate) sites: Sites,
    pub(crate) panicked: bool,
    /// The time that the launch takes beside its start.
    pub(crate) nanoseconds: u64,
    /// Faults that the interpreter has found.
    pub(crate) faults: Vec<String>,
}

impl Default for Recording {
    fn default() -> Self {
        use Touch::{AtomicRead, AtomicWrite, Read, ReadBack, Write};
        let kinds = [Read, AtomicRead, Write, AtomicWrite, ReadBack];
        Self {
            sets: kinds.map(|kind| (ByteSet::default(), kind)),
            undefined: ByteSet::default(),
            straddled: ByteSet::default(),
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
    pub(crate) fn touch(&mut self, from: u64, to: u64, kind: Touch, lanes: Option<Lanes>) {
        if to <= from {
            return;
        }
        if kind.writes() && !self.undefined.is_empty() {
            self.undefined.remove(from, to);
        }
        let first = from / BLOCK;
        let last = (to - 1) / BLOCK;
        // Aligned registers of a lane cross no border; a copy of a lane and misaligned registers
        // can.
        let is_one = lanes.is_none_or(|Lanes { bytes, .. }| {
            bytes == 0 || bytes > LANE_BYTES || !from.is_multiple_of(u64::from(bytes))
        });
        if first < last && is_one {
            self.straddled.insert(first + 1, last + 1);
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
                self.undefined.is_empty() && self.set(Touch::AtomicWrite).within(only) == only.mask
            }
            _ => false,
        }
    }

    /// Records a read, without the bytes that the launch has written itself with a defined value.
    fn read(&mut self, kind: Touch, chunk: Chunk) -> bool {
        let own = self.set(Touch::Write).within(chunk);
        let left = chunk.mask & !(own & !self.undefined.within(chunk));
        let atomic = self.set(Touch::AtomicWrite).within(Chunk { mask: left, ..chunk });
        let atomic = atomic & !self.undefined.within(chunk);
        let old = Chunk { mask: left & !atomic, ..chunk };
        let mut is_new = old.mask != 0 && self.set_mut(kind).insert_chunk(old);
        if atomic != 0 && kind == Touch::Read {
            let back = Chunk { mask: atomic, ..chunk };
            is_new |= self.set_mut(Touch::ReadBack).insert_chunk(back);
        }
        is_new
    }

    fn insert(&mut self, kind: Touch, from: u64, to: u64) -> bool {
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
        let own = [Touch::Write, Touch::AtomicWrite].map(|kind| self.set(kind));
        // The pages are searched for a long range only.
        let is_long = to - from > 4096;
        own.iter().any(|set| !set.is_empty() && (!is_long || set.may_overlap(from, to)))
    }

    fn set(&self, kind: Touch) -> &ByteSet {
        &self.sets[kind as usize].0
    }

    fn set_mut(&mut self, kind: Touch) -> &mut ByteSet {
        &mut self.sets[kind as usize].0
    }
}

/// The places of accesses: runs of threads that touch memory side by side, as the lanes of a warp
/// do.
#[derive(Default)]
pub(crate) struct Sites {
    runs: Vec<Run>,
    /// The program whose instructions the lines are, if they are.
    pub(crate) loaded: Option<Arc<Loaded>>,
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
    kind: Touch,
}

impl Sites {
    /// The number of runs that are kept. The places of later accesses are not recorded.
    const MAX: usize = 1 << 18;

    fn add(&mut self, from: u64, all: u32, kind: Touch, lanes: Lanes) {
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
    pub(crate) fn find(&self, at: u64, kind: Touch) -> Option<KernelSite> {
        let kind = if kind == Touch::ReadBack { Touch::Read } else { kind };
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
        let Some(loaded) = &self.loaded else { return (site, None) };
        let place = loaded.program.place(site.line);
        let source = place.source.map(|source| source.to_string().into());
        (KernelSite { line: place.line, ..site }, source)
    }
}
