//! Statistics through the `metrics` facade.

use dmr_core::DeviceMemoryResource;
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::{Counter, StatisticsResource};

// Over all, labelled `resource` and `device`.
const BYTES: &str = "dmr_bytes";
const BYTES_PEAK: &str = "dmr_bytes_peak";
const BYTES_RETIRED: &str = "dmr_bytes_retired";
const BYTES_RESERVED: &str = "dmr_bytes_reserved";
const BLOCKS: &str = "dmr_blocks";
const ALLOCATED_BYTES: &str = "dmr_allocated_bytes_total";
const ALLOCATIONS: &str = "dmr_allocations_total";
const FREES: &str = "dmr_frees_total";
const FAILURES: &str = "dmr_allocation_failures_total";

// For each tag, labelled `tag` besides.
const TAG_BYTES: &str = "dmr_tag_bytes";
const TAG_BYTES_PEAK: &str = "dmr_tag_bytes_peak";
const TAG_BLOCKS: &str = "dmr_tag_blocks";
const TAG_ALLOCATED_BYTES: &str = "dmr_tag_allocated_bytes_total";
const TAG_ALLOCATIONS: &str = "dmr_tag_allocations_total";
const TAG_FREES: &str = "dmr_tag_frees_total";
const TAG_FAILURES: &str = "dmr_tag_allocation_failures_total";

/// Tells the current recorder of `metrics` the units and meanings of what
/// [`StatisticsResource::export`] publishes.
pub fn describe_metrics() {
    for (over_all, by_tag, meaning) in [
        (BYTES, TAG_BYTES, "Bytes handed out"),
        (BYTES_PEAK, TAG_BYTES_PEAK, "Most bytes that were handed out at one time"),
    ] {
        describe_gauge!(over_all, Unit::Bytes, meaning);
        describe_gauge!(by_tag, Unit::Bytes, meaning);
    }
    describe_gauge!(BYTES_RETIRED, Unit::Bytes, "Bytes given back that device work may still need");
    describe_gauge!(BYTES_RESERVED, Unit::Bytes, "Bytes taken from the driver");
    describe_gauge!(BLOCKS, Unit::Count, "Blocks handed out");
    describe_gauge!(TAG_BLOCKS, Unit::Count, "Blocks handed out");
    for (over_all, by_tag, unit, meaning) in [
        (ALLOCATED_BYTES, TAG_ALLOCATED_BYTES, Unit::Bytes, "Bytes ever handed out"),
        (ALLOCATIONS, TAG_ALLOCATIONS, Unit::Count, "Blocks ever handed out"),
        (FREES, TAG_FREES, Unit::Count, "Blocks given back"),
        (FAILURES, TAG_FAILURES, Unit::Count, "Allocations that failed"),
    ] {
        describe_counter!(over_all, unit, meaning);
        describe_counter!(by_tag, unit, meaning);
    }
}

impl<R: DeviceMemoryResource> StatisticsResource<R> {
    /// Publishes what was counted so far through the current recorder of `metrics`.
    ///
    /// Nothing calls it but the user: do so as often as the metrics are wanted. Labels are
    /// `resource` (the name given here, to tell several adaptors of one device apart), `device`
    /// (the CUDA ordinal), and `tag` on the `dmr_tag_` metrics. Gauges are in bytes and blocks;
    /// counters are set to absolute values.
    pub fn export(&self, name: &'static str) {
        let (statistics, usage) = (self.snapshot(), self.usage());
        let device = self.device_ordinal().to_string();
        let set = |metric, value: u64| {
            gauge!(metric, "resource" => name, "device" => device.clone()).set(value as f64);
        };
        let count = |metric, value| {
            counter!(metric, "resource" => name, "device" => device.clone()).absolute(value);
        };
        let Counter { current, peak, total } = statistics.bytes;
        set(BYTES, current);
        set(BYTES_PEAK, peak);
        set(BYTES_RETIRED, usage.retired);
        set(BYTES_RESERVED, usage.reserved);
        set(BLOCKS, statistics.allocations.current);
        count(ALLOCATED_BYTES, total);
        count(ALLOCATIONS, statistics.allocations.total);
        count(FREES, statistics.frees);
        count(FAILURES, statistics.failures);

        for of_tag in &statistics.by_tag {
            let tag = of_tag.tag.to_string();
            let labels = || {
                let (device, tag) = (device.clone(), tag.clone());
                vec![("resource", name.to_owned()), ("device", device), ("tag", tag)]
            };
            let labels = || labels().iter().map(Into::into).collect::<Vec<metrics::Label>>();
            let Counter { current, peak, total } = of_tag.bytes;
            gauge!(TAG_BYTES, labels()).set(current as f64);
            gauge!(TAG_BYTES_PEAK, labels()).set(peak as f64);
            gauge!(TAG_BLOCKS, labels()).set(of_tag.allocations.current as f64);
            counter!(TAG_ALLOCATED_BYTES, labels()).absolute(total);
            counter!(TAG_ALLOCATIONS, labels()).absolute(of_tag.allocations.total);
            counter!(TAG_FREES, labels()).absolute(of_tag.frees);
            counter!(TAG_FAILURES, labels()).absolute(of_tag.failures);
        }
    }
}
