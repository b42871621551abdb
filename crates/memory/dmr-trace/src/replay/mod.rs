//! Makes the calls of a trace again, on any resource: timed, checked, bounded.

mod blocks;
mod engine;
mod grow;
mod latency;
mod streams;
mod tags;
mod verify;

use dmr_core::{DeviceMemoryResource, DeviceOps, ResourceError};

pub use self::streams::ReplayStreams;
use crate::{Summary, TraceError, TraceReader};

/// A replay of a trace on a resource.
///
/// One host thread makes the calls in the order of [`TraceReader`]. Rows are parsed and paired
/// ahead, a chunk at a time; each call is timed alone, so neither parsing nor checking counts.
/// Blocks are freed on their home stream, whatever stream the trace's free names. Every block is
/// freed before [`run`](Self::run) returns, also after an error.
#[derive(Debug)]
pub struct Replay<'a> {
    resource: &'a dyn DeviceMemoryResource,
    verify: Option<Verify<'a>>,
    options: ReplayOptions,
}

/// The check of the blocks, and whether it is one of samples.
#[derive(Clone, Copy, Debug)]
struct Verify<'a> {
    ops: &'a dyn DeviceOps,
    is_sample: bool,
}

impl<'a> Replay<'a> {
    /// Makes a replay on `resource`, which must not be used by other code meanwhile.
    #[must_use]
    pub fn new(resource: &'a dyn DeviceMemoryResource) -> Self {
        Self { resource, verify: None, options: ReplayOptions::new() }
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: ReplayOptions) -> Self {
        self.options = options;
        self
    }

    /// Fills each block with its own pattern, on its stream, and checks it there before it is
    /// freed: two live blocks that share a byte are found, and so is a write to a freed one.
    #[must_use]
    pub fn verify(mut self, ops: &'a dyn DeviceOps) -> Self {
        self.verify = Some(Verify { ops, is_sample: false });
        self
    }

    /// Fills each block as [`verify`](Self::verify) does, and checks samples of it: all of a block
    /// of at most 64 KiB; of a larger one 1 KiB of each 2 MiB, and the last 1 KiB. Misses an
    /// overwritten byte between two samples.
    #[must_use]
    pub fn verify_samples(mut self, ops: &'a dyn DeviceOps) -> Self {
        self.verify = Some(Verify { ops, is_sample: true });
        self
    }

    /// Replays the whole trace, on streams from `streams`; calls `observer` for every row.
    ///
    /// Failures of single calls are counted in the summary.
    ///
    /// # Errors
    ///
    /// The trace cannot be read any further, a stream cannot be opened, too many blocks are live at
    /// once, the results of the checks cannot be fetched. Every block has been freed.
    pub fn run(
        &self,
        trace: TraceReader,
        streams: &mut dyn ReplayStreams,
        observer: &mut dyn ReplayObserver,
    ) -> Result<Summary, ReplayError> {
        engine::Engine::new(self, streams, observer).run(trace)
    }
}

/// The limits of a replay, and what fails it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// `true` if bad rows, frees without an allocation and left over blocks fail the replay.
    pub strict: bool,
    /// The most blocks that can be live at once: bounds the memory that a replay takes.
    pub max_live_blocks: usize,
}

impl ReplayOptions {
    /// Returns options that are not strict and allow 2²¹ live blocks.
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

/// Observes a replay. `()` ignores all calls.
pub trait ReplayObserver {
    /// Called before the calls of a row. With `None`, the calls that follow are of no single row.
    fn row(&mut self, line: Option<u64>) {
        let _ = line;
    }

    /// Called after each chunk of rows.
    fn progress(&mut self, progress: Progress) {
        let _ = progress;
    }
}

impl ReplayObserver for () {}

/// The progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows read.
    pub rows: u64,
    /// Bytes of the file read.
    pub bytes_read: u64,
    /// Bytes of the file, if it is one.
    pub bytes_total: Option<u64>,
}

/// The error that ends a replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot be read any further.
    #[error(transparent)]
    Trace(#[from] TraceError),

    /// A stream could not be opened.
    #[non_exhaustive]
    #[error("{trace}: line {line}: no stream for the replay: {source}")]
    Stream {
        /// The trace.
        trace: String,
        /// The row that needs it.
        line: u64,
        /// The error.
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

    /// The results of the checks could not be fetched.
    #[non_exhaustive]
    #[error("{trace}: line {line}: the checks up to here have no result: {source}")]
    Verify {
        /// The trace.
        trace: String,
        /// The row after which they were fetched.
        line: u64,
        /// The error.
        source: ResourceError,
    },
}
