//! Settings of the recorder.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// The settings with which [`start`](crate::start) begins to record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "settings do nothing until the recorder is started with them"]
pub struct RecorderConfig {
    /// The events that are kept of each thread: rounded up to a power of two. One place is always
    /// the writer's. Each takes 64 bytes.
    pub events_per_thread: usize,
    /// The most threads that record at a time; the events of others are counted as lost.
    pub max_threads: usize,
    /// The folder of the recordings that are written without being asked for: at an out of memory
    /// that reaches the program, and at a lost device. `None` for none.
    pub folder: Option<PathBuf>,
    /// The most files that are written to the folder, in the life of the process.
    pub max_files: usize,
    /// If true, a panic writes a recording to the folder, before the panic hook of the program.
    pub on_panic: bool,
    /// The signal after which a recording is written to the folder, by a thread of the recorder;
    /// Unix only.
    pub on_signal: Option<i32>,
    /// A file to which all events are appended continuously, by a thread of the recorder.
    pub stream_to: Option<PathBuf>,
    /// The time between two writes to that file.
    pub stream_interval: Duration,
    /// One in this many waits of a stream for another is measured on the device. `None` for none.
    pub timed_waits: Option<NonZeroU32>,
}

impl RecorderConfig {
    /// The default number of events that are kept of each thread: a MiB.
    pub const EVENTS_PER_THREAD: usize = 1 << 14;

    /// The most events that can be kept of each thread.
    pub const MAX_EVENTS_PER_THREAD: usize = 1 << 24;

    /// Returns the default settings: events are kept, and written on request.
    pub const fn new() -> Self {
        Self {
            events_per_thread: Self::EVENTS_PER_THREAD,
            max_threads: 256,
            folder: None,
            max_files: 8,
            on_panic: false,
            on_signal: None,
            stream_to: None,
            stream_interval: Duration::from_millis(20),
            timed_waits: None,
        }
    }

    /// Sets the number of events that are kept of each thread: 64 to
    /// [`MAX_EVENTS_PER_THREAD`](Self::MAX_EVENTS_PER_THREAD).
    pub const fn with_events_per_thread(mut self, events: usize) -> Self {
        self.events_per_thread = events;
        self
    }

    /// Writes a recording to this folder when memory runs out and when a device is lost.
    pub fn with_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Writes a recording to the folder at a panic, too.
    pub const fn on_panic(mut self) -> Self {
        self.on_panic = true;
        self
    }

    /// Writes a recording to the folder after this signal, too, such as `SIGUSR2`.
    pub const fn on_signal(mut self, signal: i32) -> Self {
        self.on_signal = Some(signal);
        self
    }

    /// Appends all events to this file, continuously.
    pub fn stream_to(mut self, file: impl Into<PathBuf>) -> Self {
        self.stream_to = Some(file.into());
        self
    }

    /// Measures for how long a wait holds up its stream, on the device, for one in `one_in` waits
    /// of a stream for another: two events with timing are recorded on the waiting stream, around
    /// the wait. Each costs such a wait a driver call more, and the stream a few microseconds.
    pub const fn time_waits(mut self, one_in: NonZeroU32) -> Self {
        self.timed_waits = Some(one_in);
        self
    }
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The error of a recorder that cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It has been started already. It goes on with its first settings.
    #[error("the flight recorder of this process has been started already: `stop` it before")]
    AlreadyStarted,
    /// A setting needs a folder.
    #[error("a recording after a {0} needs a folder: call `RecorderConfig::with_folder`")]
    NoFolder(&'static str),
    /// The file to which events are appended cannot be written, or is no recording.
    #[error("events cannot be appended to {path}: {source}")]
    #[non_exhaustive]
    Stream {
        /// The file.
        path: PathBuf,
        /// The error of the file.
        source: std::io::Error,
    },
    /// The thread of the recorder cannot be started.
    #[error("the thread of the flight recorder cannot be started: {0}")]
    Thread(std::io::Error),
    /// The signal cannot be used.
    #[error("signal {signal} cannot be used for recordings: {problem}")]
    #[non_exhaustive]
    Signal {
        /// The signal.
        signal: i32,
        /// The problem.
        problem: &'static str,
    },
}
