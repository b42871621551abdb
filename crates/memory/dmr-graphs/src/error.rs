//! The error of a capture: at which step it ended.

use dmr_core::ResourceError;

/// The error of a capture. The capture has ended, no graph was made, and the stream can be used
/// again. `E` is the error of the closure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError<E> {
    /// The capture was refused before it began: the closure did not run.
    #[error("the capture did not begin: {0}")]
    Begin(#[source] ResourceError),

    /// The closure failed.
    #[error("the captured work failed: {0}; the capture has ended without a graph")]
    Work(#[source] E),

    /// The closure returned, and the driver ended the capture with an error: a call was made that a
    /// capture forbids, or the closure ended it itself.
    #[error(
        "the capture was invalid when it ended: {0}; a call that a capture forbids was made \
         meanwhile, by this thread or, in global mode, by another one"
    )]
    End(#[source] ResourceError),

    /// The driver could not make an executable graph of what was captured.
    #[error("the captured graph could not be instantiated: {0}")]
    Instantiate(#[source] ResourceError),
}

impl<E> CaptureError<E> {
    /// Converts the closure's error.
    pub fn map_work<F>(self, convert: impl FnOnce(E) -> F) -> CaptureError<F> {
        match self {
            Self::Begin(error) => CaptureError::Begin(error),
            Self::Work(error) => CaptureError::Work(convert(error)),
            Self::End(error) => CaptureError::End(error),
            Self::Instantiate(error) => CaptureError::Instantiate(error),
        }
    }
}
