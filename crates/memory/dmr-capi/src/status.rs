//! The status that a call returns, and the error behind it.

use std::ffi::CStr;
use std::fmt::Display;

use dmr::dmr_arrow::ColumnError;
use dmr::dmr_buffer::BufferError;
use dmr::dmr_core::ResourceError;
use dmr::dmr_core::error::{SizeProblem, StreamProblem};
use dmr::dmr_launch::{LaunchError, PrepareError};
use dmr::dmr_spill::SpillError;
use dmr::dmr_streams::DeviceError;
use dmr::{RuntimeError, ShutdownError};

/// The result of a call. The numbers are stable: a later version may add some, and changes none.
///
/// After any status but `DMR_STATUS_OK`, `dmr_last_error` returns the text of the error, which says
/// what to do; nothing has changed unless the function says otherwise.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// An argument is null, out of range, or a struct of an unknown size or version.
    InvalidArgument = 1,
    /// The device has not enough free memory, or the size can never be allocated.
    OutOfMemory = 2,
    /// The request exceeds what is left of a budget.
    OutOfBudget = 3,
    /// No live block of the runtime begins at the address: it was freed before, or is not the
    /// runtime's, or is inside of a block.
    UnknownAddress = 4,
    /// The block was freed by another thread during the call.
    UseAfterFree = 5,
    /// The stream cannot be used here: the per-thread default stream, a stream of another context,
    /// a handle whose stream was destroyed without `dmr_stream_retire`.
    StreamMisuse = 6,
    /// The stream captures a graph, which cannot contain the call.
    StreamCapturing = 7,
    /// The device is lost, after a sticky error: no call of this process can use it again.
    DeviceLost = 8,
    /// This process is a forked child of the one that made a runtime, and CUDA does not survive a
    /// fork.
    ForkedProcess = 9,
    /// There is no driver, or a driver that is too old, or no device of this ordinal.
    NoDevice = 10,
    /// The driver refused a call; the text has its name and the `CUresult`.
    Driver = 11,
    /// The runtime's backend cannot do this.
    Unsupported = 12,
    /// All of a fixed number of things are in use, such as streams.
    Capacity = 13,
    /// Another thread uses the block or the stream at this moment: try again.
    Busy = 14,
    /// The handle is null, or no runtime that exists.
    UnknownRuntime = 15,
    /// The library panicked, which is a fault of the library. The call may have had a part of its
    /// effect.
    Panic = 16,
    /// Another error, described by its text.
    Other = 17,
}

impl Status {
    /// Returns the name of the constant in C, without `DMR_STATUS_` and in lower case.
    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Self::Ok => c"ok",
            Self::InvalidArgument => c"invalid_argument",
            Self::OutOfMemory => c"out_of_memory",
            Self::OutOfBudget => c"out_of_budget",
            Self::UnknownAddress => c"unknown_address",
            Self::UseAfterFree => c"use_after_free",
            Self::StreamMisuse => c"stream_misuse",
            Self::StreamCapturing => c"stream_capturing",
            Self::DeviceLost => c"device_lost",
            Self::ForkedProcess => c"forked_process",
            Self::NoDevice => c"no_device",
            Self::Driver => c"driver",
            Self::Unsupported => c"unsupported",
            Self::Capacity => c"capacity",
            Self::Busy => c"busy",
            Self::UnknownRuntime => c"unknown_runtime",
            Self::Panic => c"panic",
            Self::Other => c"other",
        }
    }

    /// Returns the status of a number that a program has.
    pub(crate) fn of_number(number: i32) -> Option<Self> {
        const ALL: [Status; 18] = [
            Status::Ok,
            Status::InvalidArgument,
            Status::OutOfMemory,
            Status::OutOfBudget,
            Status::UnknownAddress,
            Status::UseAfterFree,
            Status::StreamMisuse,
            Status::StreamCapturing,
            Status::DeviceLost,
            Status::ForkedProcess,
            Status::NoDevice,
            Status::Driver,
            Status::Unsupported,
            Status::Capacity,
            Status::Busy,
            Status::UnknownRuntime,
            Status::Panic,
            Status::Other,
        ];
        ALL.into_iter().find(|status| *status as i32 == number)
    }

    fn of_resource_error(error: &ResourceError) -> Self {
        match error {
            ResourceError::OutOfBudget { .. } => Self::OutOfBudget,
            error if error.is_out_of_memory() => Self::OutOfMemory,
            ResourceError::InvalidSize { problem: SizeProblem::Zero, .. }
            | ResourceError::NotAdopted { .. } => Self::InvalidArgument,
            ResourceError::Driver { .. } => Self::Driver,
            ResourceError::StreamMisuse { problem, .. } => match problem {
                StreamProblem::NotTracked => Self::Unsupported,
                StreamProblem::InCall | StreamProblem::OpenWindow { .. } => Self::Busy,
                _ => Self::StreamMisuse,
            },
            ResourceError::Capacity { .. } => Self::Capacity,
            ResourceError::WindowConflict { .. } => Self::Busy,
            ResourceError::StreamCapturing { .. } => Self::StreamCapturing,
            ResourceError::UseAfterFree { .. } => Self::UseAfterFree,
            ResourceError::DeviceLost { .. } => Self::DeviceLost,
            ResourceError::ForkedProcess { .. } => Self::ForkedProcess,
            _ => Self::Other,
        }
    }

    fn of_buffer_error(error: &BufferError) -> Self {
        match error {
            BufferError::Resource(error) => Self::of_resource_error(error),
            BufferError::TooLong { .. } => Self::OutOfMemory,
            _ => Self::Other,
        }
    }

    fn of_device_error(error: &DeviceError) -> Self {
        match error {
            DeviceError::Driver { .. } => Self::Driver,
            _ => Self::NoDevice,
        }
    }
}

/// The error of a call: its status, and the text that `dmr_last_error` returns.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: String,
}

/// The result of the body of a call.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn null(argument: &str) -> Self {
        Self::new(Status::InvalidArgument, format!("`{argument}` is null: pass its address"))
    }

    /// Says which thing of the program the error is about.
    pub(crate) fn about(mut self, what: impl Display) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

impl From<ResourceError> for Failure {
    fn from(error: ResourceError) -> Self {
        Self::new(Status::of_resource_error(&error), error.to_string())
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::new(Status::of_device_error(&error), error.to_string())
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        let status = match &error {
            RuntimeError::Device(error) => Status::of_device_error(error),
            RuntimeError::Resource(error) => Status::of_resource_error(error),
            RuntimeError::Settings { .. }
            | RuntimeError::UnknownBackend { .. }
            | RuntimeError::Log { .. } => Status::InvalidArgument,
            _ => Status::Other,
        };
        Self::new(status, error.to_string())
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Self {
        let status = match &error {
            PrepareError::Untracked { .. } | PrepareError::ReadOnly { .. } => Status::Unsupported,
            PrepareError::Resource { source, .. } => Status::of_resource_error(source),
            _ => Status::Other,
        };
        Self::new(status, error.to_string())
    }
}

impl From<BufferError> for Failure {
    fn from(error: BufferError) -> Self {
        Self::new(Status::of_buffer_error(&error), error.to_string())
    }
}

impl From<ColumnError> for Failure {
    fn from(error: ColumnError) -> Self {
        match error {
            ColumnError::Resource(error) => error.into(),
            ColumnError::Buffer(error) => error.into(),
            ColumnError::Launch(error) => match *error {
                LaunchError::Prepare(error) => error.into(),
                LaunchError::Enqueue { error, .. } => error.into(),
                error => Self::new(Status::Other, error.to_string()),
            },
            error => Self::new(Status::InvalidArgument, error.to_string()),
        }
    }
}

impl From<SpillError> for Failure {
    fn from(error: SpillError) -> Self {
        let status = match &error {
            SpillError::Buffer(error) => Status::of_buffer_error(error),
            SpillError::NoRoom { source, .. } => Status::of_resource_error(source),
            SpillError::Untracked => Status::Unsupported,
            _ => Status::Other,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ShutdownError> for Failure {
    fn from(error: ShutdownError) -> Self {
        let status = match &error {
            ShutdownError::Resource(error) => Status::of_resource_error(error),
            ShutdownError::InUse { .. } => Status::Busy,
            _ => Status::Other,
        };
        Self::new(status, error.to_string())
    }
}
