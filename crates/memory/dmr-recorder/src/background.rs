//! The thread of the recorder: appends events to a file, and writes a recording after a signal.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dmr_core::at_exit::{self, AtExit};
use dmr_core::sync::lock;

use crate::clock::Anchor;
use crate::config::{RecorderConfig, StartError};
use crate::heap::heaps;
use crate::recorder::{Heaps, Origin, write_file};
use crate::signals;
use crate::write::{EventWriter, Progress};

/// The time between two looks at the flag of the signal, where no file is appended to.
const LOOK: Duration = Duration::from_millis(50);

/// The thread, which ends when this is dropped.
pub(crate) struct Background {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: Mutex<bool>,
    stopped: Condvar,
    appended: Option<Mutex<Appended>>,
}

/// A file to which events are appended.
struct Appended {
    path: PathBuf,
    origin: Origin,
    /// `None` once it was finished.
    writer: Option<EventWriter<File>>,
    progress: Progress,
    anchor: Anchor,
    failure: Option<String>,
}

impl Background {
    /// Starts the thread, if the settings need it.
    pub(crate) fn start(
        config: &RecorderConfig,
        origin: Origin,
    ) -> Result<Option<Self>, StartError> {
        if config.stream_to.is_none() && config.on_signal.is_none() {
            return Ok(None);
        }
        let appended = config.stream_to.clone().map(|path| Appended::begin(path, origin));
        let appended = appended.transpose()?.map(Mutex::new);
        if let Some(signal) = config.on_signal {
            signals::watch(signal)?;
        }
        let stop = Mutex::new(false);
        let shared = Arc::new(Shared { stop, stopped: Condvar::new(), appended });
        if shared.appended.is_some() {
            let hook: Arc<dyn AtExit> = shared.clone();
            at_exit::register(Arc::downgrade(&hook));
        }
        let interval = match config.stream_to {
            Some(_) => config.stream_interval.max(Duration::from_millis(1)),
            None => LOOK,
        };
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("dmr recorder".to_owned())
            .spawn(move || of_thread.run(interval))
            .map_err(StartError::Thread)?;
        Ok(Some(Self { shared, thread: Some(thread) }))
    }

    /// Returns the file to which events are appended, if there is one.
    pub(crate) fn appended(&self) -> Option<AppendedFile> {
        self.shared.appended.is_some().then(|| AppendedFile(Arc::clone(&self.shared)))
    }
}

/// The file to which events are appended.
pub(crate) struct AppendedFile(Arc<Shared>);

impl AppendedFile {
    /// Returns the error by which appending has ended. Waits for a write of the thread.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(self.0.appended.as_ref()?).failure.clone()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *lock(&self.shared.stop) = true;
        self.shared.stopped.notify_all();
        let own = self.thread.take_if(|thread| thread.thread().id() == thread::current().id());
        if own.is_some() {
            // A heap that stops the recorder while it is described: the thread ends by itself.
            return;
        }
        // A panic of the thread has been reported by the panic hook.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn run(&self, interval: Duration) {
        let mut stop = lock(&self.stop);
        while !*stop {
            let waited = self.stopped.wait_timeout(stop, interval);
            stop = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            drop(stop);
            if signals::was_asked() {
                write_file("signal", Heaps::Described("signal"));
            }
            if let Some(appended) = &self.appended {
                lock(appended).append();
            }
            stop = lock(&self.stop);
        }
        drop(stop);
        if let Some(appended) = &self.appended {
            lock(appended).finish();
        }
    }
}

/// At the end of the process the last events are written. If the thread is writing, its file ends
/// with what it has written.
impl AtExit for Shared {
    fn at_exit(&self) {
        if let Some(mut appended) =
            self.appended.as_ref().and_then(|appended| appended.try_lock().ok())
        {
            appended.finish();
        }
    }
}

impl Appended {
    /// Begins a section with the heaps as they are.
    fn begin(path: PathBuf, origin: Origin) -> Result<Self, StartError> {
        let times = origin.times();
        let begin = || -> io::Result<EventWriter<File>> {
            let mut writer = EventWriter::new(origin.append(&path, &times)?);
            writer.write_names(0)?;
            for heap in heaps() {
                writer.write_heap(&heap, "start", 0)?;
            }
            writer.flush()?;
            Ok(writer)
        };
        match begin() {
            Ok(writer) => {
                let writer = Some(writer);
                let progress = Progress::now();
                let anchor = origin.anchor();
                Ok(Self { path, origin, writer, progress, anchor, failure: None })
            }
            Err(source) => Err(StartError::Stream { path, source }),
        }
    }

    fn append(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let collected = self.progress.collect();
        let since = self.origin.times_since(self.anchor);
        self.anchor = since.now;
        let written = writer
            .write_names(self.origin.now_ns())
            .and_then(|()| writer.write(collected, &since.times))
            .and_then(|_| writer.flush());
        if let Err(error) = written {
            self.failure = Some(format!("{}: {error}", self.path.display()));
            self.writer = None;
        }
    }

    fn finish(&mut self) {
        self.append();
        if let Some(Err(error)) = self.writer.take().map(EventWriter::finish) {
            self.failure = Some(format!("{}: {error}", self.path.display()));
        }
    }
}
