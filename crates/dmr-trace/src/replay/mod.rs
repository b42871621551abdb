//! Makes the calls of a trace again, on any resource: timed, checked, bounded.

mod blocks;
mod engine;
mod grow;
mod latency;
mod streams;
mod verify;

use dmr_core::{DeviceMemoryResource, DeviceOps, ResourceError};

pub use self::streams::ReplayStreams;
use crate::{Summary, TraceError, TraceReader};

/// A replay of a trace on a resource.
///
/// One host thread makes the calls in file order. Rows are parsed and paired ahead, a chunk at a
/// time; each call is timed alone, so neither parsing nor checking counts. Blocks go back on
/// their home stream, whatever stream the trace's free names. Whatever happens, every block is
/// given back before [`run`](Self::run) returns.
#[derive(Debug)]
pub struct Replay<'a> {
    resource: &'a dyn DeviceMemoryResource,
    verify: Option<&'a dyn DeviceOps>,
    options: ReplayOptions,
}

impl<'a> Replay<'a> {
    /// A replay on `resource`, which nobody else uses meanwhile.
    #[must_use]
    pub fn new(resource: &'a dyn DeviceMemoryResource) -> Self {
        Self { resource, verify: None, options: ReplayOptions::new() }
    }

    /// Sets what is not the default.
    #[must_use]
    pub fn options(mut self, options: ReplayOptions) -> Self {
        self.options = options;
        self
    }

    /// Fills each block with its own pattern, on its stream, and checks it there before it is
    /// freed: two live blocks that share a byte are found, and so is a write to a freed one.
    #[must_use]
    pub fn verify(mut self, ops: &'a dyn DeviceOps) -> Self {
        self.verify = Some(ops);
        self
    }

    /// Replays the whole trace. `streams` gives the streams, `observer` is told of every row.
    ///
    /// What goes wrong in single calls is counted in the summary.
    ///
    /// # Errors
    ///
    /// What ends a replay early: the trace cannot be read any further, there are no streams, too
    /// many blocks are live at once, the verdicts of the checks cannot be fetched. Every block
    /// that was allocated has been given back.
    pub fn run(
        &self,
        trace: TraceReader,
        streams: &mut dyn ReplayStreams,
        observer: &mut dyn ReplayObserver,
    ) -> Result<Summary, ReplayError> {
        engine::Engine::new(self, streams, observer).run(trace)
    }
}

/// What a replay allows and how it judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// Whether bad rows, frees without an allocation and left over blocks fail the replay.
    pub strict: bool,
    /// How many blocks can be live at once: bounds the memory that a replay takes.
    pub max_live_blocks: usize,
}

impl ReplayOptions {
    /// Not strict, 2²¹ live blocks.
    #[must_use]
    pub const fn new() -> Self {
        Self { strict: false, max_live_blocks: 1 << 21 }
    }

    /// Sets [`strict`](Self::strict).
    #[must_use]
    pub const fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Sets [`max_live_blocks`](Self::max_live_blocks).
    #[must_use]
    pub const fn max_live_blocks(mut self, blocks: usize) -> Self {
        self.max_live_blocks = blocks;
        self
    }
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Is told how a replay goes on. `()` does not listen.
pub trait ReplayObserver {
    /// The calls for the row of `line` come next, until the next `row`. `None`: what comes next
    /// serves no single row.
    fn row(&mut self, line: Option<u64>) {
        let _ = line;
    }

    /// A chunk of rows is done.
    fn progress(&mut self, progress: Progress) {
        let _ = progress;
    }
}

impl ReplayObserver for () {}

/// How far a replay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows read.
    pub rows: u64,
    /// Bytes of the file read.
    pub bytes_read: u64,
    /// Bytes of the file, if it is one.
    pub bytes_total: Option<u64>,
}

/// What ends a replay early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot be read any further.
    #[error(transparent)]
    Trace(#[from] TraceError),

    /// A stream could not be had.
    #[non_exhaustive]
    #[error("{trace}: line {line}: no stream for the replay: {source}")]
    Stream {
        /// The trace.
        trace: String,
        /// The row that needs it.
        line: u64,
        /// Why.
        source: ResourceError,
    },

    /// The trace has more live blocks than the replay may hold.
    #[non_exhaustive]
    #[error("{trace}: line {line}: more than {limit} blocks live at once: raise the limit")]
    TooManyLiveBlocks {
        /// The trace.
        trace: String,
        /// The row that would be one too many.
        line: u64,
        /// [`ReplayOptions::max_live_blocks`].
        limit: usize,
    },

    /// The verdicts of the checks could not be fetched.
    #[non_exhaustive]
    #[error("{trace}: line {line}: the checks up to here have no verdict: {source}")]
    Verify {
        /// The trace.
        trace: String,
        /// The row after which they were asked for.
        line: u64,
        /// Why.
        source: ResourceError,
    },
}
