//! The settings of the driver's pool.

/// The settings of an [`AsyncCudaResource`](crate::AsyncCudaResource) and its driver pool.
///
/// ```
/// use dmr_cuda_async::AsyncConfig;
///
/// let config = AsyncConfig::new().with_max_bytes(8 << 30).with_opportunistic_reuse(false);
/// assert_eq!(config.release_threshold, u64::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncConfig {
    /// Bytes that the driver keeps when a stream, an event or the device is synchronised; what is
    /// free beyond them goes back to the operating system then. Everything by default: with the
    /// driver's own default, 0, an allocation after a synchronisation costs a hundredfold.
    pub release_threshold: u64,
    /// If true, memory freed on one stream is reused on another that already comes after the free.
    pub follow_event_dependencies: bool,
    /// If true, memory is reused on any stream once its free has executed. Which address an
    /// allocation gets then depends on timing.
    pub opportunistic_reuse: bool,
    /// If true, the driver makes a stream wait for another's free when there is no other memory.
    pub internal_dependencies: bool,
    /// Bytes that the pool may take from the device; `None`: no limit. With 0 every allocation is
    /// refused. Needs a driver of CUDA 12.2 or newer.
    pub max_bytes: Option<usize>,
    /// The way to share this memory with other processes. It cannot be changed later.
    pub export: ExportHandle,
}

/// A way to share memory of a pool with other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExportHandle {
    /// Not at all.
    #[default]
    None,
    /// As a file descriptor (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`).
    PosixFileDescriptor,
    /// As an NT handle (`CU_MEM_HANDLE_TYPE_WIN32`).
    Win32,
    /// As a fabric handle, on systems with an IMEX channel (`CU_MEM_HANDLE_TYPE_FABRIC`).
    Fabric,
}

impl ExportHandle {
    /// The driver's number.
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::PosixFileDescriptor => 1,
            Self::Win32 => 2,
            Self::Fabric => 8,
        }
    }
}

impl AsyncConfig {
    /// Keeps all memory, reuses by all three policies, has no limit, exports nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            release_threshold: u64::MAX,
            follow_event_dependencies: true,
            opportunistic_reuse: true,
            internal_dependencies: true,
            max_bytes: None,
            export: ExportHandle::None,
        }
    }

    /// Sets [`release_threshold`](Self::release_threshold), in bytes.
    #[must_use]
    pub const fn with_release_threshold(mut self, bytes: u64) -> Self {
        self.release_threshold = bytes;
        self
    }

    /// Sets [`follow_event_dependencies`](Self::follow_event_dependencies).
    #[must_use]
    pub const fn with_follow_event_dependencies(mut self, on: bool) -> Self {
        self.follow_event_dependencies = on;
        self
    }

    /// Sets [`opportunistic_reuse`](Self::opportunistic_reuse).
    #[must_use]
    pub const fn with_opportunistic_reuse(mut self, on: bool) -> Self {
        self.opportunistic_reuse = on;
        self
    }

    /// Sets [`internal_dependencies`](Self::internal_dependencies).
    #[must_use]
    pub const fn with_internal_dependencies(mut self, on: bool) -> Self {
        self.internal_dependencies = on;
        self
    }

    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub const fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets [`export`](Self::export).
    #[must_use]
    pub const fn with_export(mut self, export: ExportHandle) -> Self {
        self.export = export;
        self
    }
}

impl Default for AsyncConfig {
    fn default() -> Self {
        Self::new()
    }
}
