//! A4, D7: the adaptors that may be put around pinned memory keep the contract there, under a
//! budget that is the limit of the device.
#![cfg(all(feature = "budget", feature = "logging", feature = "statistics"))]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_adaptors::logging::{InMemorySink, LoggingLayer};
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_core::conformance::{Harness, Report, run_all};
use dmr_core::{DeviceBlock, DeviceMemoryResource, HostMemoryResource, ResourceResult, StreamId};
use dmr_pinned::{PinnedKind, PinnedResource};
use dmr_testkit::{ResourceHarness, Rig};

const LIMIT: u64 = 64 << 20;

type Pinned = Arc<dyn HostMemoryResource>;

/// A harness whose device has as many bytes as the budget.
struct Limited(ResourceHarness<Pinned>);

impl Harness for Limited {
    fn resource(&self) -> &dyn DeviceMemoryResource {
        self.0.resource()
    }

    fn streams(&self) -> [StreamId; 2] {
        self.0.streams()
    }

    fn foreign_stream(&self) -> StreamId {
        self.0.foreign_stream()
    }

    fn returned_stream(&self) -> StreamId {
        self.0.returned_stream()
    }

    fn device_bytes(&self) -> u64 {
        LIMIT
    }

    fn fill(&self, stream: StreamId, block: &DeviceBlock, byte: u8) -> ResourceResult<()> {
        self.0.fill(stream, block, byte)
    }

    fn check(
        &self,
        stream: StreamId,
        block: &DeviceBlock,
        byte: u8,
    ) -> ResourceResult<Option<usize>> {
        self.0.check(stream, block, byte)
    }

    fn delay(&self, stream: StreamId) -> ResourceResult<()> {
        self.0.delay(stream)
    }

    fn synchronize(&self) -> ResourceResult<()> {
        self.0.synchronize()
    }

    fn verdict(&self) -> Result<(), String> {
        self.0.verdict()
    }
}

fn stack(rig: &Rig) -> Pinned {
    let pinned = PinnedResource::new(Arc::clone(rig.streams()), PinnedKind::Cached);
    let bounded: Pinned = Arc::new(BudgetLayer::new(LIMIT).layer(pinned));
    let logged: Pinned = Arc::new(LoggingLayer::new(Arc::new(InMemorySink::new())).layer(bounded));
    Arc::new(StatisticsLayer::new().layer(logged))
}

#[test]
fn a_stack_over_pinned_memory_keeps_the_contract() -> Result<(), Report> {
    run_all(|| Limited(Rig::new().harness(stack))).into_result()
}
