//! One table of events, whatever file they come from: columns of numbers, and names by index.

use std::fmt;

use crate::findings::Finding;
use crate::names::Names;

/// An index that stands for no row.
pub const NONE: u32 = u32::MAX;

/// The events of a file, in the order of their times.
#[derive(Debug, Default)]
pub struct Model {
    /// The name of the file, and its format.
    pub source: Source,
    /// Tags, labels, call sites and texts.
    pub names: Names,
    /// The streams. A block, a wait or a refusal names one by its index here.
    pub streams: Vec<Stream>,
    /// The blocks, in the order of their allocations.
    pub blocks: Blocks,
    /// The events.
    pub events: Events,
    /// Ranges that were reserved from the driver, each with its bytes.
    pub spans: Vec<Span>,
    /// The parts of them that go back to the driver as a whole.
    pub units: Units,
    /// The waits of streams for each other.
    pub waits: Vec<Wait>,
    /// The waits whose length was measured on the device, in the order in which that was recorded.
    pub wait_lengths: Vec<WaitLength>,
    /// The waits of threads for the device, in the order of their ends.
    pub host_waits: Vec<HostWait>,
    /// Allocations that failed.
    pub refusals: Vec<Refusal>,
    /// Other events: labels, launches, moved pages.
    pub marks: Vec<Mark>,
    /// New high marks of budgets, in the order of their events.
    pub budget_peaks: Vec<BudgetPeak>,
    /// Findings of the simulated driver.
    pub findings: Vec<Finding>,
    /// Flaws of the file: what was counted and left out.
    pub flaws: Flaws,
}

/// The file that a model was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The path, as it was given.
    pub name: String,
    /// The format.
    pub format: Format,
    /// `false` where the file has ids instead of addresses.
    pub has_addresses: bool,
    /// The device ordinal, if the file names one device only.
    pub device: Option<u32>,
}

/// The formats that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The log's CSV, or RMM's log.
    #[default]
    Log,
    /// A recording of the flight recorder.
    Recording,
    /// A snapshot of PyTorch's allocator, a pickle.
    PyTorch,
    /// The findings of the simulated driver.
    Findings,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Log => "log",
            Self::Recording => "recording",
            Self::PyTorch => "PyTorch snapshot",
            Self::Findings => "findings of the simulated driver",
        })
    }
}

/// A stream of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The number that the file has for it.
    pub id: u64,
    /// Its name; empty if it has none.
    pub name: String,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name.as_str(), self.id) {
            ("", id) if id > 0xFFFF => write!(f, "stream {id:#x}"),
            ("", id) => write!(f, "stream {id}"),
            (name, _) => f.write_str(name),
        }
    }
}

/// The columns of the blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    /// The first byte, or the id that stands for it.
    pub address: Vec<u64>,
    /// The size.
    pub bytes: Vec<u64>,
    /// The tag, a name.
    pub tag: Vec<u32>,
    /// The stream of the allocation.
    pub stream: Vec<u32>,
    /// The query, a number of the program; 0 for none.
    pub query: Vec<u64>,
    /// The label that the thread was in, a name.
    pub label: Vec<u32>,
    /// The call site or the call stack, a name.
    pub site: Vec<u32>,
    /// The event of the allocation; [`NONE`] if it came before the first event.
    pub allocated: Vec<u32>,
    /// The event of the free; [`NONE`] if there is none.
    pub freed: Vec<u32>,
    /// The event from which the memory can be used again: that of the free, unless the block was
    /// freed while it was still used.
    pub ready: Vec<u32>,
}

impl Blocks {
    /// Returns the number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.address.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.address.is_empty()
    }

    /// Returns the first byte after a block.
    #[must_use]
    pub fn end(&self, block: usize) -> u64 {
        self.address[block].saturating_add(self.bytes[block])
    }
}

/// The kind of an event, and the table that its subject is a row of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A block was allocated.
    Allocate = 0,
    /// A block was freed, and its memory can be used again.
    Free = 1,
    /// A block was freed while it was still used.
    Retire = 2,
    /// The memory of a retired block can be used again.
    Ready = 3,
    /// A span was reserved.
    Reserve = 4,
    /// A span was given back to the driver.
    Release = 5,
    /// A stream was made to wait.
    Wait = 6,
    /// An allocation failed.
    Refuse = 7,
    /// Another event.
    Mark = 8,
}

/// The columns of the events.
#[derive(Debug, Default)]
pub struct Events {
    /// Nanoseconds, as the file counts them; they never decrease.
    pub time: Vec<u64>,
    /// The kind.
    pub kind: Vec<EventKind>,
    /// The row of the table that the kind names.
    pub subject: Vec<u32>,
}

impl Events {
    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.time.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.time.is_empty()
    }

    /// Returns the time of an event since the first one, in nanoseconds; 0 for [`NONE`].
    #[must_use]
    pub fn since_start(&self, event: u32) -> u64 {
        let time = self.time.get(event as usize).copied().unwrap_or_default();
        time.saturating_sub(self.time.first().copied().unwrap_or_default())
    }
}

/// A range that was reserved from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The stream that it belongs to; [`NONE`] if it belongs to none.
    pub stream: u32,
    /// The event at which it was reserved; [`NONE`] if it was before the first event.
    pub reserved: u32,
    /// The event at which it was given back; [`NONE`] if it was not.
    pub released: u32,
}

/// The parts of reserved memory that go back to the driver as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// The file does not say.
    #[default]
    Unknown,
    /// Pages of one size.
    Pages {
        /// The bytes of a page.
        size: u64,
        /// The bytes that the sizes of blocks are multiples of.
        grain: u64,
    },
    /// Segments: each span is one.
    Spans {
        /// The bytes that the sizes of blocks are multiples of.
        grain: u64,
    },
}

impl Units {
    /// Returns the bytes that the sizes of blocks are multiples of, at least 1.
    #[must_use]
    pub fn grain(self) -> u64 {
        match self {
            Self::Unknown => 1,
            Self::Pages { grain, .. } | Self::Spans { grain } => grain.max(1),
        }
    }
}

/// A wait of a stream for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The stream that waits.
    pub waiting: u32,
    /// The stream that it waits for.
    pub awaited: u32,
    /// The block because of which it waits; [`NONE`] if the file does not name it.
    pub block: u32,
    /// The reason, a name: the launch or the call that made it wait.
    pub reason: u32,
}

/// The measured length of a wait of a stream for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLength {
    /// The stream that was held up.
    pub waiting: u32,
    /// The stream that it waited for.
    pub awaited: u32,
    /// The block that made it wait; [`NONE`] if the file does not name it.
    pub block: u32,
    /// The time at which the wait was queued, in nanoseconds as the file counts them.
    pub begin: u64,
    /// The nanoseconds for which it held up the stream.
    pub length: u64,
}

/// A wait of a thread for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWait {
    /// The thread, a number of the file.
    pub thread: u32,
    /// The stream that it waited for; [`NONE`] for the whole device.
    pub stream: u32,
    /// The time at which it began, in nanoseconds as the file counts them.
    pub begin: u64,
    /// The nanoseconds for which the thread waited.
    pub length: u64,
}

/// An allocation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The requested bytes.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: u32,
    /// The tag of the request, a name.
    pub tag: u32,
    /// The limit or the call that refused, in words.
    pub refused_by: String,
    /// The number of bytes that the limit allows; 0 if it is not known.
    pub limit: u64,
    /// The free bytes of the device at that time, if the file has them.
    pub device_free: Option<u64>,
}

/// An event that is neither of a block nor of a stream's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The text, a name.
    pub text: u32,
    /// The stream, or [`NONE`].
    pub stream: u32,
}

/// A new high mark of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetPeak {
    /// The event.
    pub event: u32,
    /// The budget, a name.
    pub budget: u32,
    /// The bytes that were charged to it.
    pub bytes: u64,
    /// The bytes that it allows.
    pub limit: u64,
}

/// Counts of what a file has and a model has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flaws {
    /// Rows that cannot be read, and the first of them.
    pub bad_rows: u64,
    /// The first bad row.
    pub first_bad_row: String,
    /// Frees of blocks that are not live, of unknown size.
    pub unknown_frees: u64,
    /// Blocks whose address was allocated again before their free.
    pub lost_frees: u64,
    /// Events that were overwritten before they were written to the file.
    pub lost_events: u64,
    /// Why the file ends early, if it does.
    pub broken_off: String,
}
