//! Findings: the kind of error, and both operations.

use std::fmt;
use std::sync::Arc;

use crate::access::recording::KernelSite;
use crate::check::declared::{self, Undeclared};
use crate::host::label::CallStack;

/// A finding of the simulator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The kind of error.
    pub kind: ReportKind,
    /// The earlier operation, if there is one: the work that was not waited for, the free, the
    /// allocation.
    pub first: Option<Site>,
    /// The later operation, at whose submission the error was found.
    pub second: Site,
    /// The universe's device (0, 1, ...) that the memory is on; `None` for host memory, and for
    /// reserved addresses where nothing is mapped.
    pub device: Option<usize>,
    /// The first byte concerned.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The name of the allocation or region, if it has one.
    pub tag: Option<Arc<str>>,
    /// The access that the launch has not declared, if that is the finding.
    pub undeclared: Option<Box<Undeclared>>,
}

impl Report {
    /// Makes a finding about the later operation alone, and about no memory.
    pub(crate) const fn new(kind: ReportKind, second: Site) -> Self {
        let address = 0;
        let bytes = 0;
        Self {
            kind,
            first: None,
            second,
            device: None,
            address,
            bytes,
            tag: None,
            undeclared: None,
        }
    }

    /// Sets the memory that the finding is about.
    pub(crate) fn about(self, device: Option<usize>, address: u64, bytes: u64) -> Self {
        Self { device, address, bytes, ..self }
    }

    /// Sets the earlier operation.
    pub(crate) fn after(self, first: Option<Site>) -> Self {
        Self { first, ..self }
    }

    /// Sets the name of the memory.
    pub(crate) fn tagged(self, tag: Option<Arc<str>>) -> Self {
        Self { tag, ..self }
    }
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReportKind {
    /// A read that is not ordered after a write of the same bytes.
    ReadAfterWrite,
    /// A write that is not ordered after a read of the same bytes.
    WriteAfterRead,
    /// A write that is not ordered after another write of the same bytes.
    WriteAfterWrite,
    /// An access that is not ordered after the stream-ordered allocation.
    UseBeforeAllocation,
    /// A free that is not ordered after a use; or not before the next allocation of a graph at the
    /// same address, which is such a use.
    FreeBeforeUse,
    /// An access submitted after the free.
    UseAfterFree,
    /// A second free.
    DoubleFree,
    /// A free of memory that was never allocated.
    UnknownFree,
    /// A read of bytes that were never written; or in which a kernel, the earlier operation, has
    /// stored a value that was read from such bytes.
    Uninitialised,
    /// An access outside of any allocation, or across the end of one.
    OutOfBounds,
    /// A kernel accessed memory that its launch did not declare.
    OutsideFootprint,
    /// Work of a launch wrote memory of a block that the launch did not declare as written.
    UndeclaredWrite,
    /// Work of a launch read memory of a block that the launch did not declare.
    UndeclaredRead,
    /// A kernel accessed another device's memory without peer access.
    NoPeerAccess,
    /// A kernel that runs as PTX has failed: its operation in the report says why, and where.
    KernelFault,
    /// A registered kernel body panicked.
    KernelPanicked,
    /// A pool allocated memory outside of its heaps, or memory of a live block.
    BadRegion,
    /// A mapping, or a right to it, was removed while the host had not found the work that uses it
    /// complete.
    UnmapBeforeUse,
    /// An access to mapped memory without the right to it.
    NoAccess,
    /// At the end a stream waited for a word that is never written.
    EndlessWait,
    /// An allocation that was not freed at the end; or physical memory that was not released, a
    /// mapping, or a reserved range of addresses.
    Leak,
}

/// The kind of this name: that of the variant in lower case, with `-` between its words.
impl std::str::FromStr for ReportKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let found = KINDS.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or(())
    }
}

/// The kinds by name.
pub(crate) const KINDS: [(&str, ReportKind); 21] = [
    ("read-after-write", ReportKind::ReadAfterWrite),
    ("write-after-read", ReportKind::WriteAfterRead),
    ("write-after-write", ReportKind::WriteAfterWrite),
    ("use-before-allocation", ReportKind::UseBeforeAllocation),
    ("free-before-use", ReportKind::FreeBeforeUse),
    ("use-after-free", ReportKind::UseAfterFree),
    ("double-free", ReportKind::DoubleFree),
    ("unknown-free", ReportKind::UnknownFree),
    ("uninitialised", ReportKind::Uninitialised),
    ("out-of-bounds", ReportKind::OutOfBounds),
    ("outside-footprint", ReportKind::OutsideFootprint),
    ("undeclared-write", ReportKind::UndeclaredWrite),
    ("undeclared-read", ReportKind::UndeclaredRead),
    ("no-peer-access", ReportKind::NoPeerAccess),
    ("kernel-fault", ReportKind::KernelFault),
    ("kernel-panicked", ReportKind::KernelPanicked),
    ("bad-region", ReportKind::BadRegion),
    ("unmap-before-use", ReportKind::UnmapBeforeUse),
    ("no-access", ReportKind::NoAccess),
    ("endless-wait", ReportKind::EndlessWait),
    ("leak", ReportKind::Leak),
];

impl ReportKind {
    fn sentence(self) -> &'static str {
        match self {
            Self::ReadAfterWrite => {
                "read-after-write race: the read is not ordered after the write"
            }
            Self::WriteAfterRead => {
                "write-after-read race: the write is not ordered after the read"
            }
            Self::WriteAfterWrite => {
                "write-after-write race: the second write is not ordered after the first"
            }
            Self::UseBeforeAllocation => {
                "use before allocation: the use is not ordered after the allocation"
            }
            Self::FreeBeforeUse => "free before use: the free is not ordered after the use",
            Self::UseAfterFree => "use after free",
            Self::DoubleFree => "double free",
            Self::UnknownFree => "free of memory that was never allocated",
            Self::Uninitialised => "read of memory that was never written",
            Self::OutOfBounds => "access out of bounds",
            Self::OutsideFootprint => "a kernel accessed memory that its launch did not declare",
            Self::UndeclaredWrite => "undeclared write: the launch did not declare this",
            Self::UndeclaredRead => "undeclared read: the launch did not declare this",
            Self::NoPeerAccess => "access to another device without peer access",
            Self::KernelFault => "a kernel has failed",
            Self::KernelPanicked => "a registered kernel body panicked",
            Self::BadRegion => "a pool allocated memory that is not its own, or in use",
            Self::UnmapBeforeUse => "unmap before use: the host has not waited for the use",
            Self::NoAccess => "access to mapped memory without the right to it",
            Self::EndlessWait => "a stream waits for a word that is never written",
            Self::Leak => "memory was never freed",
        }
    }

    /// Returns the name of the operation of a finding that has only one.
    fn only_side(self) -> &'static str {
        match self {
            Self::DoubleFree | Self::UnknownFree | Self::FreeBeforeUse => "free",
            Self::KernelFault | Self::KernelPanicked => "launch",
            Self::BadRegion | Self::Leak => "allocation",
            Self::UnmapBeforeUse => "unmap",
            Self::EndlessWait => "wait",
            _ => "access",
        }
    }

    /// Returns whether this is about the order of two operations.
    #[must_use]
    pub const fn is_race(self) -> bool {
        matches!(
            self,
            Self::ReadAfterWrite
                | Self::WriteAfterRead
                | Self::WriteAfterWrite
                | Self::UseBeforeAllocation
                | Self::FreeBeforeUse
                | Self::UnmapBeforeUse
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, address, bytes, .. } = self;
        f.write_str(match (kind, &self.first) {
            (ReportKind::Uninitialised, Some(_)) => {
                "read of a value that was stored, but never written"
            }
            _ => kind.sentence(),
        })?;
        if *address != 0 {
            write!(f, ": {bytes} bytes at {address:#x}")?;
            let number = self.undeclared.as_ref().map_or(0, |undeclared| undeclared.block);
            match (&self.tag, number) {
                (None, 0) => {}
                (tag, number) => write!(f, " ({})", declared::name(tag.as_deref(), number))?,
            }
            match self.device {
                Some(device) => write!(f, " of device {device}")?,
                None if crate::memory::address::is_virtual(*address) => {
                    f.write_str(" of reserved addresses")?
                }
                None => f.write_str(" of pinned host memory")?,
            }
        }
        if let Some(undeclared) = &self.undeclared {
            write!(f, "\n  {undeclared}")?;
        }
        match &self.first {
            Some(first) => write!(f, "\n  first:  {first}\n  second: {}", self.second),
            None => write!(f, "\n  {}: {}", kind.only_side(), self.second),
        }
    }
}

/// A node of a graph that was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GraphNode {
    /// Its number among the nodes of the graph, from 1, in the order in which they were made or
    /// captured.
    pub number: u32,
    /// The stream that captured it, numbered as in [`Site::stream`]; `None` if it was made by a
    /// call.
    pub captured_on: Option<u32>,
}

/// One side of a finding: an operation and where it was submitted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Site {
    /// The operation: "memset", "copy", "kernel saxpy", "allocate", "free".
    pub operation: Arc<str>,
    /// The stream it was submitted to (0 is the first that the universe created, legacy streams
    /// included); `None` for calls that name no stream.
    pub stream: Option<u32>,
    /// Its number on that stream, from 1; 0 for calls that name no stream.
    pub op: u64,
    /// The node, if the operation is a node of a graph; stream and number are those of the launch
    /// of the graph.
    pub node: Option<GraphNode>,
    /// The thread's [`label`](crate::label()) at submission.
    pub label: Option<Arc<str>>,
    /// The place in the kernel, of an access that a kernel body has named one for
    /// ([`KernelMemory::at`](crate::KernelMemory::at)). Only the later operation of a finding has
    /// one, and the store of a value that nothing has written.
    pub place: Option<KernelSite>,
    /// The file and line of the source of that place, if PTX has them.
    pub source: Option<Arc<str>>,
    pub(crate) stack: Option<Arc<CallStack>>,
}

impl Site {
    /// The source line that submitted it: known with
    /// [`capture_call_sites`](crate::UniverseBuilder::capture_call_sites).
    #[must_use]
    pub fn call_site(&self) -> Option<String> {
        self.call_stack().into_iter().next()
    }

    /// The source lines of the program on the way to the operation, the innermost first: all of
    /// them with [`capture_call_stacks`](crate::UniverseBuilder::capture_call_stacks), otherwise at
    /// most one.
    #[must_use]
    pub fn call_stack(&self) -> Vec<String> {
        self.stack.as_ref().map_or_else(Vec::new, |stack| stack.call_sites())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        match (self.stream, self.node) {
            (Some(stream), None) => write!(f, " (operation {} of stream {stream})", self.op)?,
            (Some(stream), Some(node)) => {
                let number = node.number;
                let op = self.op;
                write!(
                    f,
                    " (node {number} of the graph that is operation {op} of stream {stream}"
                )?;
                if let Some(captured) = node.captured_on {
                    write!(f, ", captured on stream {captured}")?;
                }
                f.write_str(")")?;
            }
            (None, _) => f.write_str(" (on no stream)")?,
        }
        if let Some(place) = &self.place {
            write!(f, ", {place}")?;
        }
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        if let Some(label) = &self.label {
            write!(f, ", {label}")?;
        }
        let mut places = self.call_stack().into_iter();
        if let Some(innermost) = places.next() {
            write!(f, ", at {innermost}")?;
        }
        for outer in places {
            write!(f, "\n    called at {outer}")?;
        }
        Ok(())
    }
}

/// The findings of a universe, at its end.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// The findings, in the order of submission; leaks last.
    pub reports: Vec<Report>,
    /// Findings that were counted but not kept, beyond the first
    /// [`MAX_REPORTS`](Self::MAX_REPORTS).
    pub dropped: u64,
    /// Launches that touched more separate ranges of bytes than are checked, 1,048,576: the
    /// accesses to the rest were not checked.
    pub cut_footprints: u64,
}

impl Verdict {
    /// The maximum number of findings that are kept.
    pub const MAX_REPORTS: usize = 1000;

    /// Returns whether there is no finding; [`cut_footprints`](Self::cut_footprints) is none.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.reports.is_empty() && self.dropped == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            f.write_str("nothing found")?;
        } else {
            let count = self.reports.len() as u64 + self.dropped;
            write!(f, "{count} finding{}", if count == 1 { "" } else { "s" })?;
        }
        if self.cut_footprints > 0 {
            write!(f, "; {} launches were checked in part: too scattered", self.cut_footprints)?;
        }
        for report in &self.reports {
            write!(f, "\n{report}")?;
        }
        Ok(())
    }
}
