//! Records: events, each with its time, thread and device.

/// A text of the recording. [`Reader::text`](crate::Reader::text) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StringId(pub u32);

impl StringId {
    /// The empty text.
    pub const EMPTY: Self = Self(0);
}

/// A stream of the process: its stream pool and its slot there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamNumber(pub u32);

impl StreamNumber {
    const SLOT_BITS: u32 = 12;

    /// Makes the number of a slot, of which 12 bits are kept, and of a pool's number.
    #[must_use]
    pub const fn new(pool: u32, slot: u32) -> Self {
        Self((pool << Self::SLOT_BITS) | (slot & ((1 << Self::SLOT_BITS) - 1)))
    }

    /// Returns the number of the stream pool; 0 for none.
    #[must_use]
    pub const fn pool(self) -> u32 {
        self.0 >> Self::SLOT_BITS
    }

    /// Returns the slot in its pool: the small number that messages call "stream N".
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0 & ((1 << Self::SLOT_BITS) - 1)
    }
}

/// An event, and where and when it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the start of the section. Records of several threads may be out of order.
    pub time_ns: u64,
    /// The thread: a small number, unique in the process; 0 where none is known.
    pub thread: u32,
    /// CUDA device ordinal.
    pub device: u16,
    /// The query that the thread worked for; 0 for none.
    pub query: u64,
    /// The label that the thread was in.
    pub label: LabelId,
    /// The event.
    pub event: Event,
}

impl Record {
    /// Makes a record of time 0, without a thread, query and label.
    #[must_use]
    pub const fn new(event: Event) -> Self {
        let label = LabelId { name: StringId::EMPTY, site: StringId::EMPTY };
        Self { time_ns: 0, thread: 0, device: 0, query: 0, label, event }
    }
}

/// A label: a part of the program that has a name, or a place in its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelId {
    /// Its name; empty for none.
    pub name: StringId,
    /// Where it was begun: `src/decode.rs:88:13`; empty if that is not known.
    pub site: StringId,
}

/// A block of memory that a program holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Address of its first byte; 0 where it is not known.
    pub address: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// The number of the allocation, unique in the process.
    pub generation: u64,
    /// Its home stream.
    pub stream: StreamNumber,
    /// Its tag.
    pub tag: StringId,
}

/// A thing that happened to the memory of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A section begins: the part of a file that one process wrote. Always the first of a file.
    Start(Start),
    /// A section ends, which was written to its end.
    Summary(Summary),
    /// A block was allocated.
    Allocate(Block),
    /// A block was freed, and its memory may be allocated again at once.
    Free(Block),
    /// A block was freed, and device work may still use its memory: see [`Ready`](Self::Ready).
    Retire(Block),
    /// Memory that was retired may be allocated again.
    Ready {
        /// Address of its first byte.
        address: u64,
        /// Its bytes, rounded up as its resource cuts memory.
        bytes: u64,
        /// The stream that may have it.
        stream: StreamNumber,
    },
    /// A block was made larger in place. Its bytes are the new ones.
    Grow(Block),
    /// The memory that a pool has changed.
    Span {
        /// The change.
        change: SpanChange,
        /// Address of its first byte.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// The stream whose memory it became, or was.
        stream: StreamNumber,
    },
    /// A stream was made to wait for another one. `block` is the generation of the block because
    /// of which it was; 0 if there is none, such as for memory that changes streams.
    Wait {
        /// The stream that waits.
        stream: StreamNumber,
        /// The stream that it waits for.
        awaited: StreamNumber,
        /// The generation of the block.
        block: u64,
        /// The number of the launch on the waiting stream; 0 where it is not known.
        launch: u64,
        /// The number of the awaited work on its stream.
        work: u64,
    },
    /// A [wait](Self::Wait) was measured on the device: it is over, and this is for how long it has
    /// held up its stream. One in N waits is measured, where the program asks for it.
    WaitLength {
        /// The stream that waited.
        stream: StreamNumber,
        /// The stream that it waited for.
        awaited: StreamNumber,
        /// The generation of the block that made it wait; 0 if there is none.
        block: u64,
        /// The number of the launch on the waiting stream; 0 where it is not known.
        launch: u64,
        /// The number of the awaited work on its stream: with both streams it names the wait.
        work: u64,
        /// Nanoseconds on the device from the end of the work before the wait to the end of the
        /// wait. About zero if the awaited work was done by then.
        length_ns: u64,
        /// Nanoseconds from the moment at which the wait was queued to this record.
        age_ns: u64,
    },
    /// The thread has waited for the device until now.
    HostWait {
        /// The stream that it waited for; 0 if it waited for the whole device.
        stream: StreamNumber,
        /// Nanoseconds for which it has waited: it began as long before the time of the record.
        length_ns: u64,
    },
    /// Describes a live block that other records name by its generation.
    Describe(Block),
    /// A buffer was moved between the device and host memory.
    Spill {
        /// The direction.
        direction: SpillDirection,
        /// The block on the device.
        block: Block,
    },
    /// An allocation was refused.
    Refused(Refusal),
    /// A graph was launched.
    GraphLaunch {
        /// The stream.
        stream: StreamNumber,
        /// The number of the graph, unique in the process.
        graph: u64,
        /// Its tag.
        tag: StringId,
    },
    /// The charges of a budget reached a new high mark. Not each byte of a rise is recorded.
    BudgetPeak {
        /// The name of the budget.
        budget: StringId,
        /// Bytes charged.
        bytes: u64,
        /// Its limit.
        limit: u64,
    },
    /// A stream was made, retired or named.
    Stream {
        /// The change.
        change: StreamChange,
        /// The stream.
        stream: StreamNumber,
        /// Its name; empty unless it was named.
        name: StringId,
    },
    /// The thread entered the label of the record.
    LabelBegin,
    /// The thread left a label: that of the record is the one around it.
    #[default]
    LabelEnd,
    /// A device was lost.
    DeviceLost {
        /// The error that showed it.
        message: StringId,
    },
    /// The heap is described by the [regions](Self::Region) that follow, up to
    /// [`SnapshotEnd`](Self::SnapshotEnd).
    SnapshotBegin {
        /// Why it was taken: `start`, `request`, `out of memory`.
        why: StringId,
        /// Bytes that the resource has reserved from the driver.
        reserved: u64,
    },
    /// A part of the heap.
    Region(Region),
    /// The heap has been described. A snapshot without an end is not complete.
    SnapshotEnd,
}

/// The start of a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Wall-clock nanoseconds since 1970, UTC, of time 0.
    pub epoch_ns: u64,
    /// The pid of the process.
    pub process: u32,
    /// The clock of the times.
    pub clock: StringId,
    /// The largest error of the clock's rate, in parts per billion.
    pub clock_error_ppb: u64,
    /// The most nanoseconds by which a time may be earlier than its event: measured, or, where a
    /// section begins before its events, expected.
    pub clock_step_ns: u64,
    /// The program.
    pub program: StringId,
}

/// The end of a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of events before it in the section, without texts.
    pub events: u64,
    /// The number of events that are missing: overwritten by later ones, or never written.
    pub lost: u64,
}

/// A change of a span of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanChange {
    /// Bytes were reserved from upstream. They have no address yet: it is 0.
    Reserve,
    /// Bytes were returned to upstream. They have no address any more: it is 0.
    Release,
    /// Reserved memory is at this address now.
    Map,
    /// There is no memory at this address any more; it stays reserved.
    Unmap,
    /// Its pages were moved here from this address.
    Move {
        /// The address that they had.
        from: u64,
    },
}

/// The direction of a spill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpillDirection {
    /// To host memory.
    Out,
    /// Back to the device.
    In,
}

/// A change of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamChange {
    /// It was made.
    Created,
    /// It is not used any more.
    Retired,
    /// It got a name.
    Named,
}

/// An allocation that was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Requested bytes.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: StreamNumber,
    /// The tag of the request.
    pub tag: StringId,
    /// The limit that refused it: `device memory`, or the name of a setting or a budget.
    pub limit: StringId,
    /// Its bytes.
    pub limit_bytes: u64,
    /// The bytes that count against it.
    pub used: u64,
    /// Free bytes of the pool, in all its chunks.
    pub free: u64,
    /// Bytes of the pool's largest free chunk.
    pub largest_free: u64,
}

/// A part of the heap in a snapshot: a chunk that a pool cuts its memory into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Address of its first byte.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its state.
    pub state: RegionState,
    /// The stream whose memory it is.
    pub stream: StreamNumber,
    /// The tag of its block if it is in use, else of the last block.
    pub tag: StringId,
}

/// The state of a part of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegionState {
    /// A block.
    #[default]
    InUse,
    /// Free.
    Free,
    /// Freed, and perhaps still used by device work.
    Pending,
}
