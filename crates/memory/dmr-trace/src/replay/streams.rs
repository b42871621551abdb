//! Maps the streams of the trace to the streams of the replay.

use std::collections::{BTreeSet, HashMap};

use dmr_core::{ResourceResult, StreamId};

/// The source of a replay's streams: one for each stream of the trace, until there are no more.
pub trait ReplayStreams {
    /// Returns the stream for the trace's `nth` distinct stream; `None` if there are no more. It is
    /// called once for each `nth`, in order from 0, until it returns `None`. The remaining streams
    /// of the trace share the streams that were returned.
    ///
    /// # Errors
    ///
    /// Errors if a stream cannot be opened, which ends the replay.
    fn open(&mut self, nth: usize) -> ResourceResult<Option<StreamId>>;
}

/// Uses the streams of the vector, in order.
impl ReplayStreams for Vec<StreamId> {
    fn open(&mut self, nth: usize) -> ResourceResult<Option<StreamId>> {
        Ok(self.get(nth).copied())
    }
}

/// A stream of the trace. Streams of two devices are distinct, even if their numbers are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TraceStream {
    pub(crate) device: u32,
    pub(crate) stream: u64,
}

/// The maximum numbers of distinct streams and devices that are tracked, so that a hostile trace
/// takes bounded memory. Further streams share open ones and are not counted.
const MAX_KNOWN: usize = 1 << 16;
const MAX_DEVICES: usize = 64;

/// Maps the trace's streams to open streams, in the order in which they appear.
pub(crate) struct StreamMap<'a> {
    source: &'a mut dyn ReplayStreams,
    opened: Vec<StreamId>,
    is_exhausted: bool,
    known: HashMap<TraceStream, StreamId>,
    devices: BTreeSet<u32>,
}

impl<'a> StreamMap<'a> {
    pub(crate) fn new(source: &'a mut dyn ReplayStreams) -> Self {
        Self {
            source,
            opened: Vec::new(),
            is_exhausted: false,
            known: HashMap::new(),
            devices: BTreeSet::new(),
        }
    }

    /// Returns the open stream of a stream of the trace.
    pub(crate) fn resolve(&mut self, stream: TraceStream) -> ResourceResult<StreamId> {
        if let Some(&known) = self.known.get(&stream) {
            return Ok(known);
        }
        if self.devices.len() < MAX_DEVICES {
            self.devices.insert(stream.device);
        }
        if self.known.len() == MAX_KNOWN {
            return Ok(self.opened_for(stream.stream as usize));
        }
        let nth = self.known.len();
        if !self.is_exhausted {
            match self.source.open(nth)? {
                Some(id) => self.opened.push(id),
                None => self.is_exhausted = true,
            }
        }
        let id = self.opened_for(nth);
        self.known.insert(stream, id);
        Ok(id)
    }

    /// Returns the number of open streams; 0 until the first is resolved.
    pub(crate) fn opened_count(&self) -> u64 {
        self.opened.len() as u64
    }

    /// Returns the number of distinct streams of the trace, up to [`MAX_KNOWN`].
    pub(crate) fn distinct(&self) -> u64 {
        self.known.len() as u64
    }

    /// Returns the number of distinct devices of the trace, up to [`MAX_DEVICES`].
    pub(crate) fn devices(&self) -> u64 {
        self.devices.len() as u64
    }

    /// Returns the open stream for the trace's `nth` stream, in rotation; the pool's default stream
    /// if none is open.
    fn opened_for(&self, nth: usize) -> StreamId {
        match self.opened.len() {
            0 => StreamId::DEFAULT,
            n => self.opened[nth % n],
        }
    }
}
