//! The macro by which adaptors forward methods to their upstream resource.

/// Writes the named methods of an `impl DeviceMemoryResource`: each calls the same method of the resource that
/// `self.$upstream()` returns. The `impl` has `#[deny(clippy::missing_trait_methods)]`, which reports a method
/// that is neither named here nor written out.
macro_rules! forward {
    ($upstream:ident: $($method:ident),+ $(,)?) => {
        $($crate::forward::forward_one!($upstream, $method);)+
    };
}

macro_rules! forward_one {
    ($upstream:ident, allocate) => {
        fn allocate(
            &self,
            bytes: usize,
            stream: dmr_core::StreamId,
            tag: dmr_core::AllocTag,
        ) -> dmr_core::ResourceResult<dmr_core::DeviceBlock> {
            self.$upstream().allocate(bytes, stream, tag)
        }
    };
    ($upstream:ident, deallocate) => {
        fn deallocate(
            &self,
            block: dmr_core::DeviceBlock,
        ) -> Result<dmr_core::BlockState, Box<dmr_core::DeallocateError>> {
            self.$upstream().deallocate(block)
        }
    };
    ($upstream:ident, try_grow) => {
        fn try_grow(
            &self,
            block: &mut dmr_core::DeviceBlock,
            bytes: usize,
        ) -> dmr_core::ResourceResult<bool> {
            self.$upstream().try_grow(block, bytes)
        }
    };
    ($upstream:ident, is_retired) => {
        fn is_retired(&self, block: dmr_core::BlockId) -> bool {
            self.$upstream().is_retired(block)
        }
    };
    ($upstream:ident, device_ordinal) => {
        fn device_ordinal(&self) -> usize {
            self.$upstream().device_ordinal()
        }
    };
    ($upstream:ident, stream_pool) => {
        fn stream_pool(&self) -> dmr_core::StreamPoolId {
            self.$upstream().stream_pool()
        }
    };
    ($upstream:ident, bytes_outstanding) => {
        fn bytes_outstanding(&self) -> u64 {
            self.$upstream().bytes_outstanding()
        }
    };
    ($upstream:ident, usage) => {
        fn usage(&self) -> dmr_core::Usage {
            self.$upstream().usage()
        }
    };
    ($upstream:ident, try_reap) => {
        fn try_reap(&self) -> dmr_core::ResourceResult<u64> {
            self.$upstream().try_reap()
        }
    };
    ($upstream:ident, reap_pending) => {
        fn reap_pending(&self) -> dmr_core::ResourceResult<u64> {
            self.$upstream().reap_pending()
        }
    };
    ($upstream:ident, trim_to) => {
        fn trim_to(&self, keep_bytes: u64) -> dmr_core::ResourceResult<u64> {
            self.$upstream().trim_to(keep_bytes)
        }
    };
    ($upstream:ident, allow_access) => {
        fn allow_access(
            &self,
            device_ordinal: usize,
        ) -> dmr_core::ResourceResult<dmr_core::PeerAccess> {
            self.$upstream().allow_access(device_ordinal)
        }
    };
    ($upstream:ident, use_tracking) => {
        fn use_tracking(&self) -> Option<&dyn dmr_core::UseTracking> {
            self.$upstream().use_tracking()
        }
    };
    ($upstream:ident, virtual_memory) => {
        fn virtual_memory(&self) -> Option<&dyn dmr_core::VirtualMemory> {
            self.$upstream().virtual_memory()
        }
    };
}

pub(crate) use {forward, forward_one};
