//! Multi-stream programs as data: the work that one host thread submits to one device.

use std::fmt;

/// A buffer's index; each index is allocated at most once in a program.
pub(crate) type Buf = usize;
pub(crate) type Stream = usize;
pub(crate) type Event = usize;

/// The bytes `offset..offset + len` of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) buf: Buf,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    NonBlocking,
    /// Created with default flags: it orders with the legacy NULL stream.
    Blocking,
    /// The legacy NULL stream itself.
    Legacy,
}

/// The functions that allocate or free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// `cuMemAlloc`, `cuMemFree`.
    Sync,
    /// `cuMemAllocAsync`, `cuMemFreeAsync`.
    Async(Stream),
    /// `cuMemAllocFromPoolAsync` from a pool of the program's own; `cuMemFreeAsync`.
    Pool(Stream),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Pageable,
    /// A slot of page-locked memory of this step's own.
    Pinned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Alloc {
        buf: Buf,
        bytes: u64,
        how: How,
    },
    /// Frees the address `skew` bytes into the buffer (0 in a correct program).
    Free {
        buf: Buf,
        skew: u64,
        how: How,
    },
    Fill {
        stream: Stream,
        dst: Span,
        byte: u8,
    },
    Copy {
        stream: Stream,
        dst: Span,
        src: Span,
    },
    Upload {
        stream: Stream,
        dst: Span,
        byte: u8,
        host: Host,
    },
    Download {
        stream: Stream,
        src: Span,
        host: Host,
    },
    /// `out[i] = blend(a[i], b[i])`.
    Blend {
        stream: Stream,
        a: Span,
        b: Span,
        out: Span,
    },
    /// `out[i] += src[i]`.
    Accumulate {
        stream: Stream,
        src: Span,
        out: Span,
    },
    Record {
        event: Event,
        stream: Stream,
    },
    Wait {
        event: Event,
        stream: Stream,
    },
    SyncStream(Stream),
    SyncEvent(Event),
    SyncContext,
    QueryStream(Stream),
    QueryEvent(Event),
}

impl Step {
    /// Returns the device memory that the step reads.
    pub(crate) fn reads(&self) -> Vec<Span> {
        match *self {
            Step::Copy { src, .. } | Step::Download { src, .. } => vec![src],
            Step::Blend { a, b, .. } => vec![a, b],
            Step::Accumulate { src, out, .. } => vec![src, out],
            _ => Vec::new(),
        }
    }

    /// Returns the device memory that the step writes.
    pub(crate) fn writes(&self) -> Vec<Span> {
        match *self {
            Step::Fill { dst, .. } | Step::Copy { dst, .. } | Step::Upload { dst, .. } => vec![dst],
            Step::Blend { out, .. } | Step::Accumulate { out, .. } => vec![out],
            _ => Vec::new(),
        }
    }

    /// Returns whether the step only orders others, and may be left out by mistake.
    pub(crate) fn is_ordering(&self) -> bool {
        matches!(
            self,
            Step::Record { .. }
                | Step::Wait { .. }
                | Step::SyncStream(_)
                | Step::SyncEvent(_)
                | Step::SyncContext
        )
    }
}

/// The results of a step that the host reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The address of an allocation.
    pub(crate) address: Option<u64>,
    /// `true` if a query returned "done".
    pub(crate) ready: bool,
    /// The bytes of a download.
    pub(crate) bytes: Option<Vec<u8>>,
    /// The driver's error.
    pub(crate) error: Option<i32>,
}

/// One device, one host thread, and the steps that it submits in this order.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) streams: Vec<StreamKind>,
    pub(crate) events: usize,
    pub(crate) buffers: usize,
    pub(crate) steps: Vec<Step>,
}

impl Program {
    /// Returns the program without step `index`.
    pub(crate) fn without(&self, index: usize) -> Program {
        let mut shorter = self.clone();
        shorter.steps.remove(index);
        shorter
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program of seed {:#x}", self.seed)?;
        for (stream, kind) in self.streams.iter().enumerate() {
            writeln!(f, "  stream {stream}: {kind:?}")?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {index:3} {step}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { buf, offset, len } = self;
        write!(f, "b{buf}[{offset}..{}]", offset + len)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Alloc { buf, bytes, how } => write!(f, "alloc {how:?} b{buf} {bytes} bytes"),
            Step::Free { buf, skew: 0, how } => write!(f, "free {how:?} b{buf}"),
            Step::Free { buf, skew, how } => write!(f, "free {how:?} b{buf}+{skew}"),
            Step::Fill { stream, dst, byte } => write!(f, "s{stream}: {dst} = {byte:#04x}"),
            Step::Copy { stream, dst, src } => write!(f, "s{stream}: {dst} = {src}"),
            Step::Upload { stream, dst, host, .. } => write!(f, "s{stream}: {dst} = {host:?}"),
            Step::Download { stream, src, host } => write!(f, "s{stream}: {host:?} = {src}"),
            Step::Blend { stream, a, b, out } => write!(f, "s{stream}: {out} = blend({a}, {b})"),
            Step::Accumulate { stream, src, out } => write!(f, "s{stream}: {out} += {src}"),
            Step::Record { event, stream } => write!(f, "s{stream}: record e{event}"),
            Step::Wait { event, stream } => write!(f, "s{stream}: wait e{event}"),
            Step::SyncStream(stream) => write!(f, "host: sync s{stream}"),
            Step::SyncEvent(event) => write!(f, "host: sync e{event}"),
            Step::SyncContext => write!(f, "host: sync context"),
            Step::QueryStream(stream) => write!(f, "host: query s{stream}"),
            Step::QueryEvent(event) => write!(f, "host: query e{event}"),
        }
    }
}
