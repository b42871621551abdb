//! Why a bench could not be run: one sentence for the line that it leaves.

use std::fmt;

use dmr_core::DeallocateError;

/// The reason why a bench ended, as a sentence to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchError(pub String);

impl BenchError {
    /// From anything that can be shown.
    pub fn new(cause: impl fmt::Display) -> Self {
        Self(cause.to_string())
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BenchError {}

impl From<dmr_core::ResourceError> for BenchError {
    fn from(error: dmr_core::ResourceError) -> Self {
        Self::new(error)
    }
}

impl From<dmr_cuda_virtual::VirtualMemoryError> for BenchError {
    fn from(error: dmr_cuda_virtual::VirtualMemoryError) -> Self {
        Self::new(error)
    }
}

/// The block in it is leaked: the run is over.
impl From<Box<DeallocateError>> for BenchError {
    fn from(error: Box<DeallocateError>) -> Self {
        Self::new(error)
    }
}
