//! Forwarding of the trait's methods, one by one by name.

/// Inside an `impl DeviceMemoryResource`: makes the named methods call the same method of the resource
/// that `self.$inner()` returns. The `impl` carries `#[deny(clippy::missing_trait_methods)]`, so that
/// a method that is neither named here nor written out is an error.
macro_rules! forward {
    ($inner:ident: $($method:ident),+ $(,)?) => {
        $($crate::forward::forward_one!($inner, $method);)+
    };
}

macro_rules! forward_one {
    ($inner:ident, allocate) => {
        fn allocate(
            &self,
            bytes: usize,
            stream: dmr_core::StreamId,
            tag: dmr_core::AllocTag,
        ) -> dmr_core::ResourceResult<dmr_core::DeviceBlock> {
            self.$inner().allocate(bytes, stream, tag)
        }
    };
    ($inner:ident, deallocate) => {
        fn deallocate(
            &self,
            block: dmr_core::DeviceBlock,
        ) -> Result<dmr_core::BlockState, Box<dmr_core::DeallocateError>> {
            self.$inner().deallocate(block)
        }
    };
    ($inner:ident, try_grow) => {
        fn try_grow(
            &self,
            block: &mut dmr_core::DeviceBlock,
            bytes: usize,
        ) -> dmr_core::ResourceResult<bool> {
            self.$inner().try_grow(block, bytes)
        }
    };
    ($inner:ident, is_retired) => {
        fn is_retired(&self, block: dmr_core::BlockId) -> bool {
            self.$inner().is_retired(block)
        }
    };
    ($inner:ident, device_ordinal) => {
        fn device_ordinal(&self) -> usize {
            self.$inner().device_ordinal()
        }
    };
    ($inner:ident, stream_pool) => {
        fn stream_pool(&self) -> dmr_core::StreamPoolId {
            self.$inner().stream_pool()
        }
    };
    ($inner:ident, bytes_outstanding) => {
        fn bytes_outstanding(&self) -> u64 {
            self.$inner().bytes_outstanding()
        }
    };
    ($inner:ident, usage) => {
        fn usage(&self) -> dmr_core::Usage {
            self.$inner().usage()
        }
    };
    ($inner:ident, try_reap) => {
        fn try_reap(&self) -> dmr_core::ResourceResult<u64> {
            self.$inner().try_reap()
        }
    };
    ($inner:ident, reap_pending) => {
        fn reap_pending(&self) -> dmr_core::ResourceResult<u64> {
            self.$inner().reap_pending()
        }
    };
    ($inner:ident, trim_to) => {
        fn trim_to(&self, keep_bytes: u64) -> dmr_core::ResourceResult<u64> {
            self.$inner().trim_to(keep_bytes)
        }
    };
    ($inner:ident, use_tracking) => {
        fn use_tracking(&self) -> Option<&dyn dmr_core::UseTracking> {
            self.$inner().use_tracking()
        }
    };
    ($inner:ident, virtual_memory) => {
        fn virtual_memory(&self) -> Option<&dyn dmr_core::VirtualMemory> {
            self.$inner().virtual_memory()
        }
    };
}

pub(crate) use {forward, forward_one};
