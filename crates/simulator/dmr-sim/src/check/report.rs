//! Findings: the kind of error, and both operations.

use std::fmt;
use std::sync::Arc;

use crate::access::{AddressRange, Site};
use crate::check::{Undeclared, undeclared::name};

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
        Self {
            kind,
            first: None,
            second,
            device: None,
            address: 0,
            bytes: 0,
            tag: None,
            undeclared: None,
        }
    }

    /// Makes the finding of memory that was not freed, on no device.
    pub(crate) fn leak(memory: AddressRange, made_by: Site) -> Self {
        Self::new(ReportKind::Leak, made_by).about(None, memory)
    }

    /// Sets the memory that the finding is about.
    pub(crate) fn about(self, device: Option<usize>, memory: AddressRange) -> Self {
        Self { device, address: memory.start(), bytes: memory.len(), ..self }
    }

    /// Sets the earlier operation.
    pub(crate) fn after(self, first: Option<Site>) -> Self {
        Self { first, ..self }
    }

    /// Sets the name of the memory.
    pub(crate) fn tagged(self, tag: Option<Arc<str>>) -> Self {
        Self { tag, ..self }
    }

    /// Returns its sentence, without memory and operations.
    fn sentence(&self) -> &'static str {
        match (self.kind, &self.first) {
            (ReportKind::Uninitialised, Some(_)) => {
                "read of a value that was stored, but never written"
            }
            _ => self.kind.info().sentence,
        }
    }

    /// Returns its sentence, and what the launch should have declared, if that is the finding.
    pub(crate) fn message(&self) -> String {
        let sentence = self.sentence();
        self.undeclared
            .as_ref()
            .map_or_else(|| sentence.to_owned(), |undeclared| format!("{sentence}: {undeclared}"))
    }

    /// Sets the access that the launch has not declared.
    pub(crate) fn undeclared(self, found: Undeclared) -> Self {
        Self { undeclared: Some(Box::new(found)), ..self }
    }
}

/// The class of a finding: about the order of two operations, or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Race,
    Error,
}

/// The name and the sentence of the findings of a kind.
pub(crate) struct KindInfo {
    pub(crate) kind: ReportKind,
    /// The variant in lower case, with `-` between its words.
    pub(crate) name: &'static str,
    class: Class,
    sentence: &'static str,
}

/// Makes the kinds, and the table of them, in which a kind has the index of its variant.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $class:ident, $name:literal, $sentence:literal;)*) => {
        /// The kind of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ReportKind {
            $($(#[$doc])* $kind,)*
        }

        pub(crate) const KINDS: &[KindInfo] = &[$(KindInfo {
            kind: ReportKind::$kind,
            name: $name,
            class: Class::$class,
            sentence: $sentence,
        }),*];
    };
}

kinds! {
    /// A read that is not ordered after a write of the same bytes.
    ReadAfterWrite: Race, "read-after-write",
        "read-after-write race: the read is not ordered after the write";
    /// A write that is not ordered after a read of the same bytes.
    WriteAfterRead: Race, "write-after-read",
        "write-after-read race: the write is not ordered after the read";
    /// A write that is not ordered after another write of the same bytes.
    WriteAfterWrite: Race, "write-after-write",
        "write-after-write race: the second write is not ordered after the first";
    /// An access that is not ordered after the stream-ordered allocation.
    UseBeforeAllocation: Race, "use-before-allocation",
        "use before allocation: the use is not ordered after the allocation";
    /// A free that is not ordered after a use; or not before the next allocation of a graph at the
    /// same address, which is such a use.
    FreeBeforeUse: Race, "free-before-use",
        "free before use: the free is not ordered after the use";
    /// An access submitted after the free.
    UseAfterFree: Error, "use-after-free", "use after free";
    /// A second free.
    DoubleFree: Error, "double-free", "double free";
    /// A free of memory that was never allocated.
    UnknownFree: Error, "unknown-free", "free of memory that was never allocated";
    /// A read of bytes that were never written; or in which a kernel, the earlier operation, has
    /// stored a value that was read from such bytes.
    Uninitialised: Error, "uninitialised", "read of memory that was never written";
    /// An access outside of any allocation, or across the end of one.
    OutOfBounds: Error, "out-of-bounds", "access out of bounds";
    /// A kernel accessed memory that its launch did not declare.
    OutsideFootprint: Error, "outside-footprint",
        "a kernel accessed memory that its launch did not declare";
    /// Work of a launch wrote memory of a block that the launch did not declare as written.
    UndeclaredWrite: Error, "undeclared-write", "undeclared write: the launch did not declare this";
    /// Work of a launch read memory of a block that the launch did not declare.
    UndeclaredRead: Error, "undeclared-read", "undeclared read: the launch did not declare this";
    /// A kernel accessed another device's memory without peer access.
    NoPeerAccess: Error, "no-peer-access", "access to another device without peer access";
    /// A kernel that runs as PTX has failed: its operation in the report says why, and where.
    KernelFault: Error, "kernel-fault", "a kernel has failed";
    /// A registered kernel body panicked.
    KernelPanicked: Error, "kernel-panicked", "a registered kernel body panicked";
    /// A pool allocated memory outside of its heaps, or memory of a live block.
    BadRegion: Error, "bad-region", "a pool allocated memory that is not its own, or in use";
    /// A mapping, or a right to it, was removed while the host had not found the work that uses it
    /// complete.
    UnmapBeforeUse: Race, "unmap-before-use",
        "unmap before use: the host has not waited for the use";
    /// An access to mapped memory without the right to it.
    NoAccess: Error, "no-access", "access to mapped memory without the right to it";
    /// At the end a stream waited for a word that is never written.
    EndlessWait: Error, "endless-wait", "a stream waits for a word that is never written";
    /// An allocation that was not freed at the end; or physical memory that was not released, a
    /// mapping, or a reserved range of addresses.
    Leak: Error, "leak", "memory was never freed";
}

/// The kind of this name: that of the variant in lower case, with `-` between its words.
impl std::str::FromStr for ReportKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        KINDS.iter().find(|known| known.name == name).map(|known| known.kind).ok_or(())
    }
}

impl ReportKind {
    const fn info(self) -> &'static KindInfo {
        &KINDS[self as usize]
    }

    /// Returns its name: the variant in lower case, with `-` between its words.
    pub(crate) const fn name(self) -> &'static str {
        self.info().name
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
        matches!(self.info().class, Class::Race)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, address, bytes, .. } = self;
        f.write_str(self.sentence())?;
        if *address != 0 {
            write!(f, ": {bytes} bytes at {address:#x}")?;
            let number = self.undeclared.as_ref().map_or(0, |undeclared| undeclared.block);
            match (&self.tag, number) {
                (None, 0) => {}
                (tag, number) => write!(f, " ({})", name(tag.as_deref(), number))?,
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
