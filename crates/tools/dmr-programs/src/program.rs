//! A program as plain data: a stack, some streams, and the lines that threads execute in order.

use dmr_core::Access;
use dmr_sim::Policy;

use crate::stack::Stack;

/// A program. Its lines are executed in the order of the list, each by its thread; a thread that is
/// held in a driver call does not delay the lines of other threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The stack that allocates the memory.
    pub stack: Stack,
    /// The policy by which the simulated device executes work.
    pub policy: Policy,
    /// The seed of the simulated device's choices, of patterns and of the pool's configuration.
    pub seed: u64,
    /// The number of streams: `s0`, `s1`, ...
    pub streams: usize,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One step of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The thread that executes the step.
    pub thread: usize,
    /// The step.
    pub step: Step,
    /// The driver call of the step in which the thread is held.
    pub hold: Option<Hold>,
    /// The driver call of the step that fails.
    pub fail: Option<Fail>,
}

/// One of the driver calls that a step makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name of the driver's function.
    pub name: &'static str,
    /// The number of the call among those of that function in the step, from 1.
    pub nth: u32,
}

/// Holds a thread at the start of a driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The call at which the thread stops, if the step makes it.
    pub call: Call,
    /// The number of lines that are executed before the thread continues.
    pub lines: usize,
}

/// Makes one driver call of a step fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fail {
    /// The call that fails, if the step makes it.
    pub call: Call,
    /// The `CUresult`.
    pub code: i32,
}

/// An operation of a thread. Blocks, windows and streams are named by numbers. A step that names
/// a block or a window that does not exist does nothing, so any lines of a program make a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each field is a number or size of the thing that it is named after"
)]
pub enum Step {
    /// Allocates a block.
    Allocate { block: u32, bytes: usize, stream: usize },
    /// Prepares uses, submits the work, finishes the uses.
    Launch { stream: usize, uses: Vec<Used> },
    /// Prepares uses, submits the work, and leaves the window open.
    Open { window: u32, stream: usize, uses: Vec<Used> },
    /// Prepares uses, submits nothing, and leaves the window open.
    OpenIdle { window: u32, stream: usize, uses: Vec<Used> },
    /// Submits work in an open window and finishes its uses.
    Close { window: u32 },
    /// Cancels the uses of a window in which nothing was submitted.
    Cancel { window: u32 },
    /// Submits work to the home stream without declaring it.
    Home { block: u32, access: Access },
    /// Declares earlier work on the home stream.
    Record { block: u32 },
    /// Copies one block to another on a stream.
    Copy { from: u32, to: u32, stream: usize },
    /// Makes a block larger in place.
    Grow { block: u32, bytes: usize },
    /// Replaces a block by a part of it; freeing the part frees the whole.
    Narrow { block: u32, start: usize, end: usize },
    /// Frees a block.
    Free { block: u32 },
    /// Frees the part that a block was narrowed to, which is refused, and then the whole.
    FreePart { block: u32 },
    /// `try_reap`.
    Reap,
    /// `reap_pending`.
    ReapPending,
    /// `trim_to`.
    Trim { keep: u64 },
    /// Waits for a stream.
    Synchronize { stream: usize },
    /// Keeps a stream busy.
    Delay { stream: usize },
    /// Drops the lease of a stream and takes another.
    Replace { stream: usize },
    /// Puts an adopted stream in the place of a stream.
    Adopt { stream: usize },
    /// Retires an adopted stream that no window and no call uses, and takes a stream of the pool.
    Retire { stream: usize },
    /// Retires an adopted stream even while a window or a call uses it.
    RetireAtOnce { stream: usize },
    /// Retires an adopted stream, and waits some time for the calls that use it.
    RetireWithin { stream: usize },
    /// Begins to capture a graph on a stream that is not the pool's.
    Capture { mode: CaptureMode },
    /// Ends that capture.
    EndCapture,
    /// Begins to capture a graph on a stream of the program.
    CaptureStream { stream: usize, mode: CaptureMode },
    /// Ends the capture of a stream of the program.
    EndCaptureStream { stream: usize },
    /// Allocates pinned host memory, and a device buffer of the same size: its counterpart.
    Pin { pinned: u32, bytes: usize, stream: usize },
    /// Fills the counterpart on a stream.
    FillCounterpart { pinned: u32, stream: usize },
    /// Copies the counterpart to the pinned memory on a stream.
    CopyToHost { pinned: u32, stream: usize },
    /// Copies the pinned memory to its counterpart on a stream.
    CopyToDevice { pinned: u32, stream: usize },
    /// Reads the pinned memory on the host.
    HostReads { pinned: u32 },
    /// Writes the pinned memory on the host.
    HostWrites { pinned: u32 },
    /// Drops the pinned memory and its counterpart.
    Unpin { pinned: u32 },
    /// `try_reap` of pinned memory.
    ReapPinned,
    /// Forks; the child makes calls that must be refused, and ends.
    Fork,
}

/// A use of a block, or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The block.
    pub block: u32,
    /// The kind of access.
    pub access: Access,
    /// The bytes that are used; `None`: the whole block.
    pub part: Option<Part>,
}

/// Bytes of a block. Those behind its end do not exist, and are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first byte.
    pub start: usize,
    /// The byte behind the last one.
    pub end: usize,
}

impl Used {
    /// Makes a use of a whole block.
    #[must_use]
    pub const fn whole(block: u32, access: Access) -> Self {
        Self { block, access, part: None }
    }
}

/// The mode of a capture: which calls it forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Calls that could synchronise are refused to all threads.
    Global,
    /// They are refused to the thread that captures.
    ThreadLocal,
    /// Nothing is refused.
    Relaxed,
}

impl Line {
    /// A step that is neither held nor made to fail.
    #[must_use]
    pub fn new(thread: usize, step: Step) -> Self {
        Self { thread, step, hold: None, fail: None }
    }
}

impl Program {
    /// Returns the number of threads that the lines name.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.lines.iter().map(|line| line.thread + 1).max().unwrap_or(1)
    }

    /// Returns whether a step can be executed only on the simulated driver: holds, faults, forks.
    #[must_use]
    pub fn needs_the_simulator(&self) -> bool {
        self.lines.iter().any(|line| {
            line.hold.is_some() || line.fail.is_some() || matches!(line.step, Step::Fork)
        })
    }
}
