//! Files of each format are read, and wrong ones are errors that name the byte or the line.

use dmr_report::analysis::peak::{by_tag, peak};
use proptest::prelude::*;

use crate::support::{error, open};

#[test]
fn a_log_of_rmm_is_read() {
    let model = open(
        b"Thread,Time,Action,Pointer,Size,Stream\n1,00:00:01.000001,allocate,0x1000,256,0x0\n\
          1,00:00:02.000001,free,0x1000,256,0x0\n",
    );
    assert_eq!(peak(&model).bytes, 256);
    assert_eq!(model.events.since_start(1), 1_000_000_000);
}

#[test]
fn a_failed_call_of_a_log_is_a_request_that_failed() {
    let model = open(
        b"action,ptr,bytes,stream,tag,result,message\nallocate,0x1000,64,0,a,ok,\n\
          allocate,,4096,3,b,out_of_budget,the budget `x` has 10 bytes left\n",
    );
    let refusal = &model.refusals[0];
    assert_eq!(refusal.bytes, 4096);
    assert_eq!(refusal.refused_by, "the budget `x` has 10 bytes left");
    assert_eq!(model.streams[refusal.stream as usize].to_string(), "stream 3");
}

#[test]
fn ids_are_no_addresses() {
    let rows = b"action,ptr,bytes\nallocate,0x1,100\nallocate,0x2,100\nfree,0x1,\n";
    assert!(!open(rows).source.has_addresses);
    let rows = b"action,ptr,bytes\nallocate,0x1000,100\nallocate,0x2000,100\nfree,0x1000,\n";
    assert!(open(rows).source.has_addresses);
}

#[test]
fn a_block_that_grows_is_one_that_ends_and_one_that_begins_there() {
    let model =
        open(b"action,ptr,bytes,tag\nallocate,0x1000,100,a\ngrow,0x1000,300,a\nfree,0x1000,,a\n");
    assert_eq!(model.blocks.bytes, [100, 300]);
    assert_eq!(peak(&model).bytes, 300);
    assert_eq!(model.flaws.lost_frees, 0);
}

#[test]
fn a_snapshot_that_python_has_written_is_read_with_its_frames() {
    let model = open(include_bytes!("../files/snapshot.pickle"));
    let peak = peak(&model);
    // 6 MiB were allocated; 1 MiB, and 3 of which 512 bytes were not requested, were there before.
    assert_eq!(peak.bytes, (10 << 20) - 512);
    let shares = by_tag(&model, peak.event);
    assert_eq!(model.names.get(shares[0].of as u32), "train.py:41 step");
    assert_eq!(shares[0].bytes, (7 << 20) - 512);
    assert_eq!(model.refusals[0].device_free, Some(8 << 20));
    assert_eq!(model.spans.len(), 1);
}

#[test]
fn memory_of_a_backward_pass_has_the_name_of_its_operator() {
    // Written by Python's pickle; the frames are those of an H200, with no line of Python.
    let model = open(include_bytes!("../files/backward.pickle"));
    let peak = peak(&model);
    let shares = by_tag(&model, peak.event);
    assert_eq!(model.names.get(shares[0].of as u32), "nll_loss_backward");
}

#[test]
fn a_wrong_file_is_an_error_that_names_the_place() {
    for (content, expected) in [
        (&b"\x80\x04cos\nsystem\n."[..], "byte 2: opcode 0x63 makes an object of a class"),
        (b"\x80\x02}(X\x04\0\0\0nameX\x01\0\0\0xu.", "byte 0: a pickle of something else"),
        (b"\x80\x02}(X\xff\0\0\0name", "byte 4: the file ends within this opcode"),
        (b"\0\0\0\0", "byte 0: neither a recording, a log"),
        (b"thing,other\n1,2\n", "line 1: no column \"action\""),
        (b"finding,kind\n", "line 1: the columns are"),
        (b"\x89dmrec\r\n\x09\0\0\0", "byte "),
    ] {
        let error = error(content);
        assert!(error.contains(expected), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        start in proptest::sample::select(vec![
            &b""[..], b"\x80\x04", b"\x89dmrec\r\n", b"action,ptr,bytes\n", b"finding,",
            b"\x1F\x8B",
        ]),
        rest in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [start, &rest].concat()).unwrap();
        if let Ok(model) = dmr_report::open(&path) {
            let _ = dmr_report::text::report(&model);
            dmr_report::page::write(&model, Vec::new()).unwrap();
        }
    }
}
