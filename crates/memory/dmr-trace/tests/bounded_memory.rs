//! A replay takes bounded memory, however large or hostile the trace is.
#![allow(unsafe_code, reason = "an allocator that counts")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmr_core::sync::lock;

use dmr_trace::{Replay, ReplayError, ReplayOptions, Summary, TraceReader};

use support::Fake;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One at a time: the counters are the process's.
static ALONE: Mutex<()> = Mutex::new(());

/// A trace that is never in memory whole: row `n` is what `row` returns.
struct Generated<F> {
    row: F,
    rows: u64,
    next: u64,
    buffer: Vec<u8>,
    at: usize,
}

impl<F: Fn(u64) -> String> Read for Generated<F> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.buffer.len() {
            if self.next == self.rows {
                return Ok(0);
            }
            self.buffer = (self.row)(self.next).into_bytes();
            self.next += 1;
            self.at = 0;
        }
        let n = out.len().min(self.buffer.len() - self.at);
        out[..n].copy_from_slice(&self.buffer[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

/// Replays, and returns the most memory that it took.
fn replay(
    rows: u64,
    row: impl Fn(u64) -> String + Send + 'static,
) -> (Result<Summary, ReplayError>, usize) {
    replay_with(rows, b"action,ptr,bytes,stream,tag\n", row)
}

fn replay_with(
    rows: u64,
    header: &[u8],
    row: impl Fn(u64) -> String + Send + 'static,
) -> (Result<Summary, ReplayError>, usize) {
    let _alone = lock(&ALONE);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let buffer = header.to_vec();
    let trace = TraceReader::new("generated", Generated { row, rows, next: 0, buffer, at: 0 });
    let fake = Fake::forgetful();
    let options = ReplayOptions::new().max_live_blocks(50_000);
    let summary =
        Replay::new(&fake).options(options).run(trace.unwrap(), &mut fake.streams(4), &mut ());
    (summary, PEAK.load(Ordering::Relaxed) - before)
}

const MIB: usize = 1 << 20;

#[test]
fn two_million_rows_take_no_more_memory_than_a_chunk() {
    let (summary, peak) = replay(2_000_000, |n| match n % 2 {
        0 => format!("allocate,{n},4096,{},tag\n", n % 3),
        _ => format!("free,{},4096,0,\n", n - 1),
    });
    assert_eq!(summary.unwrap().ops, 2_000_000);
    assert!(peak < 8 * MIB, "{peak} bytes");
}

/// Written backwards, in pairs: no row is where it belongs.
#[test]
fn two_million_rows_that_have_to_be_sorted_take_no_more_memory_than_a_run() {
    let header = b"order,action,ptr,bytes,stream,tag\n";
    let (summary, peak) = replay_with(2_000_000, header, |n| match (1_999_999 - n, n / 2) {
        (order, pair) if n % 2 == 0 => format!("{order},free,{pair},4096,0,\n"),
        (order, pair) => format!("{order},allocate,{pair},4096,0,tag\n"),
    });
    let summary = summary.unwrap();
    assert_eq!((summary.ops, summary.unmatched_frees.count), (2_000_000, 0));
    assert!(peak < 64 * MIB, "{peak} bytes");
}

#[test]
fn a_million_bad_rows_streams_and_tags_are_not_kept() {
    let (summary, peak) = replay(1_000_000, |n| match n % 3 {
        0 => format!("allocate,7,64,{n},tag-{n}\n"),
        1 => format!("free,7,64,{n},\n"),
        _ => format!("garbage {n} \"\n"),
    });
    let summary = summary.unwrap();
    assert_eq!(summary.bad_rows.count, 333_333);
    assert_eq!(summary.bad_rows.first.len(), 20);
    assert_eq!((summary.streams, summary.trace_streams), (4, 65_536));
    assert!(peak < 32 * MIB, "{peak} bytes");
}

#[test]
fn a_trace_that_never_frees_ends_at_the_limit_of_live_blocks() {
    let (summary, peak) = replay(u64::MAX, |n| format!("allocate,{n},64,0,\n"));
    let error = summary.unwrap_err();
    assert!(matches!(error, ReplayError::TooManyLiveBlocks { line: 50_002, .. }), "{error}");
    assert!(peak < 64 * MIB, "{peak} bytes");
}

#[test]
fn a_trace_of_frees_only_keeps_the_first_lines() {
    let (summary, peak) = replay(1_000_000, |n| format!("free,{n},64,0,\n"));
    assert_eq!(summary.unwrap().unmatched_frees.count, 1_000_000);
    assert!(peak < 8 * MIB, "{peak} bytes");
}
