//! W4: a recorded trace, in file order.

use std::collections::HashMap;
use std::path::Path;

use dmr_core::record::RecordAction;
use dmr_trace::{TraceError, TraceReader};

use super::Sequence;

/// Reads the allocations and frees of a trace. A block that grew is freed and allocated again.
/// Frees and growths without an allocation are left out, and so are calls that failed when they
/// were recorded.
///
/// # Errors
///
/// A file that is no trace.
pub fn from_trace(path: &Path) -> Result<Sequence, TraceError> {
    let mut sequence = Sequence::default();
    let mut streams = HashMap::new();
    let mut live: HashMap<u64, (usize, u64)> = HashMap::new();
    for row in TraceReader::open(path)? {
        let record = row?.record;
        if record.failure.is_some() {
            continue;
        }
        let next = streams.len();
        let stream = *streams.entry(record.stream).or_insert(next);
        match record.action {
            RecordAction::Allocate if record.bytes > 0 => {
                let slot = sequence.allocate(record.bytes, stream);
                live.insert(record.ptr, (slot, record.bytes));
            }
            RecordAction::Deallocate => {
                if let Some((slot, bytes)) = live.remove(&record.ptr) {
                    sequence.free(slot, bytes, stream, slot as u64);
                }
            }
            RecordAction::Grow => {
                if let Some((slot, bytes)) = live.remove(&record.ptr) {
                    sequence.free(slot, bytes, stream, slot as u64);
                    let slot = sequence.allocate(record.bytes, stream);
                    live.insert(record.ptr, (slot, record.bytes));
                }
            }
            _ => {}
        }
    }
    sequence.streams = streams.len();
    Ok(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_and_unmatched_frees_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        let rows = "action,ptr,bytes,stream\nallocate,1,16,7\nallocate,2,32,9\nfree,3,,7\n\
                    free,1,,7\nallocate,1,64,9\n";
        std::fs::write(&path, rows).unwrap();
        let sequence = from_trace(&path).unwrap();
        let ops: Vec<_> =
            sequence.ops.iter().map(|op| (op.allocates, op.bytes, op.slot, op.stream)).collect();
        assert_eq!(ops, [(true, 16, 0, 0), (true, 32, 1, 1), (false, 16, 0, 0), (true, 64, 0, 1)]);
        assert_eq!((sequence.streams, sequence.peak_live, sequence.peak_at), (2, 96, 3));
    }
}
