//! The log's CSV, and RMM's log.

use std::path::Path;

use dmr_core::record::{AllocationRecord, RecordAction};
use dmr_trace::TraceReader;

use crate::builder::{Allocation, Builder};
use crate::error::ReportError;
use crate::model::{Model, Refusal, Source};

/// Marks the key of a block that has a generation, which is no address.
const GENERATION: u64 = 1 << 63;

/// Reads a log in the order of its calls. Rows after one that breaks off are left out.
pub(super) fn read(path: &Path, source: Source) -> Result<Model, ReportError> {
    let mut reader = TraceReader::open(path)?;
    let mut builder = Builder::new(Source { has_addresses: true, ..source });
    let mut devices = Vec::new();
    let mut broken_off = String::new();
    for row in reader.by_ref() {
        match row {
            Ok(row) => {
                if devices.len() < 2 && !devices.contains(&row.record.device) {
                    devices.push(row.record.device);
                }
                add(&mut builder, &row.record)?;
            }
            Err(error) => broken_off = error.to_string(),
        }
    }
    let model = builder.model();
    let bad = reader.bad_rows();
    model.flaws.bad_rows = bad.count;
    model.flaws.first_bad_row = bad.first.first().map(ToString::to_string).unwrap_or_default();
    model.flaws.broken_off = broken_off;
    if let [device] = devices[..] {
        model.source.device = Some(device);
    }
    Ok(builder.finish())
}

fn add(builder: &mut Builder, row: &AllocationRecord) -> Result<(), ReportError> {
    let key = if row.generation == 0 { row.ptr } else { row.generation | GENERATION };
    let block = Allocation {
        key,
        address: row.ptr,
        bytes: row.bytes,
        stream: row.stream,
        tag: row.tag.name(),
        query: row.query_id,
        ..Allocation::default()
    };
    match (row.action, &row.failure) {
        (RecordAction::Allocate, None) => builder.allocate(row.time_ns, &block).map(|_| ()),
        (RecordAction::Deallocate, None) => builder.free(row.time_ns, &block),
        (RecordAction::Grow, None) => builder.grow(row.time_ns, &block),
        (RecordAction::Allocate | RecordAction::Grow, Some(failure)) => {
            let stream = builder.stream(row.stream);
            let tag = builder.model().names.intern(row.tag.name());
            let refused_by = match &*failure.message {
                "" => failure.kind.replace('_', " "),
                message => message.to_owned(),
            };
            let refusal =
                Refusal { bytes: row.bytes, stream, tag, refused_by, limit: 0, device_free: None };
            builder.refuse(row.time_ns, refusal)
        }
        _ => Ok(()),
    }
}
