//! Hostile files: whatever the bytes are, a file is read or is an error that names the byte or the
//! line, in bounded memory, and what was read can be written in every format.
//!
//! `DMR_REPORT_FUZZ` sets the number of files of each kind.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dmr_recording::{
    Block, Event, Record, Region, RegionState, SpanChange, Start, StreamNumber, Writer,
};
use dmr_report::export::{perfetto, pytorch};
use dmr_report::{Model, ReportError, page, text};
use fastrand::Rng;

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

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that any file may take, however short it is: the buffers of the readers.
const BUFFERS: usize = 4 << 20;

/// The memory that a file may take for each of its bytes. The shortest event has four.
const BY_BYTE: usize = 256;

/// Reads a file, and writes it in every format; a page, which takes longer, if `with_page`.
fn read(path: &Path, bytes: &[u8], with_page: bool) -> Result<Model, ReportError> {
    std::fs::write(path, bytes).unwrap();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let model = dmr_report::open(path);
    if let Ok(model) = &model {
        let report = text::report(model);
        assert!(report.len() < (1 << 20) + 16 * bytes.len(), "a text of {} bytes", report.len());
        pytorch::write(model, io::sink()).unwrap();
        perfetto::write(model, io::sink()).unwrap();
        if with_page {
            page::write(model, io::sink()).unwrap();
        }
    }
    let peak = PEAK.load(Ordering::Relaxed) - before;
    assert!(peak <= BUFFERS + BY_BYTE * bytes.len(), "{peak} bytes for {}", bytes.len());
    model
}

/// Damages files of one kind, and reads them.
fn fuzz(seed: u64, mut make: impl FnMut(&mut Random) -> Vec<u8>) {
    let _alone = alone();
    let files = std::env::var("DMR_REPORT_FUZZ").ok().and_then(|files| files.parse().ok());
    let files: u64 = files.unwrap_or(1_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut random = Random(Rng::with_seed(seed));
    let [mut refused, mut read_whole] = [0_u64; 2];
    for _ in 0..files {
        let bytes = make(&mut random);
        match read(&path, &bytes, random.below(64) == 0) {
            Ok(_) => read_whole += 1,
            Err(error) => {
                names_a_place(&error.to_string(), &bytes);
                refused += 1;
            }
        }
    }
    assert!(read_whole > files / 20, "{read_whole} were read of {files}, {refused} refused");
}

/// Asserts that an error names a byte or a line of the file.
fn names_a_place(error: &str, bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n').count();
    let named = |word: &str, most: usize| {
        let after = error.split(word).nth(1)?;
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        let at: usize = digits.parse().ok()?;
        assert!(at <= most, "{error}: the file ends at {most}");
        Some(at)
    };
    let is_named = named("byte ", bytes.len()).or_else(|| named("line ", lines)).is_some();
    assert!(is_named || error.contains("empty"), "no place: {error}");
}

struct Random(Rng);

impl Random {
    /// Returns a number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns a number of any size, often one at the edge.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1_u64 << self.below(64)).wrapping_sub(1),
            4 => self.0.u64(..),
            _ => self.below(1 << 16) as u64,
        }
    }

    /// Changes, removes, repeats or inserts a few bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>, start: usize, often: &[u8]) {
        for _ in 0..self.pick(&[1, 1, 2, 6]) {
            if bytes.len() <= start {
                return;
            }
            let at = start + self.below(bytes.len() - start);
            let end = (at + 1 + self.below(40)).min(bytes.len());
            match self.below(9) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.0.u8(..),
                2 | 3 => bytes[at] = self.pick(often),
                4 => bytes.insert(at, self.pick(often)),
                5 => drop(bytes.drain(at..end)),
                6 => {
                    let part = bytes[at..end].to_vec();
                    let to = start + self.below(bytes.len() - start);
                    bytes.splice(to..to, part);
                }
                7 => {
                    let number = self.number().to_le_bytes();
                    let end = (at + 1 + self.below(8)).min(bytes.len());
                    bytes[at..end].copy_from_slice(&number[..end - at]);
                }
                _ => bytes.truncate(at),
            }
        }
    }
}

/// The opcodes of pickles.
const OPCODES: &[u8] =
    b"(.0123}])NKMJGXTUBCaedtluhjqrsbcRoi\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x94\x95";

#[test]
fn damaged_snapshots_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wild");
    let whole: [&[u8]; 2] =
        [include_bytes!("files/snapshot.pickle"), include_bytes!("files/backward.pickle")];
    fuzz(1, |random| {
        let mut bytes = match random.below(4) {
            0 => {
                std::fs::write(&path, wild_recording(random)).unwrap();
                let mut bytes = Vec::new();
                pytorch::write(&dmr_report::open(&path).unwrap(), &mut bytes).unwrap();
                bytes
            }
            1 => {
                let count = random.below(60);
                let mut bytes: Vec<_> = (0..count).map(|_| random.pick(OPCODES)).collect();
                bytes.splice(0..0, *b"\x80\x04");
                bytes
            }
            _ => random.pick(&whole).to_vec(),
        };
        random.damage(&mut bytes, 2, OPCODES);
        bytes
    });
}

#[test]
fn damaged_logs_are_read_or_refused() {
    fuzz(2, |random| {
        let mut text =
            String::from("time_ns,action,ptr,bytes,stream,tag,result,message,query_id\n");
        for _ in 0..random.below(40) {
            let action = random.pick(&["allocate", "free", "grow", "allocate", "free", "reap"]);
            let result = random.pick(&["ok", "ok", "ok", "out_of_memory", "out_of_budget"]);
            let numbers: [u64; 5] = std::array::from_fn(|_| random.number());
            let [time, ptr, bytes, stream, query] = numbers;
            let ptr = if random.below(2) == 0 { ptr } else { ptr % 8 * 4096 };
            writeln!(
                text,
                "{time},{action},{ptr:#x},{bytes},{stream},tag,{result},\"a, b\",{query}"
            )
            .unwrap();
        }
        let mut bytes = text.into_bytes();
        random.damage(&mut bytes, 0, b",\n\r\"#0-.x\xff\0");
        bytes
    });
}

#[test]
fn damaged_logs_of_rmm_are_read_or_refused() {
    fuzz(3, |random| {
        let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
        for _ in 0..random.below(40) {
            let action = random.pick(&["allocate", "free", "allocate failure"]);
            let numbers: [u64; 5] = std::array::from_fn(|_| random.number());
            let [thread, time, ptr, bytes, stream] = numbers;
            let ptr = if random.below(2) == 0 { ptr } else { ptr % 8 * 4096 };
            let time = time % 86_400;
            let clock =
                format!("{:02}:{:02}:{:02}:{time:06}", time / 3600, time / 60 % 60, time % 60);
            writeln!(text, "{thread},{clock},{action},{ptr:#x},{bytes},{stream:#x}").unwrap();
        }
        let mut bytes = text.into_bytes();
        random.damage(&mut bytes, 0, b",\n\r\"#0-.:x\xff\0");
        bytes
    });
}

/// Recordings with correct checksums, whose events make no sense.
#[test]
fn recordings_of_any_events_are_read() {
    fuzz(4, wild_recording);
}

fn wild_recording(random: &mut Random) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &Start::default()).unwrap();
    for _ in 0..random.below(60) {
        let near = |random: &mut Random| match random.below(3) {
            0 => random.number(),
            _ => 0x7000_0000_0000 + random.below(16) as u64 * 4096,
        };
        let size = |random: &mut Random| match random.below(4) {
            0 => random.number(),
            _ => (1 + random.below(8)) as u64 * 2048,
        };
        let stream = StreamNumber::new(1, random.below(3) as u32);
        let [address, bytes] = [near(random), size(random)];
        let block = Block {
            address,
            bytes,
            generation: random.below(12) as u64,
            stream,
            tag: writer.intern(random.pick(&["a", "b", "c"])),
        };
        let change = random.pick(&[
            SpanChange::Reserve,
            SpanChange::Release,
            SpanChange::Map,
            SpanChange::Unmap,
            SpanChange::Move { from: 0x7000_0000_0000 },
        ]);
        let awaited = StreamNumber::new(1, 0);
        let event = match random.below(10) {
            0 | 1 => Event::Allocate(block),
            2 => Event::Free(block),
            3 => Event::Retire(block),
            4 => Event::Ready { address, bytes, stream },
            5 => Event::Grow(block),
            6 | 7 => Event::Span { change, address, bytes, stream },
            8 => Event::Wait { stream, awaited, block: block.generation, launch: 1, work: 1 },
            _ => Event::Region(Region {
                address,
                bytes,
                stream,
                state: random.pick(&[RegionState::Free, RegionState::InUse, RegionState::Pending]),
                tag: block.tag,
            }),
        };
        let time_ns = random.number();
        writer.write(&Record { time_ns, ..Record::new(event) }).unwrap();
    }
    writer.finish().unwrap()
}

/// A pickle of a snapshot: its segments and its trace, as `write` writes them.
fn snapshot(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = b"\x80\x02}(".to_vec();
    write(&mut bytes);
    bytes.extend_from_slice(b"u.");
    bytes
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(b'X');
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn put_number(bytes: &mut Vec<u8>, key: &str, number: u64) {
    put_text(bytes, key);
    bytes.extend_from_slice(&[0x8a, 8]);
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put_event(bytes: &mut Vec<u8>, action: &str, address: u64, size: u64) {
    bytes.extend_from_slice(b"}(");
    put_text(bytes, "action");
    put_text(bytes, action);
    put_number(bytes, "addr", address);
    put_number(bytes, "size", size);
    bytes.push(b'u');
}

/// Files that name a value often, so that it is short in the file and long when read.
#[test]
fn values_that_are_named_often_take_no_more_memory_than_the_file() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    // Frames with a long name, in many call stacks.
    let frames = snapshot(|bytes| {
        put_text(bytes, "segments");
        bytes.extend_from_slice(b"](e");
        put_text(bytes, "device_traces");
        bytes.extend_from_slice(b"](](");
        for frame in 0..2_u8 {
            bytes.extend_from_slice(b"}(");
            put_text(bytes, "name");
            put_text(bytes, &"long".repeat(10_000 + usize::from(frame)));
            bytes.extend_from_slice(&[b'u', b'q', frame]);
        }
        for stack in 0..2000_u64 {
            bytes.extend_from_slice(b"}(");
            put_text(bytes, "action");
            put_text(bytes, "alloc");
            put_number(bytes, "addr", stack << 12);
            put_number(bytes, "size", 4096);
            put_text(bytes, "frames");
            bytes.extend_from_slice(b"](");
            let frames = (0..64).map(|bit| (stack >> (bit % 11) & 1) as u8);
            frames.for_each(|frame| bytes.extend_from_slice(&[b'h', frame]));
            bytes.extend_from_slice(b"eu");
        }
        bytes.extend_from_slice(b"ee");
    });
    let model = read(&path, &frames, true).unwrap();
    assert_eq!(model.blocks.len(), 2000);
    // Blocks that many segments have.
    let blocks = snapshot(|bytes| {
        put_text(bytes, "segments");
        bytes.extend_from_slice(b"](}(");
        put_number(bytes, "address", 1 << 40);
        put_number(bytes, "total_size", 5000 << 12);
        put_text(bytes, "blocks");
        bytes.extend_from_slice(b"](");
        for block in 0..5000_u64 {
            bytes.extend_from_slice(b"}(");
            put_number(bytes, "address", (1 << 40) + (block << 12));
            put_number(bytes, "size", 4096);
            put_text(bytes, "state");
            put_text(bytes, "active_allocated");
            bytes.push(b'u');
        }
        bytes.extend_from_slice(b"euq\x00");
        (0..300_000).for_each(|_| bytes.extend_from_slice(b"h\x00"));
        bytes.push(b'e');
    });
    assert_eq!(read(&path, &blocks, true).unwrap().blocks.len(), 5000);
    // A dictionary of many keys, for many events.
    let keys = snapshot(|bytes| {
        put_text(bytes, "segments");
        bytes.extend_from_slice(b"](e");
        put_text(bytes, "device_traces");
        bytes.extend_from_slice(b"](](}(");
        (0..100_000).for_each(|_| bytes.extend_from_slice(b"NN"));
        bytes.extend_from_slice(b"uq\x00");
        (0..100_000).for_each(|_| bytes.extend_from_slice(b"h\x00"));
        bytes.extend_from_slice(b"ee");
    });
    assert_eq!(read(&path, &keys, true).unwrap().events.len(), 0);
}

/// Each release would split all spans that overlap it.
#[test]
fn spans_that_overlap_take_no_more_memory_than_the_file() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = snapshot(|bytes| {
        put_text(bytes, "segments");
        bytes.extend_from_slice(b"](e");
        put_text(bytes, "device_traces");
        bytes.extend_from_slice(b"](](");
        for at in 0..3000_u64 {
            put_event(bytes, "segment_alloc", at << 12, 1 << 40);
        }
        for at in (0..3000_u64).rev() {
            put_event(bytes, "segment_unmap", (1 << 30) + (at << 20), 4096);
        }
        bytes.extend_from_slice(b"ee");
    });
    let model = read(&path, &file, true).unwrap();
    assert!(model.spans.len() < 20_000, "{} spans", model.spans.len());
}

#[test]
fn nesting_and_empty_values_take_memory_in_proportion() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for code in [&b"]"[..], b"}", b"(", b"N", b")", b"K\x01", b"X\0\0\0\0", b"]\x94", b"]2"] {
        let mut bytes = b"\x80\x04".to_vec();
        (0..400_000).for_each(|_| bytes.extend_from_slice(code));
        bytes.push(b'.');
        drop(read(&path, &bytes, true));
    }
}
