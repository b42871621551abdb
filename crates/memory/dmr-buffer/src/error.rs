//! The error of operations on buffers.

use dmr_core::ResourceError;

/// The reason why an operation on a buffer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// An error of the resource, the stream pool or the driver.
    #[error(transparent)]
    Resource(#[from] ResourceError),

    /// The size in bytes does not fit in a `usize`.
    #[non_exhaustive]
    #[error("{len} elements of {element_bytes} bytes exceed the address space: request fewer")]
    TooLong {
        /// The requested number of elements.
        len: usize,
        /// Bytes of one element.
        element_bytes: usize,
    },

    /// The source and the target of a copy have different lengths.
    #[non_exhaustive]
    #[error("{source_len} elements cannot be copied to {target_len}: slice the longer one")]
    LengthMismatch {
        /// Elements of the source.
        source_len: usize,
        /// Elements of the target.
        target_len: usize,
    },

    /// Pinned memory has another length than the device memory that it is copied with.
    #[non_exhaustive]
    #[error(
        "{pinned_len} pinned elements cannot be copied to or from {device_len} elements of the device: \
         slice the {} to {}",
        if *.pinned_len < *.device_len { "device buffer" } else { "pinned buffer" },
        pinned_len.min(device_len)
    )]
    PinnedLengthMismatch {
        /// Elements in pinned memory.
        pinned_len: usize,
        /// Elements of the device memory.
        device_len: usize,
    },

    /// The host may not access a pinned buffer while a launch that uses it is prepared.
    #[error(
        "a launch that uses this pinned buffer was prepared and is not finished: finish or cancel \
         it before the host accesses the buffer"
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

    /// Memory of another owner may only be read.
    #[error(
        "the owner of this column lets it only be read: copy it into a device buffer to write it"
    )]
    ReadOnly,

    /// The order of a column's uses is unknown.
    #[error(
        "the order of the uses of this external column is unknown: adopt it with its producer's stream or event \
         (`AdoptedColumn::adopt`)"
    )]
    NotAdopted,

    /// Bytes cannot be seen as elements of another type.
    #[non_exhaustive]
    #[error(
        "{bytes} bytes of {from} at {ptr:#x} cannot be seen as {to}, of {element_bytes} bytes aligned to {alignment}: {}",
        cast_advice(*.ptr, *.element_bytes, *.alignment)
    )]
    Cast {
        /// The type of the elements.
        from: &'static str,
        /// The requested type.
        to: &'static str,
        /// Bytes of the view.
        bytes: usize,
        /// The address of the view.
        ptr: u64,
        /// Bytes of an element of the requested type.
        element_bytes: usize,
        /// The alignment of the requested type, in bytes.
        alignment: usize,
    },

    /// A buffer cannot be divided into chunks of no elements.
    #[error("a buffer has no chunks of 0 elements: use a chunk size of 1 or more")]
    EmptyChunks,
}

/// Returns the advice for a cast, by the one of its conditions that is not met.
fn cast_advice(ptr: u64, element_bytes: usize, alignment: usize) -> String {
    if element_bytes == 0 {
        "cast to a type that has bytes".to_owned()
    } else if !ptr.is_multiple_of(alignment as u64) {
        format!("slice it from an address that is a multiple of {alignment}")
    } else {
        format!("slice it to a multiple of {element_bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice of a message. A new variant does not compile without.
    fn advice_of(error: &BufferError) -> &'static str {
        match error {
            BufferError::Resource(_) => "start the child as a new process",
            BufferError::TooLong { .. } => ": request fewer",
            BufferError::LengthMismatch { .. } => ": slice the longer one",
            BufferError::PinnedLengthMismatch { .. } => ": slice the device buffer to 2",
            BufferError::InUse => ": finish or cancel it",
            BufferError::OutOfRange { .. } => ": use a range inside of it",
            BufferError::ReadOnly => ": copy it into a device buffer",
            BufferError::NotAdopted => ": adopt it with its producer",
            BufferError::EmptyChunks => ": use a chunk size of 1 or more",
            BufferError::Cast { .. } => ": slice it to a multiple of 4 bytes",
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
            BufferError::ReadOnly,
            BufferError::NotAdopted,
            BufferError::OutOfRange { start: 2, end: 5, len: 4 },
            BufferError::Cast {
                from: "u8",
                to: "f32",
                bytes: 7,
                ptr: 0x100,
                element_bytes: 4,
                alignment: 4,
            },
            BufferError::EmptyChunks,
        ] {
            let message = error.to_string();
            assert!(message.contains(advice_of(&error)), "{message}");
        }
    }
}
