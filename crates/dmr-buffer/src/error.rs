//! Why an operation on a buffer failed.

use dmr_core::ResourceError;

/// Why an operation on a buffer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The resource, the stream pool or the driver refused.
    #[error(transparent)]
    Resource(#[from] ResourceError),

    /// No host or device has that many bytes.
    #[non_exhaustive]
    #[error(
        "{len} elements of {element_bytes} bytes are more bytes than there are addresses: ask for fewer"
    )]
    TooLong {
        /// Elements asked for.
        len: usize,
        /// Bytes of one.
        element_bytes: usize,
    },

    /// What is copied is not as long as where it goes.
    #[non_exhaustive]
    #[error("{source_len} elements cannot be copied to {target_len}: slice the longer one")]
    LengthMismatch {
        /// Elements of the source.
        source_len: usize,
        /// Elements of the target.
        target_len: usize,
    },

    /// A pinned buffer, which has no slices, is not as long as what it is copied to or from.
    #[non_exhaustive]
    #[error(
        "a pinned buffer of {pinned_len} elements is copied as a whole, not with {device_len} \
         elements of the device: {}", advice(*pinned_len, *device_len)
    )]
    PinnedLengthMismatch {
        /// Elements of the pinned buffer.
        pinned_len: usize,
        /// Elements on the device.
        device_len: usize,
    },

    /// The host asks for a pinned buffer that a launch has been prepared with.
    #[error(
        "a launch that uses this pinned buffer was prepared and is not finished: commit or cancel \
         it before the host gets access"
    )]
    InUse,

    /// A range is not inside its buffer.
    #[non_exhaustive]
    #[error("elements {start}..{end} are not inside a buffer of {len}: use a range inside of it")]
    OutOfRange {
        /// First element.
        start: usize,
        /// One past the last.
        end: usize,
        /// Elements of the buffer.
        len: usize,
    },
}

fn advice(pinned_len: usize, device_len: usize) -> String {
    if pinned_len < device_len {
        format!("slice the device buffer to {pinned_len}")
    } else {
        format!("copy through a pinned buffer of {device_len}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice of a message. A new variant does not compile without.
    fn advice_of(error: &BufferError) -> &'static str {
        match error {
            BufferError::Resource(_) => "start the child as a new process",
            BufferError::TooLong { .. } => ": ask for fewer",
            BufferError::LengthMismatch { .. } => ": slice the longer one",
            BufferError::PinnedLengthMismatch { .. } => ": slice the device buffer to 2",
            BufferError::InUse => ": commit or cancel it",
            BufferError::OutOfRange { .. } => ": use a range inside of it",
        }
    }

    #[test]
    fn each_message_says_what_to_do() {
        for error in [
            ResourceError::forked_process(0).into(),
            BufferError::TooLong { len: 2, element_bytes: 4 },
            BufferError::LengthMismatch { source_len: 2, target_len: 3 },
            BufferError::PinnedLengthMismatch { pinned_len: 2, device_len: 3 },
            BufferError::InUse,
            BufferError::OutOfRange { start: 2, end: 5, len: 4 },
        ] {
            let message = error.to_string();
            assert!(message.contains(advice_of(&error)), "{message}");
        }
    }
}
