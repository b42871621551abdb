//! A trace with a column `order` is read in that order, however its rows are written, in bounded
//! memory.

use std::collections::HashMap;
use std::io::{Cursor, Write};

use dmr_core::record::RecordAction;
use dmr_core::{AllocTag, AllocationRecord};
use dmr_trace::{RecordWriter, TraceError, TraceReader, TraceRow};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use proptest::sample::Index;

fn reader(text: impl Into<Vec<u8>>) -> TraceReader {
    TraceReader::new("log", Cursor::new(text.into())).unwrap()
}

fn rows(text: impl Into<Vec<u8>>) -> Vec<TraceRow> {
    reader(text).map(Result::unwrap).collect()
}

fn lines(rows: &[TraceRow]) -> Vec<u64> {
    rows.iter().map(|row| row.line).collect()
}

#[test]
fn rows_are_sorted_by_order_and_keep_their_lines() {
    let text = "order,action,ptr,bytes\n\
                30,free,0x1,\n\
                10,allocate,0x1,64\n\
                # a comment\n\
                nonsense\n\
                20,grow,0x1,96\n";
    let mut reader = reader(text);
    let rows: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(lines(&rows), [3, 6, 2]);
    assert_eq!(rows.iter().map(|row| row.record.bytes).collect::<Vec<_>>(), [64, 96, 0]);
    assert_eq!((reader.rows(), reader.bad_rows().first[0].line), (4, 5));
}

#[test]
fn rows_of_one_order_and_rows_without_the_column_stay_as_they_stand() {
    let text = "order,action,ptr,bytes\n7,free,0x3,\n7,free,0x1,\n5,free,0x9,\n7,free,0x2,\n";
    assert_eq!(lines(&rows(text)), [4, 2, 3, 5]);
    let text = "time_ns,action,ptr,bytes\n9,free,0x3,\n7,free,0x1,\n8,free,0x9,\n";
    assert_eq!(lines(&rows(text)), [2, 3, 4]);
}

/// More rows, more bytes and longer lines than fit into a run, a buffer and the part that stays in
/// memory.
#[test]
fn a_log_that_does_not_fit_into_memory_is_sorted_in_a_file() {
    const ROWS: u64 = 1 << 18;
    // An odd factor permutes the numbers below a power of two.
    let order = |row: u64| row * 0x9e37_79b1 % ROWS;
    let long = "x".repeat(60_000);
    let mut text = Vec::from("action,ptr,bytes,tag,order,comment\n");
    for row in 0..ROWS {
        let comment = if row % 2000 == 0 {
            &long[..]
        } else {
            "a comment that makes the rows longer than the part in memory"
        };
        let order = order(row);
        writeln!(text, "allocate,{row},{},tag,{order},{comment}", row % 77 + 1).unwrap();
    }
    assert!(text.len() > 24 << 20);
    let mut seen = 0;
    for (row, expected) in reader(text).map(Result::unwrap).zip(0..) {
        let ptr = row.record.ptr;
        let record = row.record;
        assert_eq!((record.order, order(ptr)), (expected, expected));
        assert_eq!((row.line, record.bytes), (ptr + 2, ptr % 77 + 1));
        seen += 1;
    }
    assert_eq!(seen, ROWS);
}

#[test]
fn the_rows_of_a_log_that_breaks_off_come_sorted_before_the_error() {
    let rows: String = (0..5000).map(|n| format!("{},free,{n},\n", 10_000 - n)).collect();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(format!("order,action,ptr,bytes\n{rows}").as_bytes()).unwrap();
    let whole = gzip.finish().unwrap();
    let mut reader = reader(&whole[..whole.len() / 2]);
    let mut orders = Vec::new();
    let error = loop {
        match reader.next().expect("an error") {
            Ok(row) => orders.push(row.record.order),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TraceError::Read { .. }), "{error}");
    assert!(orders.len() > 1000 && orders.is_sorted() && orders.last() == Some(&10_000));
    assert!(reader.next().is_none());
}

/// A block's way through a program: the thread that allocates it, the thread that frees it, and how
/// many calls of other blocks are between.
type Life = (usize, usize, Index);

const THREADS: usize = 4;

/// The calls of a program in the order in which they took place, with addresses that are reused at
/// once.
fn program(lives: &[Life]) -> Vec<AllocationRecord> {
    let mut events: Vec<(usize, RecordAction, usize)> = Vec::new();
    for (block, (allocates, frees, at)) in lives.iter().enumerate() {
        let at = at.index(events.len() + 1);
        events.insert(at, (*allocates, RecordAction::Allocate, block));
        let at = at + 1 + (block * 7919) % (events.len() - at);
        events.insert(at, (*frees, RecordAction::Deallocate, block));
    }
    let mut free = Vec::new();
    let mut addresses = HashMap::new();
    let mut calls = Vec::new();
    for ((thread, action, block), order) in events.into_iter().zip(1_000..) {
        let ptr = match action {
            RecordAction::Allocate => {
                let ptr = free.pop().unwrap_or(0x1000 * (addresses.len() as u64 + 1));
                addresses.insert(block, ptr);
                ptr
            }
            _ => {
                free.push(addresses[&block]);
                addresses[&block]
            }
        };
        calls.push(AllocationRecord {
            order,
            time_ns: order,
            thread: thread as u64,
            action,
            ptr,
            bytes: 64,
            stream: 0,
            device: 0,
            tag: AllocTag::UNTAGGED,
            query_id: 0,
            generation: block as u64 + 1,
            failure: None,
        });
    }
    calls
}

proptest! {
    /// The rows of a thread are pushed in any order (those of calls inside a call come before its
    /// own), and those of several threads are written in turns of any length.
    #[test]
    fn the_rows_of_threads_written_in_turns_sort_into_the_order_of_the_calls(
        lives in proptest::collection::vec((0..THREADS, 0..THREADS, any::<Index>()), 1..60),
        late in proptest::collection::vec((any::<Index>(), any::<Index>()), 0..20),
        turns in proptest::collection::vec((0..THREADS, 1..9_usize), 0..40),
    ) {
        let calls = program(&lives);
        let mut lanes: [Vec<_>; THREADS] = Default::default();
        for call in &calls {
            lanes[call.thread as usize].push(call.clone());
        }
        for (nth, (from, to)) in late.iter().enumerate() {
            let lane = &mut lanes[nth % THREADS];
            if !lane.is_empty() {
                let call = lane.remove(from.index(lane.len()));
                lane.insert(to.index(lane.len() + 1), call);
            }
        }
        let mut log = RecordWriter::new(Vec::new()).unwrap();
        let last_turns = (0..THREADS).map(|thread| (thread, usize::MAX));
        for (thread, rows) in turns.into_iter().chain(last_turns) {
            let lane = &mut lanes[thread];
            for call in lane.drain(..rows.min(lane.len())) {
                log.write(&call).unwrap();
            }
        }
        let sorted: Vec<_> = rows(log.into_inner()).into_iter().map(|row| row.record).collect();
        prop_assert_eq!(&sorted, &calls);
        let mut live = HashMap::new();
        for row in sorted {
            let was_live = match row.action {
                RecordAction::Allocate => live.insert(row.ptr, row.generation),
                _ => live.remove(&row.ptr).filter(|generation| *generation != row.generation),
            };
            prop_assert_eq!(was_live, None, "an address is live twice");
        }
        prop_assert!(live.is_empty());
    }
}
