//! A sink behind a queue: callers push, a thread of its own hands the records on in time order.

mod entry;
mod writer;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use dmr_core::Process;
use dmr_core::at_exit::{self, AtExit};
use dmr_core::sync::{ignore_poison, lock};
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use self::entry::Entry;
use self::writer::Writer;
use super::calls::{Waiting, now_ns, thread_number};
use super::{LogRecord, LoggingSink, SinkError};

/// Puts any sink behind a queue, so that a caller pays for a push only, however slow the sink is.
///
/// Each thread that records has a ring of its own; a background thread takes the records out,
/// puts them in time order and hands them to the sink. It looks every few milliseconds by itself:
/// callers never wake it, unless they have to wait for it.
///
/// Records reach the inner sink on [`flush`](LoggingSink::flush), when the last owner drops this
/// sink, and by themselves within [`flush_interval`](BackgroundConfig::flush_interval). A process
/// that aborts or is killed loses what was recorded since the last of these. A process that ends
/// normally ([`dmr_core::at_exit`]) brings everything recorded so far to the inner sink and flushes
/// that, also if this sink is in a `static`; it waits up to 5 s for each of these. Records of
/// threads that still run then may be lost.
///
/// A record waits in the order for calls that began earlier, and are still in progress, for up to
/// 100 ms; so does a flush. The row of a call that takes longer stands later than its time says.
/// The time that a call waits for room in its ring does not count, up to 10 s.
///
/// In a forked child there is no background thread: records of the child are not written,
/// `flush` answers [`SinkError::Closed`], and dropping the sink does nothing.
pub struct BackgroundSink<S: LoggingSink + 'static> {
    shared: Arc<Shared<S>>,
    writer: Option<JoinHandle<()>>,
}

/// How a [`BackgroundSink`] queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct BackgroundConfig {
    /// How many records the ring of one thread holds, of 64 bytes each.
    pub ring_records: usize,
    /// What a thread does whose ring is full.
    pub when_full: WhenFull,
    /// How long a record can be on its way to the inner sink, and through it, if nobody flushes.
    pub flush_interval: Duration,
}

impl BackgroundConfig {
    /// Rings of 8,192 records, which block when they are full, and a second between flushes.
    pub const fn new() -> Self {
        let flush_interval = Duration::from_secs(1);
        Self { ring_records: 8192, when_full: WhenFull::Block, flush_interval }
    }

    /// Sets [`ring_records`](Self::ring_records); at least one.
    pub const fn with_ring_records(mut self, records: usize) -> Self {
        self.ring_records = if records == 0 { 1 } else { records };
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

/// What a thread does whose ring is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// It waits until there is room: nothing is lost, and the sink sets the pace.
    #[default]
    Block,
    /// It drops the record, as [`SinkError::Full`]: the log has holes, and calls are never slowed.
    Drop,
}

impl<S: LoggingSink + 'static> BackgroundSink<S> {
    /// Starts the background thread of `sink`.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn new(sink: S, config: BackgroundConfig) -> io::Result<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Shared {
            sink,
            config,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            made_in: Process::current(),
            thread: OnceLock::new(),
            writer: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            control: Mutex::default(),
            changed: Condvar::new(),
        });
        let writer = Writer::new(Arc::clone(&shared));
        let writer = thread::Builder::new().name("dmr-log".into()).spawn(|| writer.run())?;
        // Callers need it only once they wait, which is after this.
        let _ = shared.thread.set(writer.thread().clone());
        at_exit::register(Arc::downgrade(&shared) as Weak<dyn AtExit>);
        Ok(Self { shared, writer: Some(writer) })
    }

    /// The sink behind the queue.
    pub fn get_ref(&self) -> &S {
        &self.shared.sink
    }

    /// How many records were taken into the queue and then refused by the sink behind it, so far.
    /// The next [`flush`](LoggingSink::flush) says why.
    pub fn lost_records(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl<S: LoggingSink + 'static> LoggingSink for BackgroundSink<S> {
    #[inline]
    fn record(&self, record: &LogRecord) -> Result<(), SinkError> {
        let pushed = RINGS.try_with(|rings| {
            let mut rings = rings.try_borrow_mut().map_err(|_| SinkError::Closed)?;
            let at = match rings.iter().position(|ring| ring.sink == self.shared.id) {
                Some(at) => at,
                None => self.shared.add_ring(&mut rings)?,
            };
            self.shared.push(&mut rings[at], record)
        });
        match pushed {
            Ok(pushed) => pushed,
            // The thread is being torn down and has lost its ring: one for this record alone.
            Err(_) => self.shared.push(&mut self.shared.make_ring(1)?, record),
        }
    }

    fn flush(&self) -> Result<(), SinkError> {
        let shared = &*self.shared;
        if shared.is_forked() || shared.is_writer() {
            return Err(SinkError::Closed);
        }
        let mut control = shared.control();
        let mine = control.request_flush();
        shared.wake();
        while control.served < mine && !control.has_ended {
            control = ignore_poison(shared.changed.wait(control));
        }
        match &control.failure {
            _ if control.served < mine => Err(SinkError::Closed),
            Some((last, error)) if mine <= *last => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl<S: LoggingSink + 'static> Drop for BackgroundSink<S> {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if self.shared.is_forked() {
            // There is no such thread in this process: it can be neither joined nor let go.
            std::mem::forget(writer);
            return;
        }
        self.shared.control().is_stopping = true;
        self.shared.wake();
        // Dropped by the sink behind the queue: the writer cannot wait for itself, and ends by
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

impl<S: LoggingSink + 'static> AtExit for Shared<S> {
    /// Flushes, and then ends the background thread: other threads may go on to record, and must
    /// not leave half a gzip member behind.
    fn at_exit(&self) {
        // Exit was called by the sink behind the queue: its own thread cannot be waited for.
        if self.is_writer() {
            return;
        }
        let mut control = self.control();
        let mine = control.request_flush();
        self.wake();
        control = self.wait_at_exit(control, |control| control.served >= mine);
        control.is_stopping = true;
        self.wake();
        drop(self.wait_at_exit(control, |_| false));
    }
}

/// What callers and the background thread share.
struct Shared<S> {
    sink: S,
    config: BackgroundConfig,
    /// Which rings are this sink's. Never reused.
    id: u64,
    /// The process that has the background thread.
    made_in: Process,
    thread: OnceLock<Thread>,
    /// The number of the background thread; 0 until it runs. `Thread` has an id as well, but
    /// `thread::current` is not available on a thread that is being torn down.
    writer: AtomicU64,
    lost: AtomicU64,
    control: Mutex<Control>,
    /// Told when `served` or `has_ended` changes.
    changed: Condvar,
}

/// What callers ask of the background thread, and its answers.
#[derive(Default)]
struct Control {
    /// With the thread that each belongs to.
    new_rings: Vec<(u64, Consumer<Entry>)>,
    /// Flushes are numbered from 1: how many were asked for, and when the last one was.
    requested: u64,
    requested_ns: u64,
    /// How many are done.
    served: u64,
    /// The last flush that did not go well, and why.
    failure: Option<(u64, SinkError)>,
    is_stopping: bool,
    has_ended: bool,
}

impl Control {
    /// Returns the number of the flush.
    fn request_flush(&mut self) -> u64 {
        self.requested += 1;
        self.requested_ns = now_ns();
        self.requested
    }
}

/// The way from one thread to one sink.
struct Ring {
    sink: u64,
    thread: u64,
    producer: Producer<Entry>,
}

thread_local! {
    /// The rings of this thread. When it ends they are let go, and the background threads take
    /// out what is in them.
    static RINGS: RefCell<Vec<Ring>> = const { RefCell::new(Vec::new()) };
}

impl<S> Shared<S> {
    #[cold]
    fn add_ring(&self, rings: &mut Vec<Ring>) -> Result<usize, SinkError> {
        let ring = self.make_ring(self.config.ring_records)?;
        // Of sinks that are gone.
        rings.retain(|ring| !ring.producer.is_abandoned());
        rings.push(ring);
        Ok(rings.len() - 1)
    }

    fn make_ring(&self, records: usize) -> Result<Ring, SinkError> {
        // Asked first: the lock may have been held when the process was forked.
        if self.is_forked() {
            return Err(SinkError::Closed);
        }
        let (producer, consumer) = RingBuffer::new(records);
        let ring = Ring { sink: self.id, thread: thread_number(), producer };
        let mut control = self.control();
        if control.has_ended {
            return Err(SinkError::Closed);
        }
        control.new_rings.push((ring.thread, consumer));
        Ok(ring)
    }

    #[inline]
    fn push(&self, ring: &mut Ring, record: &LogRecord) -> Result<(), SinkError> {
        match ring.producer.push(Entry::pack(record, ring.thread)) {
            Ok(()) => Ok(()),
            Err(PushError::Full(entry)) => match self.config.when_full {
                WhenFull::Block => self.push_blocking(ring, entry),
                WhenFull::Drop => Err(SinkError::Full),
            },
        }
    }

    #[cold]
    fn push_blocking(&self, ring: &mut Ring, mut entry: Entry) -> Result<(), SinkError> {
        let _waiting = Waiting::begin();
        loop {
            if ring.producer.is_abandoned() || self.is_writer() || self.is_forked() {
                return Err(SinkError::Closed);
            }
            self.wake();
            thread::sleep(BLOCKED);
            match ring.producer.push(entry) {
                Ok(()) => return Ok(()),
                Err(PushError::Full(back)) => entry = back,
            }
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn is_writer(&self) -> bool {
        self.writer.load(Ordering::Relaxed) == thread_number()
    }

    fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Waits until `is_done`, until the background thread has ended, or for [`AT_EXIT`].
    fn wait_at_exit<'a>(
        &self,
        control: MutexGuard<'a, Control>,
        is_done: impl Fn(&Control) -> bool,
    ) -> MutexGuard<'a, Control> {
        let waits = |control: &mut Control| !is_done(control) && !control.has_ended;
        let waited = self.changed.wait_timeout_while(control, AT_EXIT, waits);
        ignore_poison(waited).0
    }
}

/// How long the end of the process waits for the sink behind the queue, at each of its two steps.
const AT_EXIT: Duration = Duration::from_secs(5);

/// How long a thread sleeps before it tries a full ring again.
const BLOCKED: Duration = Duration::from_micros(50);
