//! A sink behind queues: callers push their records, and a thread of its own passes them on.
//!
//! A call that is logged costs a copy of its record and a push. The writer polls the queues instead
//! of being woken, because to wake a thread is a system call for each record. Requests (flush, end)
//! go through a channel, which the writer reads before the queues: so a flush covers every record
//! that was pushed before it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use dmr_core::at_exit::{self, AtExit};
use dmr_core::{AllocationRecord, Process};

use super::sink::catch_panic;
use super::{LoggingSink, SinkError};
use crate::thread_number::thread_number;

/// Puts any sink behind queues, so that a caller pays for a push only, however slow the sink is.
///
/// A thread pushes to one of 32 queues, chosen by its number, so that few threads share one. A
/// writer thread takes the records out, queue by queue, and passes them to the sink: in the order
/// in which a thread pushed them, but not in that of their [stamps](super#order). It looks into the
/// queues every few milliseconds; a caller wakes it only to wait for it.
///
/// Records reach the sink on [`flush`](LoggingSink::flush), when the last owner drops this value,
/// and without either within [`flush_interval`](BackgroundConfig::flush_interval). A process that
/// aborts or is killed loses the records since the last of these. A process that ends normally
/// ([`dmr_core::at_exit`]) passes all records on and flushes the sink, even if this value is in a
/// `static`, and waits up to 10 s for that. Records of threads that still run then may be lost.
///
/// In a forked child there is no writer thread: `record` and `flush` return [`SinkError::Closed`],
/// and dropping this value does nothing.
pub struct BackgroundSink<S: LoggingSink + 'static> {
    shared: Arc<Shared<S>>,
    writer: Option<JoinHandle<()>>,
}

/// The configuration of a [`BackgroundSink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct BackgroundConfig {
    /// The capacity of each of the 32 queues, in records of about 100 bytes. A queue takes no
    /// memory before its first record.
    pub queue_records: usize,
    /// The behaviour of a call whose queue is full.
    pub when_full: WhenFull,
    /// The longest time from a record to the flush that follows it.
    pub flush_interval: Duration,
}

impl BackgroundConfig {
    /// Returns queues of 8,192 records, calls that wait when one is full, and a second between
    /// flushes.
    pub const fn new() -> Self {
        let flush_interval = Duration::from_secs(1);
        Self { queue_records: 8192, when_full: WhenFull::Block, flush_interval }
    }

    /// Sets [`queue_records`](Self::queue_records); at least one.
    pub const fn with_queue_records(mut self, records: usize) -> Self {
        self.queue_records = if records == 0 { 1 } else { records };
        self
    }

    /// Sets [`when_full`](Self::when_full).
    pub const fn with_when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Sets [`flush_interval`](Self::flush_interval).
    pub const fn with_flush_interval(mut self, interval: Duration) -> Self {
        self.flush_interval = interval;
        self
    }
}

impl Default for BackgroundConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The behaviour of a call whose queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Waits until there is room: the log is complete, and no faster than the sink.
    #[default]
    Block,
    /// Drops the record, as [`SinkError::Full`]: the log has holes, and no call waits.
    Drop,
}

impl<S: LoggingSink + 'static> BackgroundSink<S> {
    /// Starts the writer thread of `sink`.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn new(sink: S, config: BackgroundConfig) -> io::Result<Self> {
        let (requests, received) = mpsc::channel();
        let shared = Arc::new(Shared {
            sink,
            config,
            made_in: Process::current(),
            queues: [const { OnceLock::new() }; QUEUES],
            requests,
            writer: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let writer = Writer::new(Arc::clone(&shared));
        let thread = thread::Builder::new().name("dmr-log".into());
        let writer = Some(thread.spawn(move || writer.run(&received))?);
        at_exit::register(Arc::downgrade(&shared) as Weak<dyn AtExit>);
        Ok(Self { shared, writer })
    }

    /// Returns the sink behind the queues.
    pub fn sink(&self) -> &S {
        &self.shared.sink
    }

    /// Returns how many records were accepted and then refused by the sink, so far. The next
    /// [`flush`](LoggingSink::flush) returns why.
    pub fn lost_records(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl<S: LoggingSink + 'static> LoggingSink for BackgroundSink<S> {
    #[inline]
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError> {
        let shared = &*self.shared;
        // A thread of the parent may have been in the middle of a push.
        if shared.is_forked() {
            return Err(SinkError::Closed);
        }
        let queue = &shared.queues[record.thread as usize % QUEUES];
        let queue = queue.get_or_init(|| ArrayQueue::new(shared.config.queue_records));
        match queue.push(record.clone()) {
            Ok(()) => Ok(()),
            Err(record) => shared.push_to_full(queue, record),
        }
    }

    fn flush(&self) -> Result<(), SinkError> {
        if self.shared.is_forked() || self.shared.is_writer() {
            return Err(SinkError::Closed);
        }
        self.shared.request(Request::Flush)?.recv().unwrap_or(Err(SinkError::Closed))
    }
}

impl<S: LoggingSink + 'static> Drop for BackgroundSink<S> {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if self.shared.is_forked() {
            // There is no such thread in this process: it can be neither joined nor detached.
            std::mem::forget(writer);
            return;
        }
        drop(self.shared.request(Request::End));
        // If the sink itself drops its last owner, on the writer thread, the thread cannot join
        // itself.
        if !self.shared.is_writer() {
            let _ = writer.join();
        }
    }
}

impl<S: LoggingSink + 'static> fmt::Debug for BackgroundSink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Background({:?})", self.shared.sink)
    }
}

/// With more than this many threads some share a queue. On one that two threads push to at once, a
/// push takes several times as long.
const QUEUES: usize = 32;

/// The state that callers and the writer share.
struct Shared<S> {
    sink: S,
    config: BackgroundConfig,
    made_in: Process,
    /// By the number of the thread that pushes.
    queues: [OnceLock<ArrayQueue<AllocationRecord>>; QUEUES],
    requests: Sender<Request>,
    /// The number of the writer thread; 0 until it runs.
    writer: AtomicU64,
    lost: AtomicU64,
}

/// A call's request to the writer. The writer sends the outcome of its flush; the channel closes
/// without one if the writer has ended.
enum Request {
    /// Look into the queues now: one is full.
    Wake,
    Flush(Sender<Result<(), SinkError>>),
    /// Flush for the last time.
    End(Sender<Result<(), SinkError>>),
}

/// The time that a call sleeps before it tries a full queue again, and the tries after which it
/// wakes the writer again.
const FULL: Duration = Duration::from_micros(50);
const SLEEPS: u32 = 1000;

/// The longest that the end of the process waits for the writer.
const AT_EXIT: Duration = Duration::from_secs(10);

impl<S> Shared<S> {
    #[cold]
    fn push_to_full(
        &self,
        queue: &ArrayQueue<AllocationRecord>,
        mut record: AllocationRecord,
    ) -> Result<(), SinkError> {
        if self.config.when_full == WhenFull::Drop {
            return Err(SinkError::Full);
        }
        // A sink that records calls of its own, on the writer thread, cannot wait for the writer.
        while !self.is_writer() && self.requests.send(Request::Wake).is_ok() {
            for _ in 0..SLEEPS {
                thread::sleep(FULL);
                match queue.push(record) {
                    Ok(()) => return Ok(()),
                    Err(back) => record = back,
                }
            }
        }
        Err(SinkError::Closed)
    }

    /// Sends a request, and returns where its outcome arrives.
    fn request(
        &self,
        request: fn(Sender<Result<(), SinkError>>) -> Request,
    ) -> Result<Receiver<Result<(), SinkError>>, SinkError> {
        let (done, outcome) = mpsc::channel();
        self.requests.send(request(done)).map_err(|_| SinkError::Closed)?;
        Ok(outcome)
    }

    fn is_writer(&self) -> bool {
        self.writer.load(Ordering::Relaxed) == thread_number()
    }

    fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }
}

impl<S: LoggingSink + 'static> AtExit for Shared<S> {
    /// Ends the writer, so that the threads that still record cannot leave half a gzip member
    /// behind.
    fn at_exit(&self) {
        // If the sink ended the process, on the writer thread, that thread cannot be waited for.
        if self.is_writer() {
            return;
        }
        if let Ok(outcome) = self.request(Request::End) {
            drop(outcome.recv_timeout(AT_EXIT));
        }
    }
}

/// The thread that passes records on to the sink.
struct Writer<S: LoggingSink> {
    shared: Arc<Shared<S>>,
    flushed_at: Instant,
    /// `true` if the sink has records that were not flushed.
    is_dirty: bool,
    /// Since the last flush that a caller requested: the records that the sink refused, and the
    /// first error.
    lost: u64,
    failure: Option<SinkError>,
}

/// The time that the writer sleeps after a pass that found records, and after one that found none.
const BUSY: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(5);

impl<S: LoggingSink> Writer<S> {
    fn new(shared: Arc<Shared<S>>) -> Self {
        Self { shared, flushed_at: Instant::now(), is_dirty: false, lost: 0, failure: None }
    }

    fn run(mut self, requests: &Receiver<Request>) {
        self.shared.writer.store(thread_number(), Ordering::Relaxed);
        let mut found = false;
        let mut is_last = false;
        while !is_last {
            let first = requests.recv_timeout(if found { BUSY } else { IDLE }).ok();
            // Received before the queues are read: what was pushed before a request is passed on
            // before its flush.
            let mut flushes = Vec::new();
            for request in first.into_iter().chain(requests.try_iter()) {
                is_last |= matches!(request, Request::End(_));
                if let Request::Flush(done) | Request::End(done) = request {
                    flushes.push(done);
                }
            }
            found = self.pass_on_all();
            if !flushes.is_empty() {
                let outcome = self.flush_for_callers();
                for done in flushes {
                    // The caller may have stopped waiting.
                    drop(done.send(outcome.clone()));
                }
            } else if self.is_dirty
                && self.flushed_at.elapsed() >= self.shared.config.flush_interval
            {
                self.flush();
            }
        }
    }

    /// Passes on what is in the queues, and returns whether there was anything.
    fn pass_on_all(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut found = false;
        for queue in shared.queues.iter().filter_map(OnceLock::get) {
            // Records that are pushed meanwhile are left to the next pass: a thread that never
            // pauses must not keep the writer from the other queues.
            for record in (0..queue.len()).map_while(|_| queue.pop()) {
                found = true;
                self.pass_on(&record);
            }
        }
        found
    }

    fn pass_on(&mut self, record: &AllocationRecord) {
        self.is_dirty = true;
        if let Err(error) = catch_panic(|| self.shared.sink.record(record)) {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            self.lost += 1;
            self.failure.get_or_insert(error);
        }
    }

    fn flush(&mut self) {
        self.flushed_at = Instant::now();
        self.is_dirty = false;
        if let Err(error) = catch_panic(|| self.shared.sink.flush()) {
            self.failure.get_or_insert(error);
        }
    }

    /// Flushes, and returns the first failure since the last call.
    fn flush_for_callers(&mut self) -> Result<(), SinkError> {
        self.flush();
        match (self.failure.take(), std::mem::take(&mut self.lost)) {
            (None, _) => Ok(()),
            (Some(error), 0) => Err(error),
            (Some(first), records) => Err(SinkError::Lost { records, first: Box::new(first) }),
        }
    }
}
