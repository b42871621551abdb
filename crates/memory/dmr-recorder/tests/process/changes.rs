//! The recorder is started, stopped and looked at by several threads, and by heaps while they are
//! described.

use std::fs::File;
use std::io::{Read as _, sink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use dmr_core::AllocTag;
use dmr_recorder::{
    Heap, HeapSource, RecorderConfig, StartError, hooks, is_on, label, register_heap, start,
    status, stop, write_recording_to,
};

use crate::support::{Read, Recording, allocate};

/// Runs `body` on another thread; `None` if it has not returned after a while.
fn within_a_while<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(body()));
    result.recv_timeout(Duration::from_secs(10)).ok()
}

fn until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed().as_secs() < 20, "{:?}", status());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A heap that calls the recorder.
struct Calls(AtomicBool);

impl HeapSource for Calls {
    fn heap(&self) -> Heap {
        let _label = label("of a heap");
        let _status = status();
        hooks::budget_peak(AllocTag::new("changes"), 1, 2);
        let again = start(RecorderConfig::new());
        self.0.store(matches!(again, Err(StartError::AlreadyStarted)), Ordering::Relaxed);
        Heap::default()
    }
}

#[test]
fn a_heap_may_call_the_recorder_while_it_is_described() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    let is_refused = within_a_while(move || {
        let calls = Arc::new(Calls(AtomicBool::new(false)));
        let source: Arc<dyn HeapSource> = calls.clone();
        register_heap(Arc::downgrade(&source));
        let _recording = Recording::begin(RecorderConfig::new().stream_to(path));
        let at_the_start = calls.0.swap(false, Ordering::Relaxed);
        write_recording_to(sink()).unwrap();
        at_the_start && calls.0.load(Ordering::Relaxed)
    });
    assert_eq!(is_refused, Some(true), "it is started already, or about to be");
}

/// A heap whose description takes until the test lets it go on.
struct Blocks {
    began: AtomicBool,
    goes_on: Mutex<Receiver<()>>,
}

impl Blocks {
    fn registered() -> (Arc<Self>, Sender<()>) {
        let (go, goes_on) = channel();
        let blocks = Arc::new(Self { began: AtomicBool::new(false), goes_on: Mutex::new(goes_on) });
        let source: Arc<dyn HeapSource> = blocks.clone();
        register_heap(Arc::downgrade(&source));
        (blocks, go)
    }
}

impl HeapSource for Blocks {
    fn heap(&self) -> Heap {
        if !self.began.swap(true, Ordering::Relaxed) {
            // The test may have failed.
            let _ = self.goes_on.lock().unwrap().recv();
        }
        Heap::default()
    }
}

#[cfg(unix)]
#[test]
#[allow(unsafe_code, reason = "raises a signal")]
fn the_next_run_appends_to_a_file_only_when_the_run_before_has_ended_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.rec");
    let mut config = RecorderConfig::new().with_folder(folder.path()).on_signal(libc::SIGUSR2);
    config.max_files = 100;
    let recording = Recording::begin(config.stream_to(&path));
    let (blocks, go) = Blocks::registered();
    // SAFETY: the recorder has a handler for it.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    until(|| blocks.began.load(Ordering::Relaxed));
    allocate(1, "changes::first");
    let stopping = std::thread::spawn(stop);
    until(|| !is_on());
    // The thread of the recorder describes a heap, and has not appended the last events.
    let config = RecorderConfig::new().stream_to(&path);
    let again = start(config.clone());
    assert!(matches!(again, Err(StartError::AlreadyStarted)), "{again:?}");
    assert!(!is_on());
    go.send(()).unwrap();
    stopping.join().unwrap();
    start(config).unwrap();
    allocate(2, "changes::second");
    drop(recording);
    let read = Read::of(&std::fs::read(&path).unwrap());
    assert_eq!(read.allocated("changes::first").len(), 1);
    assert_eq!(read.allocated("changes::second").len(), 1);
}

#[cfg(unix)]
#[test]
#[allow(unsafe_code, reason = "makes a pipe with a name")]
fn a_disk_that_does_not_go_on_holds_up_no_thread_that_records() {
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let recording = Recording::begin(RecorderConfig::new().stream_to(&path));
    // More than the pipe has room for.
    for nth in 0..10_000 {
        allocate(nth + 1, "changes::a long tag, so that an event has many bytes");
    }
    std::thread::sleep(Duration::from_millis(100));
    let looks = std::thread::spawn(status);
    std::thread::sleep(Duration::from_millis(100));
    let budget = AllocTag::new("changes");
    let has_noted = within_a_while(move || hooks::budget_peak(budget, 1, 2));
    let mut pipe = File::open(&path).unwrap();
    let reads = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    looks.join().unwrap();
    drop(recording);
    assert_eq!(has_noted, Some(()));
    let read = Read::of(&reads.join().unwrap().unwrap());
    assert_eq!(read.allocated("changes::a long tag").len(), 10_000);
}

#[test]
fn a_thread_that_starts_the_recorder_again_and_again_keeps_its_ring() {
    let mut config = RecorderConfig::new().with_events_per_thread(64);
    config.max_threads = 100;
    for _ in 0..200 {
        let _recording = Recording::begin(config.clone());
        allocate(1, "changes::again");
        let read = Read::now();
        assert_eq!(read.allocated("changes::again").len(), 1);
        assert_eq!(read.summary.unwrap().lost, 0);
    }
}

#[test]
fn a_thread_gets_a_ring_of_another_size_where_there_is_no_room_for_one_more() {
    let mut config = RecorderConfig::new().with_events_per_thread(64);
    config.max_threads = 0;
    let recording = Recording::begin(RecorderConfig::new());
    std::thread::spawn(|| allocate(1, "changes::before")).join().unwrap();
    drop(recording);
    let _recording = Recording::begin(config);
    std::thread::spawn(|| allocate(1, "changes::after")).join().unwrap();
    assert_eq!(Read::now().allocated("changes::after").len(), 1);
}

#[test]
fn the_recorder_is_on_if_and_only_if_it_is_started_while_threads_start_and_stop_it() {
    let recording = Recording::begin(RecorderConfig::new());
    let all = Barrier::new(3);
    let rounds = 2_000;
    let mut wrong = 0;
    std::thread::scope(|scope| {
        let each_round = |call: fn()| {
            let all = &all;
            scope.spawn(move || {
                for _ in 0..rounds {
                    all.wait();
                    call();
                    all.wait();
                }
            });
        };
        each_round(|| drop(start(RecorderConfig::new())));
        each_round(stop);
        for _ in 0..rounds {
            all.wait();
            all.wait();
            wrong += usize::from(is_on() != write_recording_to(sink()).is_ok());
            stop();
            wrong += usize::from(is_on());
        }
    });
    drop(recording);
    assert_eq!(wrong, 0);
}
