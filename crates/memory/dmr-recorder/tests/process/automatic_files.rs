//! Recordings that are written without being asked for: at an out of memory that reaches the
//! program, at a lost device, at a panic, after a signal.

use std::path::Path;
use std::sync::{Arc, Weak};

use dmr_core::AllocTag;
use dmr_recorder::hooks;
use dmr_recorder::{
    Heap, HeapPart, HeapSource, HeapState, RecorderConfig, Refused, Retrying, gave_up,
    register_heap, start, status,
};
use dmr_recording::Event;

use crate::support::{Read, Recording, allocate, stream};

struct OneBlock;

impl HeapSource for OneBlock {
    fn heap(&self) -> Heap {
        let part = HeapPart {
            address: 256,
            bytes: 512,
            state: HeapState::InUse,
            stream: stream(),
            tag: AllocTag::new("held"),
            is_first: true,
        };
        Heap { device: 3, reserved: 1024, parts: vec![part] }
    }
}

/// Returns the recordings of a folder whose names have this, in the order of their numbers.
fn files(folder: &Path, why: &str) -> Vec<Read> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    names.sort();
    let is_it = |path: &&std::path::PathBuf| path.to_string_lossy().contains(why);
    names.iter().filter(is_it).map(|path| Read::of(&std::fs::read(path).unwrap())).collect()
}

/// Returns settings that allow the files of all tests together.
fn writing_to(folder: &Path) -> RecorderConfig {
    let mut config = RecorderConfig::new().with_folder(folder);
    config.max_files = 1_000;
    config
}

fn refused() -> Refused {
    Refused { bytes: 2 << 30, limit: "device memory".into(), free: 5 << 30, ..Refused::default() }
}

/// Returns the reasons of the descriptions of heaps.
fn heaps(read: &Read) -> Vec<&str> {
    heaps_of(read, 1024)
}

/// Returns the reasons of the descriptions of heaps that have reserved this.
fn heaps_of(read: &Read, bytes: u64) -> Vec<&str> {
    let why = |record: &dmr_recording::Record| match record.event {
        Event::SnapshotBegin { why, reserved } if reserved == bytes => Some(read.text(why)),
        _ => None,
    };
    read.records.iter().filter_map(why).collect()
}

#[test]
fn an_out_of_memory_is_written_with_the_heap_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let heap: Arc<dyn HeapSource> = Arc::new(OneBlock);
    let _recording = Recording::begin(writing_to(folder.path()));
    register_heap(Arc::downgrade(&heap));
    hooks::short_of_memory();
    allocate(1, "while short");
    hooks::refused(refused);
    let [file] = &files(folder.path(), "out-of-memory")[..] else { panic!("one file") };
    assert_eq!(heaps(file), ["before memory was made free", "out of memory"]);
    assert_eq!(file.allocated("while short").len(), 1);
    let is_refusal = |record: &dmr_recording::Record| match record.event {
        Event::Refused(refusal) => {
            refusal.bytes == 2 << 30 && file.text(refusal.limit) == "device memory"
        }
        _ => false,
    };
    assert_eq!(file.records.iter().filter(|record| is_refusal(record)).count(), 1);
    let status = status();
    assert!(status.is_on);
    assert_eq!(status.files.iter().filter(|file| file.starts_with(folder.path())).count(), 1);
}

/// A heap of this many bytes.
struct Reserves(u64);

impl HeapSource for Reserves {
    fn heap(&self) -> Heap {
        Heap { reserved: self.0, ..Heap::default() }
    }
}

struct Panics;

impl HeapSource for Panics {
    fn heap(&self) -> Heap {
        panic!("on purpose")
    }
}

#[test]
fn a_heap_that_panics_is_left_out_and_the_refused_thread_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let panics: Arc<dyn HeapSource> = Arc::new(Panics);
    let heap: Arc<dyn HeapSource> = Arc::new(Reserves(77));
    let config = writing_to(folder.path());
    let _recording = Recording::begin(config);
    register_heap(Arc::downgrade(&panics));
    register_heap(Arc::downgrade(&heap));
    hooks::short_of_memory();
    hooks::refused(refused);
    let [file] = &files(folder.path(), "out-of-memory")[..] else { panic!("one file") };
    assert_eq!(heaps_of(file, 77), ["before memory was made free", "out of memory"]);
}

#[test]
fn more_heaps_than_are_kept_are_counted_as_missing_and_no_other_note_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    let recording = Recording::begin(RecorderConfig::new());
    hooks::refused(refused);
    drop(recording);
    let mut config = RecorderConfig::new().stream_to(&path);
    config.stream_interval = std::time::Duration::from_secs(60);
    let recording = Recording::begin(config);
    let sources: Vec<Arc<dyn HeapSource>> =
        (0..11).map(|_| Arc::new(Reserves(88)) as Arc<dyn HeapSource>).collect();
    sources.iter().for_each(|source| register_heap(Arc::downgrade(source)));
    hooks::short_of_memory();
    drop(recording);
    let read = Read::of(&std::fs::read(&path).unwrap());
    assert_eq!(heaps_of(&read, 88).len(), 8);
    assert_eq!(read.summary.unwrap().lost, 3);
    let is_refusal = |record: &&dmr_recording::Record| matches!(record.event, Event::Refused(_));
    assert_eq!(read.records.iter().filter(is_refusal).count(), 0, "it was before the start");
}

#[test]
fn a_refusal_that_is_tried_again_writes_a_file_only_if_nothing_helps() {
    let folder = tempfile::tempdir().unwrap();
    let _recording = Recording::begin(writing_to(folder.path()));
    {
        let _retrying = Retrying::enter();
        hooks::refused(refused);
    }
    assert_eq!(files(folder.path(), "rec").len(), 0);
    gave_up();
    let [file] = &files(folder.path(), "out-of-memory")[..] else { panic!("one file") };
    let is_refusal = |record: &&dmr_recording::Record| matches!(record.event, Event::Refused(_));
    assert_eq!(file.records.iter().filter(is_refusal).count(), 1);
}

#[test]
fn there_are_never_more_files_than_the_settings_allow() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = RecorderConfig::new().with_folder(folder.path());
    config.max_files = status().files.len() + status().failures as usize + 2;
    let _recording = Recording::begin(config);
    for _ in 0..10 {
        hooks::refused(refused);
    }
    assert!(files(folder.path(), "rec").len() <= 2);
}

#[test]
fn a_folder_that_cannot_be_written_is_in_the_status_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("not there");
    let _recording = Recording::begin(RecorderConfig::new().with_folder(&gone));
    let before = status().failures;
    hooks::device_lost(0, "cuCtxSynchronize failed");
    let status = status();
    assert_eq!(status.failures, before + 1);
    assert!(status.last_failure.unwrap().contains("not there"));
}

#[test]
fn a_lost_device_is_written_with_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let heap: Arc<dyn HeapSource> = Arc::new(OneBlock);
    let weak: Weak<dyn HeapSource> = Arc::downgrade(&heap);
    register_heap(weak);
    let _recording = Recording::begin(writing_to(folder.path()));
    hooks::device_lost(3, "an illegal address");
    let [file] = &files(folder.path(), "device-lost")[..] else { panic!("one file") };
    let lost = file.records.iter().find_map(|record| match record.event {
        Event::DeviceLost { message } => Some((record.device, file.text(message))),
        _ => None,
    });
    assert_eq!(lost, Some((3, "an illegal address")));
    assert!(heaps(file).is_empty(), "the thread may hold a lock of the heap");
}

#[test]
fn a_panic_is_written_before_the_hook_of_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let _recording = Recording::begin(writing_to(folder.path()).on_panic());
    let panicked = std::thread::spawn(|| {
        allocate(1, "before the panic");
        panic!("on purpose");
    });
    panicked.join().unwrap_err();
    let files = files(folder.path(), "panic");
    assert!(files.iter().any(|file| file.allocated("before the panic").len() == 1));
}

#[test]
fn a_recording_of_another_process_with_the_same_number_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let process = std::process::id();
    let old = |nth| folder.path().join(format!("dmr-{process}-{nth}-device-lost.rec"));
    for nth in 1..=500 {
        std::fs::write(old(nth), "of another one").unwrap();
    }
    let _recording = Recording::begin(writing_to(folder.path()));
    for _ in 0..2 {
        hooks::device_lost(0, "an illegal address");
    }
    for nth in 1..=500 {
        assert_eq!(std::fs::read(old(nth)).unwrap(), b"of another one");
    }
    let own: Vec<_> =
        status().files.into_iter().filter(|it| it.starts_with(folder.path())).collect();
    assert_eq!(own.len(), 2);
    for path in own {
        assert!(Read::of(&std::fs::read(&path).unwrap()).summary.is_some(), "{path:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_of_a_fault_is_refused() {
    let _recording = Recording::begin(RecorderConfig::new());
    dmr_recorder::stop();
    for signal in [libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
        let refused = start(RecorderConfig::new().with_folder("anywhere").on_signal(signal));
        assert!(refused.unwrap_err().to_string().contains("a fault"), "{signal}");
    }
}

#[cfg(unix)]
#[test]
#[allow(unsafe_code, reason = "raises a signal")]
fn a_signal_is_written_by_the_thread_of_the_recorder() {
    let folder = tempfile::tempdir().unwrap();
    let config = writing_to(folder.path()).on_signal(libc::SIGUSR2);
    let _recording = Recording::begin(config);
    allocate(1, "before the signal");
    // SAFETY: the recorder has a handler for it.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    let began = std::time::Instant::now();
    while status().files.iter().all(|file| !file.starts_with(folder.path())) {
        assert!(began.elapsed().as_secs() < 20, "{:?}", status());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let [file] = &files(folder.path(), "signal")[..] else { panic!("one file") };
    assert_eq!(file.allocated("before the signal").len(), 1);
}
