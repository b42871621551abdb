//! The errors of spilling and restoring.

use std::fmt;

use dmr_buffer::{BufferError, DeviceBuffer, Pod};
use dmr_core::ResourceError;
use dmr_core::size::human_bytes;

use crate::SpillStats;

/// The reason why a buffer was not inserted, spilled or restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpillError {
    /// An error of the buffer, its resource or the driver.
    #[error(transparent)]
    Buffer(#[from] BufferError),

    /// A restore finds no memory: nothing that could be spilled made enough room. The buffer is
    /// still on the host.
    #[non_exhaustive]
    #[error("{} cannot be restored: {source}; {}", human_bytes(*.bytes), Held(.stats))]
    NoRoom {
        /// Bytes of the buffer.
        bytes: u64,
        /// The error of the allocation.
        source: ResourceError,
        /// The state of the registry after the failed allocation.
        stats: Box<SpillStats>,
    },

    /// Too few bytes could be spilled. Buffers that were spilled stay on the host.
    #[non_exhaustive]
    #[error(
        "{} of {} could be spilled; {}{}", human_bytes(*.spilled), human_bytes(*.requested),
        Held(.stats), Problem(.problem)
    )]
    NotEnough {
        /// Requested bytes.
        requested: u64,
        /// Bytes that were spilled.
        spilled: u64,
        /// The state of the registry afterwards.
        stats: Box<SpillStats>,
        /// The first error of a buffer that could not be spilled.
        problem: Option<Box<BufferError>>,
    },

    /// The buffer cannot be used: a guard of it was leaked, or this thread is moving it.
    #[error(
        "the buffer has a guard that was leaked, or is being moved by this very thread: drop each guard, and do \
         not use a spillable buffer inside its own allocation"
    )]
    Unavailable,

    /// The buffer's resource does not track uses: copies on another stream cannot be ordered.
    #[error(
        "the buffer's resource does not track uses, so a copy on another stream cannot be ordered: use a \
         backend that tracks uses, or wrap the resource in `Tracked`"
    )]
    Untracked,

    /// The buffer was made with another stream pool than the registry.
    #[error(
        "the buffer was made with another stream pool than this registry: insert it into a registry of its \
         own pool"
    )]
    OtherPool,
}

impl SpillError {
    pub(crate) fn resource(error: ResourceError) -> Self {
        Self::Buffer(BufferError::Resource(error))
    }
}

/// The error of [`Spill::insert`](crate::Spill::insert), with the buffer.
#[non_exhaustive]
#[must_use = "the buffer is inside: dropping this error frees it"]
pub struct NotInserted<T: Pod> {
    /// The cause.
    pub error: SpillError,
    /// The buffer, unchanged.
    pub buffer: DeviceBuffer<T>,
}

impl<T: Pod> NotInserted<T> {
    pub(crate) fn new(error: SpillError, buffer: DeviceBuffer<T>) -> Box<Self> {
        Box::new(Self { error, buffer })
    }
}

impl<T: Pod> fmt::Debug for NotInserted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotInserted")
            .field("error", &self.error)
            .field("buffer", &self.buffer)
            .finish()
    }
}

impl<T: Pod> fmt::Display for NotInserted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T: Pod> std::error::Error for NotInserted<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Shows what could be spilled and what could not.
struct Held<'a>(&'a SpillStats);

impl fmt::Display for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpillStats { cold, in_use, on_host, .. } = self.0;
        write!(
            f,
            "{} in {} cold buffers can be spilled, {} in {} buffers are in use, {} are on the host: drop \
             guards that are not needed, or request less",
            human_bytes(cold.bytes),
            cold.buffers,
            human_bytes(in_use.bytes),
            in_use.buffers,
            human_bytes(on_host.bytes)
        )
    }
}

struct Problem<'a>(&'a Option<Box<BufferError>>);

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |problem| write!(f, "; a buffer was not spilled: {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Amount;

    #[test]
    fn each_message_says_what_to_do() {
        let in_use = Amount { bytes: 3 << 20, buffers: 2 };
        let stats = Box::new(SpillStats { in_use, ..SpillStats::default() });
        let problem = Some(Box::new(BufferError::InUse));
        for (error, advice) in [
            (SpillError::resource(ResourceError::forked_process(0)), "start the child as a new"),
            (
                SpillError::NoRoom {
                    bytes: 1,
                    source: ResourceError::zero_size(),
                    stats: stats.clone(),
                },
                "3 MiB in 2 buffers are in use, 0 B are on the host: drop guards",
            ),
            (
                SpillError::NotEnough { requested: 2, spilled: 1, stats, problem },
                "; a buffer was not spilled: a launch",
            ),
            (SpillError::Unavailable, ": drop each guard"),
            (SpillError::Untracked, ": use a backend that tracks uses"),
            (SpillError::OtherPool, ": insert it into a registry of its own pool"),
        ] {
            let message = error.to_string();
            assert!(message.contains(advice), "{message}");
        }
    }
}
