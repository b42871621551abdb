//! The macro by which memory is tracked as other memory is, of the same elements.

/// Implements `TrackedMemory` for a type by the memory that the expression makes of it.
macro_rules! tracked_as {
    ([$($generics:tt)*] $type:ty, $memory:ident => $tracked:expr) => {
        impl<$($generics)*> dmr_streams::TrackedMemory for $type {
            fn device_ptr(&self) -> u64 {
                let $memory = self;
                $tracked.device_ptr()
            }

            fn size_in_bytes(&self) -> usize {
                let $memory = self;
                $tracked.size_in_bytes()
            }

            fn origin(&self) -> dmr_streams::MemoryOrigin<'_> {
                let $memory = self;
                $tracked.origin()
            }

            fn byte_range(&self) -> dmr_core::ByteRange {
                let $memory = self;
                $tracked.byte_range()
            }

            fn is_read_only(&self) -> bool {
                let $memory = self;
                $tracked.is_read_only()
            }
        }
    };
}
