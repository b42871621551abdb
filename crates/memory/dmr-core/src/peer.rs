//! Access of one device to the memory of another, a *peer*.

/// The way in which the memory of a resource becomes accessible to another device:
/// [`allow_access`](crate::DeviceMemoryResource::allow_access).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// It is accessible now, and so is memory that is allocated later.
    Granted,
    /// It becomes accessible when the context of the other device enables peer access to the
    /// context of the memory (`cuCtxEnablePeerAccess`). The resource has done nothing.
    ByContext,
}

/// The reason why a device cannot access the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerProblem {
    /// The driver reports no path between the two devices (`cuDeviceCanAccessPeer`).
    #[error(
        "there is no peer path between them; copy with `copy_from_peer`, which goes through the host then"
    )]
    NoPath,
    /// The resource of the memory does not implement
    /// [`allow_access`](crate::DeviceMemoryResource::allow_access).
    #[error(
        "the resource of that memory cannot allow it; use a resource that implements `allow_access`, or copy \
         with `copy_from_peer`"
    )]
    NotSupported,
}
