//! Global memory, which the caller of a launch provides.

/// The threads that must see an atomic access as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of the PTX ISA")]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// The qualifier of a load or store: how it behaves beside accesses of other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Qualifier {
    /// `ld`, `st` without a qualifier, `.weak`.
    Plain,
    /// `ld.global.nc`, `ldu`, `ld.const`: of memory that nothing writes while the kernel runs.
    Constant,
    /// `.volatile`.
    Volatile,
    /// `.relaxed`, `.acquire`, `.release`, `atom` and `red`: atomic in this scope.
    Atomic(Scope),
}

impl Qualifier {
    /// Returns whether the access is strong, as the memory model says: atomic or volatile.
    #[inline]
    pub(crate) fn is_strong(self) -> bool {
        matches!(self, Self::Volatile | Self::Atomic(_))
    }
}

/// An access to global memory by lanes of one warp, in one instruction.
///
/// The lanes access consecutive parts of `lane_bytes` each, in ascending order; or, if
/// `lane_bytes == bytes`, every one accesses all of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Access {
    /// The first address.
    pub address: u64,
    /// The bytes of all lanes.
    pub bytes: u32,
    /// The bytes of one lane.
    pub lane_bytes: u32,
    /// The lanes: bit `n` is thread `first_thread + n`.
    pub lanes: u32,
    /// The number of the block in its grid: x first, then y, then z.
    pub block: u64,
    /// The number in its block of the thread of lane 0: x first, then y, then z.
    pub first_thread: u32,
    /// The behaviour beside other accesses.
    pub qualifier: Qualifier,
    /// The instruction, for `Program::place`.
    pub instruction: u32,
}

/// A refused access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct AccessError {
    /// The offset from the start of the access of the first byte that is refused.
    pub offset: u32,
    /// The reason.
    pub message: String,
}

impl AccessError {
    /// Refuses an access from the byte at `offset` on.
    #[must_use]
    pub fn new(offset: u32, message: impl Into<String>) -> Self {
        Self { offset, message: message.into() }
    }
}

/// The memory that a launch reads and writes.
pub trait GlobalMemory {
    /// Reads `into.len()` bytes at `access.address`.
    ///
    /// # Errors
    /// If the access is not allowed; then the launch ends with this reason.
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError>;

    /// Writes `bytes` at `access.address`.
    ///
    /// # Errors
    /// If the access is not allowed; then no byte is written and the launch ends with this reason.
    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError>;

    /// Changes the `access.bytes` (at most 16) at `access.address` by `change`: an atomic read and
    /// write of one lane. The address is a multiple of the bytes if
    /// [`Checks::misaligned`](crate::Checks::misaligned) is on.
    ///
    /// # Errors
    /// If the access is not allowed; then no byte is changed and the launch ends with this reason.
    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError>;

    /// Marks that the bytes at `access.address`, which were just written, have an undefined value:
    /// one that was read from shared or local memory which no thread has written. A later read of
    /// them is one of memory that was never written. The default does nothing.
    fn undefine(&mut self, access: &Access) {
        let _ = access;
    }
}
