//! The macro by which adaptors forward methods to their upstream resource.

/// Writes the named methods of an `impl DeviceMemoryResource`: each calls the same method of the
/// resource in a field, or of the one that a method returns.
///
/// With `#[deny(clippy::missing_trait_methods)]` on the `impl`, clippy reports a method that is
/// neither named here nor written out. A method with a default, such as `use_tracking`, would
/// otherwise hide what upstream can do.
///
/// ```
/// use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceResult, StreamId, forward};
///
/// /// Counts no bytes of its own, and allocates twice the bytes.
/// #[derive(Debug)]
/// struct Doubling<R> {
///     upstream: R,
/// }
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<R: DeviceMemoryResource> DeviceMemoryResource for Doubling<R> {
///     fn allocate(
///         &self,
///         bytes: usize,
///         stream: StreamId,
///         tag: AllocTag,
///     ) -> ResourceResult<DeviceBlock> {
///         self.upstream.allocate(2 * bytes, stream, tag)
///     }
///
///     // `forward!(upstream(): ...)` calls a method `upstream` instead.
///     forward!(
///         upstream: deallocate, give_away, try_grow, is_retired, device_ordinal, stream_pool,
///         bytes_outstanding, usage, try_reap, reap_pending, trim_to, allow_access, use_tracking,
///         virtual_memory,
///     );
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($field:ident: $($method:ident),+ $(,)?) => {
        $($crate::forward!(@one [$field] $method);)+
    };
    ($upstream:ident(): $($method:ident),+ $(,)?) => {
        $($crate::forward!(@one [$upstream()] $method);)+
    };
    (@one [$($upstream:tt)+] allocate) => {
        #[inline]
        fn allocate(&self, bytes: usize, stream: $crate::StreamId, tag: $crate::AllocTag) -> $crate::ResourceResult<$crate::DeviceBlock> {
            self.$($upstream)+.allocate(bytes, stream, tag)
        }
    };
    (@one [$($upstream:tt)+] deallocate) => {
        #[inline]
        fn deallocate(&self, block: $crate::DeviceBlock) -> ::core::result::Result<$crate::BlockState, ::std::boxed::Box<$crate::DeallocateError>> {
            self.$($upstream)+.deallocate(block)
        }
    };
    (@one [$($upstream:tt)+] give_away) => {
        #[inline]
        fn give_away(&self, block: $crate::DeviceBlock) -> ::core::result::Result<$crate::DriverAllocation, ::std::boxed::Box<$crate::DeallocateError>> {
            self.$($upstream)+.give_away(block)
        }
    };
    (@one [$($upstream:tt)+] try_grow) => {
        #[inline]
        fn try_grow(&self, block: &mut $crate::DeviceBlock, bytes: usize) -> $crate::ResourceResult<bool> {
            self.$($upstream)+.try_grow(block, bytes)
        }
    };
    (@one [$($upstream:tt)+] is_retired) => {
        #[inline]
        fn is_retired(&self, block: $crate::BlockId) -> bool {
            self.$($upstream)+.is_retired(block)
        }
    };
    (@one [$($upstream:tt)+] device_ordinal) => {
        #[inline]
        fn device_ordinal(&self) -> usize {
            self.$($upstream)+.device_ordinal()
        }
    };
    (@one [$($upstream:tt)+] stream_pool) => {
        #[inline]
        fn stream_pool(&self) -> $crate::StreamPoolId {
            self.$($upstream)+.stream_pool()
        }
    };
    (@one [$($upstream:tt)+] bytes_outstanding) => {
        #[inline]
        fn bytes_outstanding(&self) -> u64 {
            self.$($upstream)+.bytes_outstanding()
        }
    };
    (@one [$($upstream:tt)+] usage) => {
        #[inline]
        fn usage(&self) -> $crate::Usage {
            self.$($upstream)+.usage()
        }
    };
    (@one [$($upstream:tt)+] try_reap) => {
        #[inline]
        fn try_reap(&self) -> $crate::ResourceResult<u64> {
            self.$($upstream)+.try_reap()
        }
    };
    (@one [$($upstream:tt)+] reap_pending) => {
        #[inline]
        fn reap_pending(&self) -> $crate::ResourceResult<u64> {
            self.$($upstream)+.reap_pending()
        }
    };
    (@one [$($upstream:tt)+] trim_to) => {
        #[inline]
        fn trim_to(&self, keep_bytes: u64) -> $crate::ResourceResult<u64> {
            self.$($upstream)+.trim_to(keep_bytes)
        }
    };
    (@one [$($upstream:tt)+] allow_access) => {
        #[inline]
        fn allow_access(&self, device_ordinal: usize) -> $crate::ResourceResult<$crate::PeerAccess> {
            self.$($upstream)+.allow_access(device_ordinal)
        }
    };
    (@one [$($upstream:tt)+] use_tracking) => {
        #[inline]
        fn use_tracking(&self) -> ::core::option::Option<&dyn $crate::UseTracking> {
            self.$($upstream)+.use_tracking()
        }
    };
    (@one [$($upstream:tt)+] virtual_memory) => {
        #[inline]
        fn virtual_memory(&self) -> ::core::option::Option<&dyn $crate::VirtualMemory> {
            self.$($upstream)+.virtual_memory()
        }
    };
}
