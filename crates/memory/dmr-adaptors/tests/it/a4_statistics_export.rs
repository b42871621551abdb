//! Statistics are published through the `metrics` facade when the user asks for it.

#![cfg(feature = "metrics")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::statistics::{StatisticsLayer, describe_metrics};
use dmr_core::conformance::Harness;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_fake::FakeHarness;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};

/// Keeps the last value of every metric, by name and labels.
#[derive(Clone, Debug, Default)]
struct Kept {
    values: Arc<Mutex<BTreeMap<String, f64>>>,
    described: Arc<Mutex<BTreeMap<String, Option<Unit>>>>,
}

struct Metric(Kept, String);

impl Metric {
    fn set(&self, value: f64) {
        self.0.values.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl CounterFn for Metric {
    fn increment(&self, _: u64) {
        panic!("counters are set to absolute values: {}", self.1);
    }
    fn absolute(&self, value: u64) {
        self.set(value as f64);
    }
}

impl GaugeFn for Metric {
    fn increment(&self, _: f64) {
        panic!("gauges are set: {}", self.1);
    }
    fn decrement(&self, _: f64) {
        panic!("gauges are set: {}", self.1);
    }
    fn set(&self, value: f64) {
        Metric::set(self, value);
    }
}

impl Kept {
    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        Arc::new(Metric(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn describe(&self, key: &KeyName, unit: Option<Unit>) {
        self.described.lock().unwrap().insert(key.as_str().to_owned(), unit);
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, unit);
    }
    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("no histograms: {key:?}");
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("no histograms: {key:?}");
    }
}

#[test]
fn an_export_publishes_every_number_once_with_its_labels() {
    let harness = FakeHarness::wrapped(true, |fake, _| StatisticsLayer::new().layer(fake));
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let keys = resource.allocate(1000, x, AllocTag::new("keys")).unwrap();
    let plain = resource.allocate(24, x, AllocTag::UNTAGGED).unwrap();
    resource.deallocate(keys).unwrap();
    resource.allocate(0, x, AllocTag::new("keys")).unwrap_err();

    let recorder = Kept::default();
    metrics::with_local_recorder(&recorder, || {
        describe_metrics();
        resource.export("tenant 1");
        resource.export("tenant 1");
    });

    let values = recorder.values.lock().unwrap().clone();
    let all = "resource=tenant 1,device=0";
    let expected = [
        (format!("dmr_allocated_bytes_total{{{all}}}"), 1024.0),
        (format!("dmr_allocation_failures_total{{{all}}}"), 1.0),
        (format!("dmr_allocations_total{{{all}}}"), 2.0),
        (format!("dmr_blocks{{{all}}}"), 1.0),
        (format!("dmr_bytes_peak{{{all}}}"), 1024.0),
        (format!("dmr_bytes_reserved{{{all}}}"), 1280.0),
        (format!("dmr_bytes_retired{{{all}}}"), 1000.0),
        (format!("dmr_bytes{{{all}}}"), 24.0),
        (format!("dmr_frees_total{{{all}}}"), 1.0),
        (format!("dmr_tag_allocated_bytes_total{{{all},tag=keys}}"), 1000.0),
        (format!("dmr_tag_allocated_bytes_total{{{all},tag=untagged}}"), 24.0),
        (format!("dmr_tag_allocation_failures_total{{{all},tag=keys}}"), 1.0),
        (format!("dmr_tag_allocation_failures_total{{{all},tag=untagged}}"), 0.0),
        (format!("dmr_tag_allocations_total{{{all},tag=keys}}"), 1.0),
        (format!("dmr_tag_allocations_total{{{all},tag=untagged}}"), 1.0),
        (format!("dmr_tag_blocks{{{all},tag=keys}}"), 0.0),
        (format!("dmr_tag_blocks{{{all},tag=untagged}}"), 1.0),
        (format!("dmr_tag_bytes_peak{{{all},tag=keys}}"), 1000.0),
        (format!("dmr_tag_bytes_peak{{{all},tag=untagged}}"), 24.0),
        (format!("dmr_tag_bytes{{{all},tag=keys}}"), 0.0),
        (format!("dmr_tag_bytes{{{all},tag=untagged}}"), 24.0),
        (format!("dmr_tag_frees_total{{{all},tag=keys}}"), 1.0),
        (format!("dmr_tag_frees_total{{{all},tag=untagged}}"), 0.0),
    ];
    assert_eq!(values, BTreeMap::from(expected));

    let described = recorder.described.lock().unwrap().clone();
    for metric in values.keys() {
        let name = metric.split('{').next().unwrap();
        let unit = if name.contains("bytes") { Unit::Bytes } else { Unit::Count };
        assert_eq!(described.get(name), Some(&Some(unit)), "{name}");
    }
    resource.deallocate(plain).unwrap();
}
