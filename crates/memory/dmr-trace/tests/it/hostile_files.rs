//! Files that are no trace, or stop being one: an error with the file and the line, no panic.

use std::io::{self, Read, Write};

use dmr_trace::{TraceError, TraceReader};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

/// Reads to the end or to the error.
fn read(bytes: impl Read + Send + 'static) -> (u64, u64, Option<TraceError>) {
    let mut reader = match TraceReader::new("bad.csv", bytes) {
        Ok(reader) => reader,
        Err(error) => return (0, 0, Some(error)),
    };
    let mut error = None;
    for row in reader.by_ref() {
        error = row.err();
    }
    assert!(reader.next().is_none(), "nothing comes after the end");
    (reader.rows(), reader.bad_rows().count, error)
}

fn message(bytes: impl Read + Send + 'static) -> String {
    read(bytes).2.expect("an error").to_string()
}

fn valid(rows: u64) -> String {
    let rows = (0..rows).map(|n| format!("{n},allocate,{n:#x},{},0,ok\n", n * 7919 % 65_536 + 1));
    String::from("time_ns,action,ptr,bytes,stream,tag\n") + &rows.collect::<String>()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn a_truncated_gzip_file_is_an_error_that_names_the_line_in_which_it_breaks() {
    let whole = gzip(valid(20_000).as_bytes());
    let half = whole[..whole.len() / 2].to_vec();
    let (rows, bad, error) = read(io::Cursor::new(half));
    let Some(TraceError::Read { line, source, .. }) = error else { panic!("{error:?}") };
    assert_eq!((source.kind(), bad), (io::ErrorKind::UnexpectedEof, 0));
    assert!((1000..20_000).contains(&rows), "{rows}");
    assert_eq!(line, rows + 2, "the header is line 1, the row that breaks is the next");
}

#[test]
fn a_corrupt_gzip_file_is_an_error() {
    let mut bytes = gzip(valid(20_000).as_bytes());
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xaa);
    assert!(message(io::Cursor::new(bytes)).starts_with("bad.csv: line "));
    let mut trailing = gzip(valid(3).as_bytes());
    trailing.extend_from_slice(b"not gzip");
    assert!(message(io::Cursor::new(trailing)).starts_with("bad.csv: line 5: cannot be read"));
}

#[test]
fn an_empty_file_and_one_without_header_say_what_is_missing() {
    for empty in ["", "\n\n", "# only a comment\n"] {
        assert!(message(empty.as_bytes()).contains("empty"), "{empty:?}");
    }
    assert_eq!(
        message(&b"0,allocate,0x1,5\n"[..]),
        "bad.csv: line 1: no column \"action\" (needed are action, ptr and bytes); the header is \
         \"0,allocate,0x1,5\""
    );
    assert!(message(&b"action,ptr\n"[..]).contains("no column \"bytes\""));
    assert!(message(&b"action,ptr,pointer,bytes\n"[..]).contains("two columns are named \"ptr\""));
    assert!(message(&b"action,\"ptr,bytes\n"[..]).contains("not a row of CSV"));
    assert!(message(io::Cursor::new(",".repeat(5000))).contains("more than 256 columns"));
}

#[test]
fn a_binary_file_is_an_error_with_a_short_readable_message() {
    let bytes: Vec<u8> =
        (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let message = message(io::Cursor::new(bytes));
    assert!(message.starts_with("bad.csv: line ") && message.len() < 400, "{message}");
    assert!(message.chars().all(|c| !c.is_control()), "{message}");
}

#[test]
fn a_line_of_ten_gigabytes_is_refused_after_64_kib() {
    let endless = valid(3).into_bytes();
    let bytes = io::Cursor::new(endless).chain(io::repeat(b'x').take(10 << 30));
    let message = message(bytes);
    assert_eq!(message, "bad.csv: line 5: longer than 65536 bytes: this is not a trace");
    assert!(matches!(
        read(io::repeat(b'a').take(10 << 30)).2,
        Some(TraceError::LineTooLong { .. })
    ));
}

#[test]
fn a_line_of_exactly_64_kib_is_read_and_one_byte_more_is_not() {
    for line_end in ["", "\n", "\r\n"] {
        let row = |length: usize| {
            let start = "action,ptr,bytes,x\nfree,1,1,";
            let limit = length - "free,1,1,".len() - usize::from(line_end == "\r\n");
            io::Cursor::new(format!("{start}{}{line_end}", "y".repeat(limit)))
        };
        let (rows, bad, error) = read(row(65_536));
        assert!(error.is_none() && (rows, bad) == (1, 0), "{line_end:?}");
        let error = read(row(65_537)).2;
        assert!(matches!(error, Some(TraceError::LineTooLong { line: 2, .. })), "{line_end:?}");
    }
}

#[test]
fn a_gzip_bomb_is_refused_at_its_first_line() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    io::copy(&mut io::repeat(0).take(256 << 20), &mut gzip).unwrap();
    let bomb = gzip.finish().unwrap();
    let error = read(io::Cursor::new(bomb)).2;
    assert!(matches!(error, Some(TraceError::LineTooLong { line: 1, .. })), "{error:?}");
}

#[test]
fn an_io_error_names_the_line() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let message = message(io::Cursor::new(valid(2).into_bytes()).chain(Broken));
    assert_eq!(message, "bad.csv: line 4: cannot be read any further: the disk is gone");
    let folder = tempfile::tempdir().unwrap();
    let missing = TraceReader::open(folder.path().join("none.csv")).unwrap_err().to_string();
    assert!(missing.contains("none.csv: cannot be opened"), "{missing}");
    assert!(TraceReader::open(folder.path()).is_err(), "a folder is no trace");
}

#[test]
fn nul_bytes_are_bad_rows_and_the_rows_after_them_are_read() {
    let text = valid(2) + "\0\0\0\0\n7,allocate,0x7,7,0,\0\n";
    let (rows, bad, error) = read(io::Cursor::new(text));
    assert_eq!((rows, bad), (4, 1));
    assert!(error.is_none());
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        read(io::Cursor::new(bytes));
    }

    #[test]
    fn random_bytes_after_a_header_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        read(io::Cursor::new([valid(1).into_bytes(), bytes].concat()));
    }

    #[test]
    fn rows_of_the_format_s_own_characters_never_panic(
        text in "[0-9xa-f,\"\r\n:.# \u{feff}-]{0,400}",
        rmm in any::<bool>(),
    ) {
        let header = if rmm { "Thread,Time,Action,Pointer,Size,Stream\n" } else { "action,ptr,bytes\n" };
        let (rows, bad, error) = read(io::Cursor::new(format!("{header}{text}")));
        prop_assert!(bad <= rows);
        prop_assert!(error.is_none());
    }

    #[test]
    fn a_mutated_trace_never_panics_plain_or_gzip(
        mutations in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
        as_gzip in any::<bool>(),
    ) {
        let mut bytes = valid(50).into_bytes();
        if as_gzip {
            bytes = gzip(&bytes);
        }
        for (at, byte) in mutations {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        read(io::Cursor::new(bytes));
    }
}
