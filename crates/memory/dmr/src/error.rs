//! Why a runtime cannot be built.

use dmr_core::ResourceError;
use dmr_streams::DeviceError;

use crate::{Backend, MAX_DEVICE_ORDINALS};

/// Why a [`DeviceRuntime`](crate::DeviceRuntime) cannot be built.
///
/// Variants are `#[non_exhaustive]`: match on what you need and end with `..`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// The streams or the resource cannot be made.
    #[error(transparent)]
    Resource(#[from] ResourceError),

    /// The ordinal is beyond what the runtimes of a process are kept for.
    #[non_exhaustive]
    #[error(
        "CUDA ordinal {ordinal} is out of range: the runtimes of a process have ordinals below \
         {MAX_DEVICE_ORDINALS}; `DeviceRuntime::builder` has no such limit"
    )]
    OrdinalBeyondLimit {
        /// The requested ordinal.
        ordinal: usize,
    },

    /// There is no backend of this name in this program.
    #[non_exhaustive]
    #[error(
        "no backend {name:?} in this program; it has {}: choose one of them, or compile the \
         crate `dmr` with the backend's feature", list(.available)
    )]
    UnknownBackend {
        /// The requested name, from the builder or `DMR_BACKEND`.
        name: String,
        /// The backends of this program.
        available: &'static [Backend],
    },

    /// The program has no backend at all.
    #[error(
        "the crate `dmr` was compiled without a backend: enable a backend's feature (`pool`, \
         `async` or `direct`), or pass a resource to `with_resource`"
    )]
    NoBackend,

    /// A part that was passed to the builder does not fit the rest.
    #[non_exhaustive]
    #[error(
        "the {part} is of {found}, the runtime is of {expected}: build all parts on one device and one stream pool"
    )]
    Mismatch {
        /// The name of the part.
        part: &'static str,
        /// The owner of the part.
        found: String,
        /// The owner of the other parts.
        expected: String,
    },

    /// The log cannot be written.
    #[cfg(feature = "logging")]
    #[non_exhaustive]
    #[error("the log {path:?} cannot be created: {problem}; choose a file that can be written")]
    Log {
        /// The file.
        path: std::path::PathBuf,
        /// The error of the operating system.
        problem: String,
    },

    /// The limit that processes share cannot be joined.
    #[cfg(feature = "shared")]
    #[error(transparent)]
    SharedLimit(#[from] dmr_shared_limit::SharedLimitError),

    /// The flight recorder cannot be started.
    #[non_exhaustive]
    #[error("the runtime cannot be built: {problem}")]
    Recorder {
        /// The error of the recorder.
        problem: String,
    },

    /// Two settings of the builder exclude each other, or one needs another.
    #[non_exhaustive]
    #[error("the runtime cannot be built: {problem}")]
    Settings {
        /// The problem, and what to do.
        problem: &'static str,
    },
}

#[cfg(feature = "logging")]
impl RuntimeError {
    pub(crate) fn log(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::Log { path: path.to_owned(), problem: error.to_string() }
    }
}

fn list(backends: &[Backend]) -> String {
    if backends.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<_> = backends.iter().map(|backend| format!("{:?}", backend.name())).collect();
    names.join(", ")
}
