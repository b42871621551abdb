//! [`Error`]: one type that every error of this library converts to.

use std::convert::Infallible;

#[cfg(feature = "cudarc")]
use cudarc::driver::{DriverError, sys};
use dmr_buffer::BufferError;
#[cfg(feature = "cudarc")]
use dmr_buffer::GiveAwayError;
#[cfg(any(feature = "cudarc", feature = "spill"))]
use dmr_buffer::Pod;
use dmr_core::virtual_memory::{DestroyError, ReleaseError};
use dmr_core::{DeallocateError, ResourceError};
use dmr_external::AdoptError;
use dmr_graphs::CaptureError;
use dmr_launch::{LaunchError, PrepareError};
#[cfg(feature = "cudarc")]
use dmr_slices::AdoptSliceError;
use dmr_streams::DeviceError;

use crate::{RuntimeError, ShutdownError};

/// A result with [`Error`], unless another error is named, and without a value, unless one is.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Any error of this library, and those of cudarc's driver calls: what `?` converts each of them
/// to.
///
/// Message and [`source`](std::error::Error::source) are those of the error inside.
/// [`is_out_of_memory`](Self::is_out_of_memory) says whether less memory would have worked.
///
/// ```no_run
/// use dmr::prelude::*;
///
/// fn doubled(gpu: &DeviceRuntime, host: &[f32]) -> dmr::Result<Vec<f32>> {
///     let stream = gpu.streams().acquire()?; // a `ResourceError`
///     let x = DeviceBuffer::from_host(gpu, &stream, host)?; // a `BufferError`
///     Ok(x.to_host(&stream)?)
/// }
///
/// # let gpu = DeviceRuntime::try_get(0).unwrap();
/// match doubled(gpu, &[1.0; 1000]) {
///     Err(error) if error.is_out_of_memory() => { /* again, in smaller parts */ }
///     other => drop(other),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of a resource or of a stream pool.
    #[error(transparent)]
    Resource(Box<ResourceError>),

    /// A block that was not deallocated. It is inside: dropping the error leaks its memory.
    #[error(transparent)]
    Deallocate(Box<DeallocateError>),

    /// Addresses that were not released. They are inside.
    #[error(transparent)]
    Release(Box<ReleaseError>),

    /// Physical memory that was not destroyed. It is inside.
    #[error(transparent)]
    Destroy(Box<DestroyError>),

    /// An error of a buffer.
    #[error(transparent)]
    Buffer(Box<BufferError>),

    /// An error of a launch, whose closure's error was converted as well.
    #[error(transparent)]
    Launch(Box<LaunchError<Error>>),

    /// An error of a capture, whose closure's error was converted as well.
    #[error(transparent)]
    Capture(Box<CaptureError<Error>>),

    /// An error of spilling. A buffer that was not inserted into a registry was dropped.
    #[cfg(feature = "spill")]
    #[error(transparent)]
    Spill(Box<dmr_spill::SpillError>),

    /// A column of Arrow that was not imported, made or exported. Structs of another library that
    /// were not imported were released.
    #[cfg(feature = "arrow")]
    #[error(transparent)]
    Column(Box<dmr_arrow::ColumnError>),

    /// A tensor that was not imported. It is its caller's.
    #[cfg(feature = "dlpack")]
    #[error(transparent)]
    Import(Box<dmr_dlpack::ImportError>),

    /// A tensor that was not exported.
    #[cfg(feature = "dlpack")]
    #[error(transparent)]
    Export(Box<dmr_dlpack::ExportError>),

    /// A slice of cudarc, or memory of another owner, that was not adopted, or a buffer that was
    /// not given to cudarc. It was dropped.
    #[error(transparent)]
    NotHandedOver(Box<NotHandedOver>),

    /// An error of opening a device.
    #[error(transparent)]
    Device(Box<DeviceError>),

    /// An error of building a runtime or a tenant.
    #[error(transparent)]
    Runtime(Box<RuntimeError>),

    /// A flight recorder that cannot be started.
    #[error(transparent)]
    Recorder(Box<dmr_recorder::StartError>),

    /// An error of a shutdown.
    #[error(transparent)]
    Shutdown(Box<ShutdownError>),

    /// A device that lacks virtual memory as configured.
    #[cfg(feature = "pool")]
    #[error(transparent)]
    VirtualMemory(Box<dmr_cuda_virtual::VirtualMemoryError>),

    /// A limit that processes share, and that cannot be used or has no room.
    #[cfg(feature = "shared")]
    #[error(transparent)]
    SharedLimit(Box<dmr_shared_limit::ChargeError>),

    /// An error of a log's sink.
    #[cfg(feature = "logging")]
    #[error(transparent)]
    Sink(Box<dmr_adaptors::logging::SinkError>),

    /// An error of a driver call of cudarc, as launches and copies in a closure return it.
    #[cfg(feature = "cudarc")]
    #[error(transparent)]
    Driver(DriverError),

    /// An error of the program: see [`Error::other`].
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// The error of a slice of cudarc, or of memory of another owner, that was not adopted, or of a
/// buffer that was not given to cudarc, without them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct NotHandedOver {
    message: String,
    /// The reason.
    #[source]
    pub error: ResourceError,
}

impl Error {
    /// Makes an error of one of the program's own, for a closure that returns this type.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Returns whether the call could succeed with less memory: if less of it were requested, or
    /// more were free. Of the device, of the host, of a budget, of pinned memory or of a limit.
    /// [`Other`](Self::Other) is not known to be.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Launch(error) => match &**error {
                LaunchError::Enqueue { error, .. } => error.is_out_of_memory(),
                _ => self.is_refusal_of_memory(),
            },
            Self::Capture(error) => match &**error {
                CaptureError::Work(error) => error.is_out_of_memory(),
                _ => self.is_refusal_of_memory(),
            },
            Self::Buffer(error) => {
                matches!(**error, BufferError::TooLong { .. }) || self.is_refusal_of_memory()
            }
            #[cfg(feature = "spill")]
            Self::Spill(error) => {
                use dmr_spill::SpillError as E;
                match &**error {
                    E::Buffer(BufferError::TooLong { .. }) => true,
                    // Unless another error kept a buffer from being spilled.
                    E::NotEnough { .. } => {
                        self.resource_error().is_none_or(ResourceError::is_out_of_memory)
                    }
                    _ => self.is_refusal_of_memory(),
                }
            }
            #[cfg(feature = "shared")]
            Self::SharedLimit(error) => {
                matches!(**error, dmr_shared_limit::ChargeError::OverLimit(_))
            }
            Self::Device(error) => is_short_of_memory(error),
            Self::Runtime(error) => match &**error {
                RuntimeError::Device(error) => is_short_of_memory(error),
                _ => self.is_refusal_of_memory(),
            },
            #[cfg(feature = "cudarc")]
            Self::Driver(DriverError(code)) => *code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            _ => self.is_refusal_of_memory(),
        }
    }

    /// Returns the error of the resource, the stream pool or the driver inside, if that is the
    /// cause: to match on, for instance, [`DeviceLost`](ResourceError::DeviceLost).
    #[must_use]
    pub fn resource_error(&self) -> Option<&ResourceError> {
        match self {
            Self::Resource(error) => Some(error),
            Self::Deallocate(error) => Some(&error.error),
            Self::Release(error) => Some(&error.error),
            Self::Destroy(error) => Some(&error.error),
            Self::Buffer(error) => of_buffer(error),
            Self::Launch(error) => match &**error {
                LaunchError::Prepare(
                    PrepareError::Resource { source, .. } | PrepareError::Untracked { source, .. },
                ) => Some(source),
                LaunchError::Enqueue { error, .. } => error.resource_error(),
                LaunchError::View(error) | LaunchError::Finish(error) => Some(error),
                _ => None,
            },
            Self::Capture(error) => match &**error {
                CaptureError::Work(error) => error.resource_error(),
                CaptureError::Begin(error)
                | CaptureError::End(error)
                | CaptureError::Instantiate(error) => Some(error),
                _ => None,
            },
            #[cfg(feature = "spill")]
            Self::Spill(error) => match &**error {
                dmr_spill::SpillError::Buffer(error) => of_buffer(error),
                dmr_spill::SpillError::NoRoom { source, .. } => Some(source),
                dmr_spill::SpillError::NotEnough { problem, .. } => {
                    problem.as_deref().and_then(of_buffer)
                }
                _ => None,
            },
            #[cfg(feature = "arrow")]
            Self::Column(error) => match &**error {
                dmr_arrow::ColumnError::Resource(error) => Some(error),
                dmr_arrow::ColumnError::Buffer(error) => of_buffer(error),
                _ => None,
            },
            #[cfg(feature = "dlpack")]
            Self::Import(error) => match &**error {
                dmr_dlpack::ImportError::Resource(error) => Some(error),
                _ => None,
            },
            #[cfg(feature = "dlpack")]
            Self::Export(error) => match &**error {
                dmr_dlpack::ExportError::Resource(error) => Some(error),
                _ => None,
            },
            Self::NotHandedOver(error) => Some(&error.error),
            Self::Runtime(error) => match &**error {
                RuntimeError::Resource(error) => Some(error),
                _ => None,
            },
            Self::Shutdown(error) => match &**error {
                ShutdownError::Resource(error) => Some(error),
                _ => None,
            },
            #[cfg(feature = "pool")]
            Self::VirtualMemory(error) => match &**error {
                dmr_cuda_virtual::VirtualMemoryError::Resource(error) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }

    fn is_refusal_of_memory(&self) -> bool {
        self.resource_error().is_some_and(ResourceError::is_out_of_memory)
    }
}

fn of_buffer(error: &BufferError) -> Option<&ResourceError> {
    if let BufferError::Resource(error) = error { Some(error) } else { None }
}

/// Returns whether a device has no memory left for a context.
fn is_short_of_memory(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Driver { code: 2, .. })
}

/// Converts these types, boxed or not.
macro_rules! from {
    ($($(#[$of:meta])* $variant:ident($error:ty);)*) => {$(
        $(#[$of])*
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(Box::new(error))
            }
        }

        $(#[$of])*
        impl From<Box<$error>> for Error {
            fn from(error: Box<$error>) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}

from! {
    Resource(ResourceError);
    Deallocate(DeallocateError);
    Release(ReleaseError);
    Destroy(DestroyError);
    Buffer(BufferError);
    #[cfg(feature = "arrow")]
    Column(dmr_arrow::ColumnError);
    #[cfg(feature = "dlpack")]
    Import(dmr_dlpack::ImportError);
    #[cfg(feature = "dlpack")]
    Export(dmr_dlpack::ExportError);
    #[cfg(feature = "spill")]
    Spill(dmr_spill::SpillError);
    Device(DeviceError);
    Runtime(RuntimeError);
    Recorder(dmr_recorder::StartError);
    Shutdown(ShutdownError);
    #[cfg(feature = "pool")]
    VirtualMemory(dmr_cuda_virtual::VirtualMemoryError);
    #[cfg(feature = "shared")]
    SharedLimit(dmr_shared_limit::ChargeError);
    #[cfg(feature = "logging")]
    Sink(dmr_adaptors::logging::SinkError);
}

#[cfg(feature = "cudarc")]
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// An [`Other`](Error::Other).
#[cfg(feature = "nvrtc")]
impl From<cudarc::nvrtc::CompileError> for Error {
    fn from(error: cudarc::nvrtc::CompileError) -> Self {
        Self::other(error)
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl<E: Into<Error>> From<LaunchError<E>> for Error {
    fn from(error: LaunchError<E>) -> Self {
        Self::Launch(Box::new(error.map_enqueue(E::into)))
    }
}

impl<E: Into<Error>> From<CaptureError<E>> for Error {
    fn from(error: CaptureError<E>) -> Self {
        Self::Capture(Box::new(error.map_work(E::into)))
    }
}

impl From<PrepareError> for Error {
    fn from(error: PrepareError) -> Self {
        LaunchError::<Infallible>::Prepare(error).into()
    }
}

#[cfg(feature = "shared")]
impl From<dmr_shared_limit::SharedLimitError> for Error {
    fn from(error: dmr_shared_limit::SharedLimitError) -> Self {
        dmr_shared_limit::ChargeError::from(error).into()
    }
}

#[cfg(feature = "spill")]
impl<T: Pod> From<Box<dmr_spill::NotInserted<T>>> for Error {
    fn from(refused: Box<dmr_spill::NotInserted<T>>) -> Self {
        refused.error.into()
    }
}

#[cfg(feature = "cudarc")]
impl<T: std::fmt::Debug> From<Box<AdoptSliceError<T>>> for Error {
    fn from(refused: Box<AdoptSliceError<T>>) -> Self {
        let message = refused.to_string();
        NotHandedOver { message, error: refused.error }.into()
    }
}

#[cfg(feature = "arrow")]
impl From<Box<dmr_arrow::ColumnImportError>> for Error {
    fn from(refused: Box<dmr_arrow::ColumnImportError>) -> Self {
        Self::Column(Box::new(refused.error))
    }
}

impl From<Box<AdoptError>> for Error {
    fn from(refused: Box<AdoptError>) -> Self {
        let message = refused.to_string();
        NotHandedOver { message, error: refused.error }.into()
    }
}

#[cfg(feature = "cudarc")]
impl<T: Pod> From<Box<GiveAwayError<T>>> for Error {
    fn from(refused: Box<GiveAwayError<T>>) -> Self {
        let message = refused.to_string();
        NotHandedOver { message, error: refused.error }.into()
    }
}

impl From<NotHandedOver> for Error {
    fn from(error: NotHandedOver) -> Self {
        Self::NotHandedOver(Box::new(error))
    }
}
