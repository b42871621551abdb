//! Publishes statistics through the `metrics` facade.

use dmr_core::DeviceMemoryResource;
use metrics::{Label, Unit, counter, describe_counter, describe_gauge, gauge};

use super::StatisticsResource;

// Metrics of the whole resource, with the labels `resource` and `device`.
const BYTES: &str = "dmr_bytes";
const BYTES_PEAK: &str = "dmr_bytes_peak";
const BYTES_RETIRED: &str = "dmr_bytes_retired";
const BYTES_RESERVED: &str = "dmr_bytes_reserved";
const BLOCKS: &str = "dmr_blocks";
const ALLOCATED_BYTES: &str = "dmr_allocated_bytes_total";
const ALLOCATIONS: &str = "dmr_allocations_total";
const FREES: &str = "dmr_frees_total";
const FAILURES: &str = "dmr_allocation_failures_total";

// Metrics of each tag, with the labels `resource`, `device` and `tag`.
const TAG_BYTES: &str = "dmr_tag_bytes";
const TAG_BYTES_PEAK: &str = "dmr_tag_bytes_peak";
const TAG_BLOCKS: &str = "dmr_tag_blocks";
const TAG_ALLOCATED_BYTES: &str = "dmr_tag_allocated_bytes_total";
const TAG_ALLOCATIONS: &str = "dmr_tag_allocations_total";
const TAG_FREES: &str = "dmr_tag_frees_total";
const TAG_FAILURES: &str = "dmr_tag_allocation_failures_total";

/// Describes the metrics that [`StatisticsResource::export`] publishes, with their units, to the
/// current recorder of `metrics`.
pub fn describe_metrics() {
    describe_gauge!(
        BYTES_RETIRED,
        Unit::Bytes,
        "Bytes deallocated and not yet freed: device work may still use them"
    );
    describe_gauge!(BYTES_RESERVED, Unit::Bytes, "Bytes reserved from the driver");
    for (overall, by_tag, unit, meaning) in [
        (BYTES, TAG_BYTES, Unit::Bytes, "Bytes allocated and not deallocated"),
        (
            BYTES_PEAK,
            TAG_BYTES_PEAK,
            Unit::Bytes,
            "Peak of the bytes allocated and not deallocated",
        ),
        (BLOCKS, TAG_BLOCKS, Unit::Count, "Blocks allocated and not deallocated"),
    ] {
        describe_gauge!(overall, unit, meaning);
        describe_gauge!(by_tag, unit, meaning);
    }
    for (overall, by_tag, unit, meaning) in [
        (ALLOCATED_BYTES, TAG_ALLOCATED_BYTES, Unit::Bytes, "Bytes of all allocations, in total"),
        (ALLOCATIONS, TAG_ALLOCATIONS, Unit::Count, "Allocations"),
        (FREES, TAG_FREES, Unit::Count, "Deallocations"),
        (FAILURES, TAG_FAILURES, Unit::Count, "Failed allocations"),
    ] {
        describe_counter!(overall, unit, meaning);
        describe_counter!(by_tag, unit, meaning);
    }
}

impl<R: DeviceMemoryResource> StatisticsResource<R> {
    /// Publishes a [`snapshot`](Self::snapshot) and the upstream resource's usage through the
    /// current recorder of `metrics`.
    ///
    /// Call it before the metrics are read; nothing else publishes them. The labels are `resource`
    /// (`name`, which distinguishes several statistics of one device), `device` (the CUDA ordinal)
    /// and, for the metrics `dmr_tag_*`, `tag`. Gauges are in bytes and blocks; counters are set to
    /// absolute values.
    pub fn export(&self, name: &'static str) {
        let statistics = self.snapshot();
        let usage = self.usage();
        let device = self.device_ordinal().to_string();
        let overall = [Label::new("resource", name), Label::new("device", device)];
        let set = |metric, value: u64| gauge!(metric, overall.iter()).set(value as f64);
        let count = |metric, value| counter!(metric, overall.iter()).absolute(value);
        set(BYTES, statistics.bytes.current);
        set(BYTES_PEAK, statistics.bytes.peak);
        set(BYTES_RETIRED, usage.retired);
        set(BYTES_RESERVED, usage.reserved);
        set(BLOCKS, statistics.allocations.current);
        count(ALLOCATED_BYTES, statistics.bytes.total);
        count(ALLOCATIONS, statistics.allocations.total);
        count(FREES, statistics.frees);
        count(FAILURES, statistics.failures);

        for of_tag in &statistics.by_tag {
            let mut labels = overall.to_vec();
            labels.push(Label::new("tag", of_tag.tag.to_string()));
            gauge!(TAG_BYTES, labels.iter()).set(of_tag.bytes.current as f64);
            gauge!(TAG_BYTES_PEAK, labels.iter()).set(of_tag.bytes.peak as f64);
            gauge!(TAG_BLOCKS, labels.iter()).set(of_tag.allocations.current as f64);
            counter!(TAG_ALLOCATED_BYTES, labels.iter()).absolute(of_tag.bytes.total);
            counter!(TAG_ALLOCATIONS, labels.iter()).absolute(of_tag.allocations.total);
            counter!(TAG_FREES, labels.iter()).absolute(of_tag.frees);
            counter!(TAG_FAILURES, labels.iter()).absolute(of_tag.failures);
        }
    }
}
