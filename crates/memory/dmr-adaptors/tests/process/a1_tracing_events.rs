//! A1: the sink that emits `tracing` events says what the record says, at the level it deserves.

#![cfg(feature = "tracing")]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use crate::a1::Recycler;
use dmr_adaptors::logging::{LoggingResource, TracingSink, with_query};
use dmr_core::{AllocTag, DeviceMemoryResource};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps events of our target as lines of text.
struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dmr::alloc"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

#[test]
fn each_call_is_an_event_with_the_columns_of_a_row() {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let resource = LoggingResource::new(Recycler::new(), Arc::new(TracingSink));
    let stream = resource.upstream().stream(6);
    tracing::subscriber::set_global_default(Lines(Arc::clone(&lines))).unwrap();
    let block = with_query(8, || resource.allocate(10, stream, AllocTag::new("t"))).unwrap();
    let generation = block.generation().get();
    resource.deallocate(block).unwrap();
    resource.try_reap().unwrap();
    resource.reap_pending().unwrap_err();
    let block = "ptr=0x1000 bytes=10 stream=6 device=3 tag=\"t\"";
    let none = "stream=0 device=3 tag=\"\" query_id=0 generation=0";
    let failed = "cuMemFree failed on device 3: CUDA_ERROR_INVALID_VALUE (1); retry; if it fails again, look the code up in the documentation of the CUDA driver";
    let expected = [
        format!(
            "TRACE action=\"allocate\" {block} query_id=8 generation={generation} result=\"ok\""
        ),
        format!("TRACE action=\"free\" {block} query_id=0 generation={generation} result=\"ok\""),
        format!("DEBUG action=\"reap\" ptr=0x0 bytes=17 {none} result=\"ok\""),
        format!("WARN message={failed} action=\"reap\" ptr=0x0 bytes=0 {none} result=\"driver\""),
    ];
    let mut lines = std::mem::take(&mut *lines.lock().unwrap());
    // Where the message stands among the fields is tracing's affair.
    if let Some(line) = lines.last_mut() {
        *line = line.replace(&format!(" message={failed}"), "");
        line.insert_str("WARN".len(), &format!(" message={failed}"));
    }
    assert_eq!(lines, expected);
}
