//! Rows are read as they were written.

use dmr_core::record::{Failure, MAX_MESSAGE_LEN, RecordAction};
use dmr_core::{AllocTag, AllocationRecord};
use dmr_trace::{RecordWriter, TraceReader};
use proptest::prelude::*;

fn written(records: &[AllocationRecord]) -> Vec<u8> {
    let mut writer = RecordWriter::new(Vec::new()).unwrap();
    for record in records {
        writer.write(record).unwrap();
    }
    writer.flush().unwrap();
    writer.into_inner()
}

fn read(bytes: Vec<u8>) -> Vec<AllocationRecord> {
    let mut reader = TraceReader::new("written", std::io::Cursor::new(bytes)).unwrap();
    let records = reader.by_ref().map(|row| row.unwrap().record).collect();
    assert_eq!(reader.bad_rows().first, []);
    records
}

fn record() -> impl Strategy<Value = AllocationRecord> {
    let action = prop_oneof![
        Just(RecordAction::Allocate),
        Just(RecordAction::Deallocate),
        Just(RecordAction::Grow),
        Just(RecordAction::Reap)
    ];
    let failure = proptest::option::of((0..Failure::KINDS.len(), "[^\r\n]{0,80}"));
    let numbers = (any::<[u64; 7]>(), any::<u32>());
    (action, numbers, "[^\r\n]{0,40}", failure).prop_map(
        |(
            action,
            ([order, time_ns, thread, ptr, bytes, stream, query_id], device),
            tag,
            failure,
        )| {
            AllocationRecord {
                order,
                time_ns,
                thread,
                action,
                ptr,
                bytes,
                stream,
                device,
                tag: AllocTag::intern(&tag),
                query_id,
                generation: order ^ ptr,
                failure: failure.map(|(kind, message)| {
                    Box::new(Failure::new(Failure::KINDS[kind], message.trim()))
                }),
            }
        },
    )
}

proptest! {
    #[test]
    fn any_records_come_back_as_they_were_written_sorted_by_order(
        mut records in proptest::collection::vec(record(), 0..20),
    ) {
        let read = read(written(&records));
        records.sort_by_key(|record| record.order);
        prop_assert_eq!(read, records);
    }
}

#[test]
fn a_line_break_in_a_tag_or_a_message_becomes_a_space_so_that_a_row_stays_a_line() {
    let record = AllocationRecord {
        order: 0,
        time_ns: 0,
        thread: 0,
        action: RecordAction::Allocate,
        ptr: 1,
        bytes: 1,
        stream: 0,
        device: 0,
        tag: AllocTag::new("two\nlines"),
        query_id: 0,
        generation: 0,
        failure: Some(Box::new(Failure::new("driver", "one\r\nmore"))),
    };
    let back = read(written(&[record]));
    assert_eq!(back[0].tag.name(), "two lines");
    assert_eq!(&*back[0].failure.as_ref().unwrap().message, "one  more");
}

#[test]
fn the_longest_texts_make_a_line_that_can_be_read() {
    let endless: &'static str = Box::leak("\"".repeat(1 << 20).into_boxed_str());
    let record = AllocationRecord {
        order: u64::MAX,
        time_ns: u64::MAX,
        thread: u64::MAX,
        action: RecordAction::Allocate,
        ptr: u64::MAX,
        bytes: u64::MAX,
        stream: u64::MAX,
        device: u32::MAX,
        tag: AllocTag::new(endless),
        query_id: u64::MAX,
        generation: u64::MAX,
        failure: Some(Box::new(Failure { kind: "driver", message: endless.into() })),
    };
    let back = read(written(&[record]));
    assert_eq!(back[0].tag.name().len(), AllocTag::MAX_LEN);
    assert_eq!(back[0].failure.as_ref().unwrap().message.len(), MAX_MESSAGE_LEN);
}
