//! The formats that are read: columns by header, RMM's log, plain and gzip.

use std::io::Write;

use dmr_core::record::RecordAction;
use dmr_core::{AllocTag, AllocationRecord};
use dmr_trace::TraceReader;
use flate2::Compression;
use flate2::write::GzEncoder;

fn records(text: impl AsRef<[u8]>) -> Vec<AllocationRecord> {
    let bytes = std::io::Cursor::new(text.as_ref().to_vec());
    let reader = TraceReader::new("test", bytes).unwrap();
    reader.map(|row| row.unwrap().record).collect()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

const TRACE: &str = "\
thread,time_ns,action,ptr,bytes,stream,device,tag,query_id
3,17,allocate,0xa0,4096,2,1,\"join, build\",9
3,18,free,0xa0,4096,2,1,,9
";

#[test]
fn a_recorded_trace_has_all_its_columns() {
    let expected = AllocationRecord {
        order: 0,
        time_ns: 17,
        thread: 3,
        action: RecordAction::Allocate,
        ptr: 0xa0,
        bytes: 4096,
        stream: 2,
        device: 1,
        tag: AllocTag::new("join, build"),
        query_id: 9,
        generation: 0,
        failure: None,
    };
    let records = records(TRACE);
    assert_eq!(records[0], expected);
    assert_eq!(records[1].action, RecordAction::Deallocate);
    assert_eq!((records[1].order, records[1].tag), (1, AllocTag::UNTAGGED));
}

#[test]
fn columns_are_found_by_name_in_any_order_and_unknown_ones_are_passed_over() {
    let records =
        records("colour,Bytes, PTR ,note,ACTION\nred,64,7,\"a\"\"b\",Alloc\nred,,7,,FREE\n");
    assert_eq!((records[0].ptr, records[0].bytes, records[0].stream), (7, 64, 0));
    assert_eq!(records[0].action, RecordAction::Allocate);
    assert_eq!((records[1].ptr, records[1].bytes), (7, 0));
}

#[test]
fn the_log_of_rmm_is_read() {
    let records = records(
        "Thread,Time,Action,Pointer,Size,Stream\n\
         140,23:59:59.000001,allocate,0x7f0000000000,256,0x2\n\
         140,23:59:59.5,allocate failure,(nil),99999999999,0\n\
         140,00:00:01.000000,free,0x7f0000000000,256,0x2\n",
    );
    let [allocate, failure, free] = &records[..] else { panic!("{records:?}") };
    assert_eq!((allocate.ptr, allocate.bytes), (0x7f00_0000_0000, 256));
    assert_eq!((allocate.stream, allocate.thread), (2, 140));
    assert!(failure.failure.is_some());
    assert_eq!(free.time_ns - allocate.time_ns, 1_999_999_000, "midnight lies between");
}

#[test]
fn gzip_is_known_by_its_first_bytes_and_several_members_are_one_file() {
    assert_eq!(records(gzip(TRACE)), records(TRACE));
    let (first, second) = TRACE.split_at(70);
    assert_eq!(records([gzip(first), gzip(second)].concat()), records(TRACE));

    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("plain.csv.gz", TRACE.as_bytes().to_vec()), ("t.csv", gzip(TRACE))] {
        let path = folder.path().join(name);
        std::fs::write(&path, &content).unwrap();
        let mut reader = TraceReader::open(&path).unwrap();
        assert_eq!(reader.by_ref().count(), 2, "{name}");
        assert_eq!(reader.bytes_total(), Some(content.len() as u64));
        assert_eq!(reader.bytes_read(), content.len() as u64);
    }
}

#[test]
fn line_ends_marks_comments_and_blank_lines_make_no_difference() {
    let windows = format!("\u{feff}# a comment\r\n\r\n{}", TRACE.replace('\n', "\r\n"));
    assert_eq!(records(windows), records(TRACE));
    assert_eq!(records(TRACE.trim_end()), records(TRACE), "no line end after the last row");
}

#[test]
fn a_row_that_cannot_be_read_is_counted_with_its_line_and_its_reason() {
    let text = "action,ptr,bytes,device,tag\n\
                allocate,0x1,-5,0,\n\
                allocate,0x1,99999999999999999999,0,\n\
                allocate,zz,1,0,\n\
                explode,0x1,1,0,\n\
                allocate,0x1,1,0\n\
                allocate,0x1,1,0,a,b\n\
                allocate,0x1,1,4294967296,\n\
                allocate,0x1,1,0,\"open\n\
                allocate,0x1,1,0,a\rb\n\
                allocate,,1,0,\n\
                allocate,0x1,1,0,fine\n";
    let mut reader = TraceReader::new("test", text.as_bytes()).unwrap();
    let good: Vec<_> = reader.by_ref().map(|row| row.unwrap().line).collect();
    let bad: Vec<_> = reader.bad_rows().first.iter().map(ToString::to_string).collect();
    assert_eq!(good, [12]);
    assert_eq!(
        bad,
        [
            "line 2: bytes is \"-5\", not a number in range",
            "line 3: bytes is \"99999999999999999999\", not a number in range",
            "line 4: ptr is \"zz\", not a number in range",
            "line 5: the action is \"explode\", neither allocate, free, grow nor reap",
            "line 6: the header has 5 columns, this row does not",
            "line 7: the header has 5 columns, this row does not",
            "line 8: device is \"4294967296\", not a number in range",
            "line 9: a quote is not closed",
            "line 10: a line break inside the row",
            "line 11: ptr is \"\", not a number in range",
        ]
    );
    assert_eq!((reader.rows(), reader.bad_rows().count), (11, 10));
}

#[test]
fn a_row_that_is_not_utf8_is_a_bad_row() {
    let text = b"action,ptr,bytes,tag\nallocate,1,1,\xff\xfe\nallocate,2,1,ok\n";
    let mut reader = TraceReader::new("test", &text[..]).unwrap();
    assert_eq!(reader.by_ref().map(|row| row.unwrap().record.ptr).collect::<Vec<_>>(), [2]);
    assert_eq!(reader.bad_rows().first[0].to_string(), "line 2: tag is not UTF-8");
}
