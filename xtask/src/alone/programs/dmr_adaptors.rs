//! `dmr-adaptors` with one feature: that layer around a resource of one's own.

mod own_resource;

use dmr_adaptors::ResourceBuilder;
use dmr_core::{AllocTag, DeviceMemoryResource, StreamId, StreamPoolId};
use own_resource::Addresses;

fn main() {
    let stack = ResourceBuilder::new(Addresses::new(StreamPoolId::next().unwrap()));
    #[cfg(feature = "aligned")]
    let stack = stack.layer(dmr_adaptors::aligned::AlignedLayer::new(4096).unwrap());
    #[cfg(feature = "budget")]
    let stack = stack.layer(dmr_adaptors::budget::BudgetLayer::new(1 << 20));
    #[cfg(feature = "callbacks")]
    let stack = stack.layer(dmr_adaptors::callbacks::FailureCallbackLayer::new());
    #[cfg(feature = "debug-guard")]
    let stack = stack.layer(dmr_adaptors::guard::DebugGuardLayer::new(no_work()));
    #[cfg(feature = "logging")]
    let records = std::sync::Arc::new(dmr_adaptors::logging::InMemorySink::default());
    #[cfg(feature = "logging")]
    let stack = stack.layer(dmr_adaptors::logging::LoggingLayer::new(records.clone()));
    #[cfg(feature = "tracing")]
    let stack = stack.layer(dmr_adaptors::logging::LoggingLayer::new(std::sync::Arc::new(
        dmr_adaptors::logging::TracingSink,
    )));
    #[cfg(any(feature = "metrics", feature = "statistics"))]
    let stack = stack.layer(dmr_adaptors::statistics::StatisticsLayer::new());

    let memory = stack.build();
    let block = memory.allocate(1000, StreamId::DEFAULT, AllocTag::new("alone")).unwrap();
    #[cfg(feature = "aligned")]
    assert_eq!(block.ptr() % 4096, 0);
    #[cfg(feature = "budget")]
    memory.allocate(1 << 20, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err();
    #[cfg(feature = "statistics")]
    assert_eq!(memory.snapshot().bytes.current, 1000);
    #[cfg(feature = "metrics")]
    memory.export("alone");
    memory.deallocate(block).unwrap();
    memory.reap_pending().unwrap();
    assert_eq!(memory.usage().live, 0);
    #[cfg(feature = "logging")]
    assert_eq!(records.records()[0].bytes, 1000);
}

#[cfg(feature = "debug-guard")]
fn no_work() -> std::sync::Arc<dyn dmr_core::DeviceOps> {
    use std::ops::Range;

    use dmr_core::{DeviceBlock, DeviceOps, PatternMismatch, ResourceResult};

    #[derive(Debug)]
    struct NoWork;

    impl DeviceOps for NoWork {
        fn fill_pattern(
            &self,
            _: &DeviceBlock,
            _: Range<usize>,
            _: u32,
            _: StreamId,
        ) -> ResourceResult<()> {
            Ok(())
        }

        fn check_pattern(
            &self,
            _: &DeviceBlock,
            _: Range<usize>,
            _: u32,
            _: StreamId,
            _: u64,
        ) -> ResourceResult<()> {
            Ok(())
        }

        fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
            Ok(Vec::new())
        }

        fn synchronize(&self, _: StreamId) -> ResourceResult<()> {
            Ok(())
        }
    }

    std::sync::Arc::new(NoWork)
}
