//! Measurements that are complete only later, such as the length of a wait: their owner looks for
//! them when a recording is written on request, and when the recorder stops.

use std::sync::Weak;

use dmr_core::process::PerProcess;

use crate::sources::Sources;

/// An owner of measurements that the device has not completed.
pub trait LateEvents: Send + Sync {
    /// Records those that are complete, without waiting for the device; while the recorder is off,
    /// discards all of them.
    fn collect(&self);
}

static SOURCES: PerProcess<Sources<dyn LateEvents>> = PerProcess::new(Sources::default);

/// Registers measurements, as long as their owner lives.
pub fn register_late_events(source: Weak<dyn LateEvents>) {
    SOURCES.get().register(source);
}

/// Makes all owners record what is complete.
pub(crate) fn collect() {
    for source in SOURCES.get().live() {
        source.collect();
    }
}
