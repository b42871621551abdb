//! The recorder of the process: started, stopped, and written.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use dmr_core::process::PerProcess;
use dmr_core::sync::lock;
use dmr_recording::{Start, Writer};

use crate::attached;
use crate::background::Background;
use crate::clock::{Anchor, Clock, Times, epoch_ns};
use crate::config::{RecorderConfig, StartError};
use crate::gate;
use crate::heap::heaps;
use crate::late;
use crate::notes::{self, By, Refused, What};
use crate::panics;
use crate::thread::change_ring;
use crate::ticker::{TICK, Ticker};
use crate::waits;
use crate::write::{EventWriter, Progress};

/// The recorder of a process. A forked child begins without one.
#[derive(Default)]
struct Recorder {
    running: Option<Running>,
    /// A thread starts or stops it, without the lock.
    is_changing: bool,
    /// Files that were written without being asked for.
    files: Vec<PathBuf>,
    /// The number of files that were begun, also in vain.
    attempts: usize,
    failures: u64,
    last_failure: Option<String>,
    /// When heaps were described last, on the monotonic clock.
    last_heaps_ns: Option<u64>,
}

struct Running {
    config: RecorderConfig,
    origin: Origin,
    /// The events before the start.
    before: Progress,
    /// The thread of the recorder. Dropped, it writes what is left.
    background: Option<Background>,
    ticker: Ticker,
}

/// The start of the recorder: time 0 of its recordings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    clock: Clock,
    anchor: Anchor,
    epoch_ns: u64,
}

static RECORDER: PerProcess<Mutex<Recorder>> = PerProcess::new(Mutex::default);

/// The most names of a recording that are tried.
const MOST_NAMES: u32 = 1_000;

/// The least nanoseconds between two descriptions of heaps before a refusal.
const HEAPS_INTERVAL_NS: u64 = 100_000_000;

/// The content of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of events.
    pub events: u64,
}

/// The state of the recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderStatus {
    /// If true, events are recorded.
    pub is_on: bool,
    /// The recordings that were written without being asked for.
    pub files: Vec<PathBuf>,
    /// The number of those that could not be written.
    pub failures: u64,
    /// The last error of these, or of the file to which events are appended.
    pub last_failure: Option<String>,
}

/// Starts to record the events of the process.
///
/// # Errors
///
/// [`StartError`]; then nothing has changed.
pub fn start(config: RecorderConfig) -> Result<(), StartError> {
    if config.folder.is_none() && config.on_panic {
        return Err(StartError::NoFolder("panic"));
    }
    if config.folder.is_none() && config.on_signal.is_some() {
        return Err(StartError::NoFolder("signal"));
    }
    let mut recorder = lock(RECORDER.get());
    if recorder.running.is_some() || recorder.is_changing {
        return Err(StartError::AlreadyStarted);
    }
    let changing = Changing::begin(&mut recorder);
    drop(recorder);
    // Not under the lock: this writes a file, and describes heaps of the program.
    let running = prepare(config)?;
    let mut recorder = lock(RECORDER.get());
    recorder.running = Some(running);
    // On the clock of the run before.
    recorder.last_heaps_ns = None;
    gate::open();
    drop(recorder);
    drop(changing);
    Ok(())
}

fn prepare(config: RecorderConfig) -> Result<Running, StartError> {
    let clock = Clock::of_machine();
    let origin = Origin { clock, anchor: clock.anchor(), epoch_ns: epoch_ns() };
    let events = config.events_per_thread.clamp(64, RecorderConfig::MAX_EVENTS_PER_THREAD);
    attached::configure(events, config.max_threads, clock);
    let ticker = Ticker::start().map_err(StartError::Thread)?;
    let background = Background::start(&config, origin)?;
    if config.on_panic {
        panics::watch();
    }
    gate::close_in_children();
    change_ring();
    waits::set_one_in(config.timed_waits);
    Ok(Running { config, origin, before: Progress::now(), background, ticker })
}

/// Stops to record: write what was recorded before. A file to which events are appended is ended.
///
/// While another thread stops it, this returns at once, and [`start`] returns
/// [`AlreadyStarted`](StartError::AlreadyStarted).
pub fn stop() {
    late::collect();
    let mut recorder = lock(RECORDER.get());
    let Some(running) = recorder.running.take() else { return };
    gate::close();
    let changing = Changing::begin(&mut recorder);
    drop(recorder);
    // Discards the rest.
    late::collect();
    // Not under the lock: the thread of the recorder may be writing a file.
    drop(running);
    drop(changing);
}

/// The change from off to on, or back, by one thread: until it is dropped, no other one begins.
struct Changing;

impl Changing {
    fn begin(recorder: &mut Recorder) -> Self {
        recorder.is_changing = true;
        Self
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        lock(RECORDER.get()).is_changing = false;
    }
}

/// Returns the state of the recorder.
#[must_use]
pub fn status() -> RecorderStatus {
    let recorder = lock(RECORDER.get());
    let running = recorder.running.as_ref();
    let appended = running.and_then(|running| running.background.as_ref()?.appended());
    let status = RecorderStatus {
        is_on: gate::is_on(),
        files: recorder.files.clone(),
        failures: recorder.failures,
        last_failure: recorder.last_failure.clone(),
    };
    drop(recorder);
    // Not under the lock: the thread of the recorder may be writing the file.
    let failure = appended.and_then(|appended| appended.failure());
    RecorderStatus { last_failure: failure.or(status.last_failure), ..status }
}

/// Writes the events that are kept, and the heaps as they are now, to a file, which is created or
/// emptied. Other threads go on meanwhile.
///
/// # Errors
///
/// Those of the file; [`NotConnected`](io::ErrorKind::NotConnected) if the recorder is not started:
/// then the file is as it was.
pub fn write_recording(path: &Path) -> io::Result<Written> {
    since_start().ok_or_else(not_started)?;
    let mut file = File::create(path)?;
    late::collect();
    let written = write_to(&mut file, Heaps::Described("request"))?;
    file.flush()?;
    Ok(written)
}

/// Writes a recording as [`write_recording`] does, to an output.
///
/// # Errors
///
/// Those of the output; [`NotConnected`](io::ErrorKind::NotConnected) if the recorder is not
/// started.
pub fn write_recording_to(out: impl Write) -> io::Result<Written> {
    late::collect();
    write_to(out, Heaps::Described("request"))
}

/// The heaps in a recording.
#[derive(Clone, Copy)]
pub(crate) enum Heaps {
    /// With the reason.
    Described(&'static str),
    /// Not if the thread may hold a lock of a heap.
    LeftOut,
}

pub(crate) fn write_to(out: impl Write, described: Heaps) -> io::Result<Written> {
    let mut since = since_start().ok_or_else(not_started)?;
    let heaps = match described {
        Heaps::Described(why) => Some((heaps(), why)),
        Heaps::LeftOut => None,
    };
    let collected = since.progress.collect();
    let origin = since.origin;
    let times = origin.times();
    let mut writer = EventWriter::new(origin.begin(out, &times, since.late_ns)?);
    writer.write_names(0)?;
    let events = writer.write(collected, &times)?;
    if let Some((heaps, why)) = heaps {
        for heap in &heaps {
            writer.write_heap(heap, why, origin.now_ns())?;
        }
    }
    writer.finish()?;
    Ok(Written { events })
}

fn not_started() -> io::Error {
    let message = "the flight recorder of this process is not started";
    io::Error::new(io::ErrorKind::NotConnected, message)
}

/// The start of the recorder, and what to write.
pub(crate) struct SinceStart {
    pub(crate) origin: Origin,
    pub(crate) progress: Progress,
    /// The nanoseconds by which an event may be later than its time.
    pub(crate) late_ns: u64,
}

/// Returns the start of the recorder; `None` if it is not started.
pub(crate) fn since_start() -> Option<SinceStart> {
    let recorder = lock(RECORDER.get());
    let Running { origin, before, ticker, .. } = recorder.running.as_ref()?;
    let late_ns = ticker.longest_ns();
    Some(SinceStart { origin: *origin, progress: before.clone(), late_ns })
}

fn origin() -> Option<Origin> {
    lock(RECORDER.get()).running.as_ref().map(|running| running.origin)
}

impl Origin {
    /// Returns the conversion of ticks from the start until now.
    pub(crate) fn times(&self) -> Times {
        Times::new(self.anchor, self.clock.anchor(), self.anchor.ns())
    }

    /// Returns the conversion of ticks from `anchor` until now, and the anchor of now.
    pub(crate) fn times_since(&self, anchor: Anchor) -> TimesSince {
        let now = self.clock.anchor();
        TimesSince { times: Times::new(anchor, now, self.anchor.ns()), now }
    }

    pub(crate) const fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// Returns the nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.anchor().ns().saturating_sub(self.anchor.ns())
    }

    /// Returns the start of a recording that is written now.
    fn start(&self, times: &Times, late_ns: u64) -> Start {
        Start {
            epoch_ns: self.epoch_ns,
            process: std::process::id(),
            clock_error_ppb: times.error_ppb(),
            clock_step_ns: self.anchor.error_ns() + late_ns,
            ..Start::default()
        }
    }

    fn begin<W: Write>(&self, out: W, times: &Times, late_ns: u64) -> io::Result<Writer<W>> {
        Writer::with_names(out, &self.start(times, late_ns), self.clock.name(), &program())
    }

    pub(crate) fn append(&self, path: &Path, times: &Times) -> io::Result<Writer<File>> {
        let late_ns = TICK.as_nanos() as u64;
        Writer::append(path, &self.start(times, late_ns), self.clock.name(), &program())
    }
}

/// A conversion of ticks, and its end.
pub(crate) struct TimesSince {
    pub(crate) times: Times,
    pub(crate) now: Anchor,
}

/// Returns the name of the program.
fn program() -> String {
    let first = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&first).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Notes a rare event of the calling thread.
pub(crate) fn note(what: What) {
    note_of(By::current(), what);
}

/// Notes a rare event of a thread.
pub(crate) fn note_of(by: By, what: What) {
    if let Some(origin) = origin() {
        notes::note(origin.clock, by, what);
    }
}

thread_local! {
    static RETRIES: Cell<u32> = const { Cell::new(0) };
    /// The retries among them whose refusals are not recorded.
    static QUIET: Cell<u32> = const { Cell::new(0) };
}

/// A scope of this thread in which a refused allocation is tried again by its caller, after it has
/// made room: no recording is written for it. [`gave_up`] writes one.
#[derive(Debug)]
#[must_use = "the scope ends where this is dropped"]
pub struct Retrying {
    is_quiet: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl Retrying {
    /// Begins the scope.
    pub fn enter() -> Self {
        RETRIES.set(RETRIES.get() + 1);
        Self { is_quiet: false, _of_this_thread: PhantomData }
    }

    /// Begins the scope, for a caller that always makes a refused request again: the first refusal
    /// is not recorded, so that one that remains is recorded once.
    pub fn quietly() -> Self {
        RETRIES.set(RETRIES.get() + 1);
        QUIET.set(QUIET.get() + 1);
        Self { is_quiet: true, _of_this_thread: PhantomData }
    }
}

impl Drop for Retrying {
    fn drop(&mut self) {
        QUIET.set(QUIET.get().saturating_sub(u32::from(self.is_quiet)));
        RETRIES.set(RETRIES.get().saturating_sub(1));
    }
}

/// Writes a recording to the folder: an allocation is refused, and nothing that was tried in a
/// scope of [`Retrying`] has helped.
#[cold]
pub fn gave_up() {
    if gate::is_on() && RETRIES.get() == 0 {
        write_file("out-of-memory", Heaps::Described("out of memory"));
    }
}

pub(crate) fn refuse(refused: Refused) {
    if QUIET.get() > 0 {
        return;
    }
    note(What::Refused(refused));
    gave_up();
}

pub(crate) fn lose(device: usize, message: &str) {
    note(What::DeviceLost { device, message: message.into() });
    // The thread may hold a lock of a heap.
    write_file("device-lost", Heaps::LeftOut);
}

pub(crate) fn note_heaps_before() {
    let mut recorder = lock(RECORDER.get());
    let Some(running) = &recorder.running else { return };
    if running.config.folder.is_none() && running.config.stream_to.is_none() {
        return;
    }
    let now = running.origin.now_ns();
    let last = recorder.last_heaps_ns;
    if last.is_some_and(|last| now.saturating_sub(last) < HEAPS_INTERVAL_NS) {
        return;
    }
    recorder.last_heaps_ns = Some(now);
    drop(recorder);
    for heap in heaps() {
        note(What::Heap { why: "before memory was made free", heap });
    }
}

/// Writes a recording to the folder, if there is one and it may have more files. Errors are kept
/// for [`status`].
pub(crate) fn write_file(why: &str, described: Heaps) {
    let Some(path) = next_file(why) else { return };
    let written = create_new(&path).and_then(|created| {
        write_to(created.file, described)?;
        Ok(created.path)
    });
    let mut recorder = lock(RECORDER.get());
    match written {
        Ok(path) => recorder.files.push(path),
        Err(error) => {
            recorder.failures += 1;
            recorder.last_failure = Some(format!("{}: {error}", path.display()));
        }
    }
}

/// A file that was not there before.
struct Created {
    file: File,
    path: PathBuf,
}

/// Creates a file of this path, or of one with a number in its name: a process before may have had
/// the same number, as the first of each container has.
fn create_new(path: &Path) -> io::Result<Created> {
    let mut path = path.to_owned();
    for again in 2.. {
        match File::create_new(&path) {
            Ok(file) => return Ok(Created { file, path }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && again < MOST_NAMES => {
                path.set_extension(format!("{again}.rec"));
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn next_file(why: &str) -> Option<PathBuf> {
    let mut recorder = lock(RECORDER.get());
    let config = &recorder.running.as_ref()?.config;
    let folder = config.folder.as_ref()?;
    if recorder.attempts >= config.max_files {
        return None;
    }
    let process = std::process::id();
    let nth = recorder.attempts + 1;
    let path = folder.join(format!("dmr-{process}-{nth}-{why}.rec"));
    recorder.attempts = nth;
    Some(path)
}
