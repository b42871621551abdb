//! The device operations that guards and verifiers need, without CUDA types.

use std::fmt::Debug;
use std::ops::Range;

use crate::{DeviceBlock, ResourceResult, StreamId};

/// Fills and checks device memory with patterns, ordered on streams.
///
/// A pattern is a 32-bit word: byte `i` of a block is byte `i % 4` of the word, little-endian. A
/// check runs on the device, and only its result is copied to the host.
pub trait DeviceOps: Debug + Send + Sync {
    /// Submits a fill of `range` (bytes from the block's start) to `stream`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`](crate::ResourceError::OutOfBounds), stream and driver errors; the fill was
    /// not submitted, or only a part of it was.
    fn fill_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
    ) -> ResourceResult<()>;

    /// Submits a check of `range` (bytes from the block's start) to `stream`. A later
    /// [`collect`](Self::collect) returns a mismatch, with `key`.
    ///
    /// # Errors
    ///
    /// As [`fill_pattern`](Self::fill_pattern).
    fn check_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
        key: u64,
    ) -> ResourceResult<()>;

    /// Waits for all checks submitted so far and returns the mismatches since the last call, in
    /// the order of submission.
    ///
    /// # Errors
    ///
    /// Driver errors; [`StreamCapturing`](crate::ResourceError::StreamCapturing) while a stream
    /// with a check in progress captures a graph. The results are kept for the next call.
    fn collect(&self) -> ResourceResult<Vec<PatternMismatch>>;

    /// Makes a library stream wait for the work submitted to a block's home stream so far, and
    /// returns it: for a layer's own work on the block. A user cannot capture that stream, so the
    /// work never becomes part of a graph, even if the home stream begins to capture. Without
    /// library streams this is the home stream itself.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](crate::ResourceError::StreamMisuse) for a stream of another pool;
    /// [`StreamCapturing`](crate::ResourceError::StreamCapturing) while the home stream captures a
    /// graph; driver errors.
    fn library_stream(&self, block: &DeviceBlock) -> ResourceResult<StreamId> {
        Ok(block.alloc_stream())
    }

    /// Makes a block's home stream wait for the work submitted to its library stream so far.
    /// Returns `false` if the home stream is retired, and so cannot wait.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](crate::ResourceError::StreamMisuse) for a stream of another pool;
    /// [`StreamCapturing`](crate::ResourceError::StreamCapturing) while the home stream captures a
    /// graph; driver errors, including if it began to capture during this call, which has ended the
    /// capture.
    fn join_home_stream(&self, _block: &DeviceBlock) -> ResourceResult<bool> {
        Ok(true)
    }

    /// Makes the work submitted to a block's home stream so far a part of its allocation: the first
    /// use on another stream is ordered after it. For a layer that fills fresh memory before it
    /// returns the block. Returns `false` if these operations have no access to the block's uses;
    /// the caller must then record the work as a use.
    fn count_as_allocation(&self, _block: &DeviceBlock) -> bool {
        false
    }

    /// Waits until all work submitted to `stream` is done.
    ///
    /// # Errors
    ///
    /// Stream and driver errors.
    fn synchronize(&self, stream: StreamId) -> ResourceResult<()>;
}

/// A byte that differs from the pattern of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternMismatch {
    /// The key given to [`check_pattern`](DeviceOps::check_pattern).
    pub key: u64,
    /// The first wrong byte, from the block's start.
    pub offset: usize,
}
