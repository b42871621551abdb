//! Files of records.

use dmr_recording::{Record, Writer};

use crate::support::{TEXTS, start};

/// Returns a file of these records, in chunks of about `per_chunk` records.
pub(crate) fn file(records: &[Record], per_chunk: usize) -> Vec<u8> {
    let mut writer = Writer::with_names(Vec::new(), &start(), "test clock", "program").unwrap();
    for text in TEXTS {
        writer.intern(text);
    }
    for chunk in records.chunks(per_chunk) {
        for record in chunk {
            writer.write(record).unwrap();
        }
        writer.flush().unwrap();
    }
    writer.finish().unwrap()
}
