//! Reasons why a size or a stream is refused.

/// The reason why a size is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeProblem {
    /// Zero bytes.
    #[error("request at least one byte")]
    Zero,
    /// It overflows when rounded up to the alignment.
    #[error("the size overflows when rounded up to the alignment; request less")]
    Overflow,
    /// More bytes than the device has.
    #[error("the device has {device_bytes} bytes in all; request less")]
    #[non_exhaustive]
    BeyondDevice {
        /// All bytes of the device.
        device_bytes: u64,
    },
    /// Not a multiple of the granularity of mappings.
    #[error("addresses and pages are multiples of {granularity} bytes; round the size up")]
    #[non_exhaustive]
    NotGranular {
        /// The granularity, in bytes.
        granularity: u64,
    },
    /// The resource allocates nothing.
    #[error(
        "this resource only adopts memory of other owners; copy it into a buffer of the runtime, which can grow"
    )]
    AdoptsOnly,
}

/// The reason why memory of another owner cannot be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressProblem {
    /// The end of the memory is beyond the address space.
    #[error("the address and the size exceed the address space; pass the size in bytes")]
    Overflow,
    /// The driver does not know the memory.
    #[error(
        "byte {offset} of it is no memory that the CUDA driver has allocated or registered; pass a device address, \
         and copy host memory with `from_host`"
    )]
    #[non_exhaustive]
    Unknown {
        /// The offset from the address, in bytes.
        offset: usize,
    },
    /// The address is not aligned to the elements.
    #[error("its elements are aligned to {alignment} bytes; adopt it as bytes")]
    #[non_exhaustive]
    Misaligned {
        /// The alignment of the elements, in bytes.
        alignment: usize,
    },
    /// It is memory of another device.
    #[error(
        "it is memory of device {memory_device}; adopt it with a runtime of that device, and copy it with \
         `copy_from_peer`"
    )]
    #[non_exhaustive]
    OtherDevice {
        /// The device of the memory.
        memory_device: i32,
    },
}

impl AddressProblem {
    /// Makes an [`Unknown`](Self::Unknown).
    #[must_use]
    pub const fn unknown(offset: usize) -> Self {
        Self::Unknown { offset }
    }

    /// Makes a [`Misaligned`](Self::Misaligned).
    #[must_use]
    pub const fn misaligned(alignment: usize) -> Self {
        Self::Misaligned { alignment }
    }

    /// Makes an [`OtherDevice`](Self::OtherDevice).
    #[must_use]
    pub const fn other_device(memory_device: i32) -> Self {
        Self::OtherDevice { memory_device }
    }
}

/// The reason why a stream is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamProblem {
    /// Another pool issued the id.
    #[error("another stream pool issued it; use a stream of the pool that this resource works on")]
    OtherPool,
    /// A pool of another device issued the id.
    #[error(
        "it is a stream of device {stream_device}, and this is memory of device {device}; use a stream of \
         device {device}, or copy between the devices with `copy_from_peer`"
    )]
    #[non_exhaustive]
    OtherDevice {
        /// The device of the stream.
        stream_device: usize,
        /// The device of the resource or stream pool that refuses it.
        device: usize,
    },
    /// Its lease was returned.
    #[error("its lease was returned; acquire a stream and keep the lease while its id is in use")]
    ReturnedLease,
    /// It belongs to another device or context.
    #[error(
        "it belongs to another device or CUDA context; use a stream of the context of this pool"
    )]
    OtherContext,
    /// The per-thread default handle, which names a different stream on each thread.
    #[error("the per-thread default stream is a different stream on each thread; create a stream")]
    PerThreadDefault,
    /// The legacy null stream, which is used only by name.
    #[error("it is CUDA's legacy null stream; adopt it by name with `adopt_legacy`")]
    LegacyDefault,
    /// It is one of the pool's own streams, and cannot be adopted.
    #[error("it is the pool's own stream; use the id of its lease")]
    OwnedByPool,
    /// The pool has already adopted it.
    #[error("the pool has already adopted it; use the id of that lease")]
    AlreadyAdopted,
    /// It is one of the pool's own streams, and cannot be retired.
    #[error("it is the pool's own stream, which the pool keeps; only adopted streams are retired")]
    NotAdopted,
    /// A launch that uses it is prepared, and neither finished nor cancelled.
    #[error(
        "a launch that uses block {block} is prepared on it; finish or cancel that launch before the \
         stream is retired, or wait for it with `retire_stream_timeout`"
    )]
    #[non_exhaustive]
    OpenWindow {
        /// The number of the generation of a block on which a window is open.
        block: u64,
    },
    /// A call of a thread is using it.
    #[error(
        "a call of a thread is using it; retire the stream when the call has returned, or wait for it \
         with `retire_stream_timeout`"
    )]
    InCall,
    /// Memory of a launch was used on it, and no event was recorded behind the use.
    #[error(
        "a view of a launch was used on it, and no event was recorded behind the use; drop cudarc's \
         `SyncOnDrop` when the work is submitted, inside of the launch"
    )]
    Unordered,
    /// The resource does not track uses.
    #[error(
        "this resource does not track block uses, so work on another stream would be unordered; \
         use the backend async, pool or direct-tracked, or wrap the resource in `Tracked`"
    )]
    NotTracked,
}

impl StreamProblem {
    /// Makes an [`OpenWindow`](Self::OpenWindow), of a block whose generation has this number.
    #[must_use]
    pub const fn open_window(block: u64) -> Self {
        Self::OpenWindow { block }
    }

    /// Makes an [`OtherDevice`](Self::OtherDevice), or an [`OtherPool`](Self::OtherPool) if both
    /// are one device or that of the stream is not known.
    #[must_use]
    pub fn other_pool(stream_device: Option<usize>, device: usize) -> Self {
        match stream_device {
            Some(stream_device) if stream_device != device => {
                Self::OtherDevice { stream_device, device }
            }
            _ => Self::OtherPool,
        }
    }

    /// Returns whether the stream cannot be retired now, but can when launches and calls that use
    /// it have ended.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Self::OpenWindow { .. } | Self::InCall)
    }
}
