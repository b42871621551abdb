//! Errors of launches: the step that failed, the memory, and what to do.

use std::convert::Infallible;
use std::fmt;

use dmr_core::{AllocTag, BlockId, Generation, ResourceError, StreamId};
use dmr_streams::StreamGuard;

/// The error of a launch that was refused. Nothing was enqueued, and no window is open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// A strict launch uses memory of another owner.
    #[non_exhaustive]
    #[error(
        "launch on {stream} refused: {memory} is external memory, its producer's order is \
         unknown: adopt it with its producer's stream or event (`AdoptedColumn::adopt`), copy it into a \
         device buffer, or order it yourself and use a permissive recorder"
    )]
    External {
        /// The launch stream.
        stream: StreamId,
        /// The first such memory.
        memory: RefusedMemory,
    },

    /// A launch, in either mode, declares a write of memory that its owner forbids to write.
    #[non_exhaustive]
    #[error(
        "launch on {stream} refused: {memory} is read-only memory of another owner: declare it with `read`, or copy \
         it into a device buffer"
    )]
    ReadOnly {
        /// The launch stream.
        stream: StreamId,
        /// The first such memory.
        memory: RefusedMemory,
    },

    /// A strict launch uses a block, and the context's resource does not track uses.
    #[non_exhaustive]
    #[error("launch on {stream} refused: {memory} cannot be tracked: {source}")]
    Untracked {
        /// The launch stream.
        stream: StreamId,
        /// The first such block.
        memory: RefusedMemory,
        /// [`StreamMisuse`](ResourceError::StreamMisuse), the error that the resource itself
        /// returns.
        source: ResourceError,
    },

    /// A strict launch uses a block whose home stream is of another pool.
    #[non_exhaustive]
    #[error(
        "launch on {stream} of device {stream_device} refused: {memory} is memory of device {block_device}{}: copy \
         it with `copy_from_peer`, declare it with `read_peer` or `write_peer`, or launch on a stream of its own pool",
        if .stream_device == .block_device { " in another stream pool" } else { "" }
    )]
    OtherPool {
        /// The launch stream.
        stream: StreamId,
        /// The device of the launch.
        stream_device: usize,
        /// The first such block.
        memory: RefusedMemory,
        /// The device that it is on.
        block_device: usize,
    },

    /// The resource, or the stream pool, refused.
    #[non_exhaustive]
    #[error("launch on {stream} refused: {source}{}", Columns(.columns))]
    Resource {
        /// The launch stream.
        stream: StreamId,
        /// The cause.
        source: ResourceError,
        /// The columns that the launch uses, with their blocks.
        columns: Box<[(AllocTag, Generation)]>,
    },
}

impl PrepareError {
    /// Makes an [`OtherPool`](Self::OtherPool), for a launch on `worker`.
    #[cold]
    pub(crate) fn other_pool(
        block: BlockId,
        memory: RefusedMemory,
        worker: &StreamGuard<'_>,
    ) -> Self {
        let stream = worker.id();
        let stream_device = worker.pool().device().ordinal();
        Self::OtherPool { stream, stream_device, memory, block_device: block.device_ordinal() }
    }
}

/// Memory that a launch was refused for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusedMemory {
    /// External memory, by its name.
    External {
        /// Its name.
        name: Box<str>,
        /// The column as which it was recorded, if it is one.
        column: Option<AllocTag>,
    },
    /// A block.
    Block {
        /// The generation of the block.
        generation: Generation,
        /// The column as which it was recorded, if it is one.
        column: Option<AllocTag>,
    },
}

/// The error of a scoped launch, with the step that failed. `E` is the closure's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError<E = Infallible> {
    /// Refused before the closure ran: nothing was enqueued.
    #[error(transparent)]
    Prepare(#[from] PrepareError),

    /// The closure failed. Its uses were recorded all the same: part of its work may be in flight.
    #[non_exhaustive]
    #[error(
        "enqueueing the launch failed: {error}; part of its work may be in flight, and its uses were \
         recorded: retry with a new recorder"
    )]
    Enqueue {
        /// The closure's error.
        #[source]
        error: E,
        /// The error of a view, as in [`View`](Self::View), or of recording the uses, if one failed
        /// too.
        finish: Option<ResourceError>,
    },

    /// The closure enqueued its work, and used a view on a stream where that could not be ordered.
    /// Later uses wait for the work all the same.
    #[error(
        "the launch was enqueued, but a view of it could not be ordered where it was used: {0}; the \
         results of that use may be missing: later uses wait for its work"
    )]
    View(#[source] ResourceError),

    /// The closure enqueued its work, and recording the uses failed. Later uses wait for the work
    /// all the same.
    #[error(
        "the launch was enqueued, but recording its uses failed: {0}; do not enqueue it again: later \
         uses wait for its work"
    )]
    Finish(#[source] ResourceError),
}

impl<E> LaunchError<E> {
    /// Converts the closure's error.
    pub fn map_enqueue<F>(self, convert: impl FnOnce(E) -> F) -> LaunchError<F> {
        match self {
            Self::Prepare(error) => LaunchError::Prepare(error),
            Self::Enqueue { error, finish } => {
                LaunchError::Enqueue { error: convert(error), finish }
            }
            Self::View(error) => LaunchError::View(error),
            Self::Finish(error) => LaunchError::Finish(error),
        }
    }
}

impl fmt::Display for RefusedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::External { name, column: Some(column) } => {
                write!(f, "column {:?} (buffer {name:?})", column.name())
            }
            Self::External { name, column: None } => write!(f, "buffer {name:?}"),
            Self::Block { generation, column: Some(column) } => {
                write!(f, "column {:?} (block {generation})", column.name())
            }
            Self::Block { generation, column: None } => write!(f, "block {generation}"),
        }
    }
}

struct Columns<'a>(&'a [(AllocTag, Generation)]);

impl fmt::Display for Columns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (column, generation)) in self.0.iter().enumerate() {
            let lead = if i == 0 { "; " } else { ", " };
            write!(f, "{lead}column {:?} is block {generation}", column.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_memory() -> RefusedMemory {
        RefusedMemory::External { name: "rows".into(), column: None }
    }

    #[test]
    fn each_message_of_a_refused_launch_says_what_to_do() {
        let stream = StreamId::DEFAULT;
        let memory = refused_memory;
        for (error, advice) in [
            (PrepareError::External { stream, memory: memory() }, ": adopt it with its producer"),
            (PrepareError::ReadOnly { stream, memory: memory() }, ": declare it with `read`"),
            (
                PrepareError::Untracked {
                    stream,
                    memory: memory(),
                    source: ResourceError::not_tracked(stream),
                },
                "; use the backend",
            ),
            (
                PrepareError::OtherPool {
                    stream,
                    stream_device: 0,
                    memory: memory(),
                    block_device: 1,
                },
                ": copy it with `copy_from_peer`, declare it with `read_peer`",
            ),
            (
                PrepareError::Resource {
                    stream,
                    source: ResourceError::stream_capturing(stream),
                    columns: Box::default(),
                },
                ": end the capture first",
            ),
        ] {
            let message = error.to_string();
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    fn each_message_of_a_failed_launch_says_whether_to_do_it_again() {
        let enqueue = LaunchError::Enqueue { error: "no kernel", finish: None };
        assert!(enqueue.to_string().ends_with(": retry with a new recorder"), "{enqueue}");
        let finish = LaunchError::<&str>::Finish(ResourceError::forked_process(0));
        assert!(finish.to_string().contains("; do not enqueue it again"), "{finish}");
    }
}
