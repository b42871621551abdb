//! Maps the streams of the trace to real ones.

use std::collections::{BTreeSet, HashMap};

use dmr_core::{ResourceResult, StreamId};

/// The source of the streams of a replay: one for each stream of the trace, as far as there are enough.
pub trait ReplayStreams {
    /// Returns the stream for the trace's `nth` distinct stream; `None` if there are no more. Called once
    /// for each, from 0, in order. The other streams of the trace then share those that were returned.
    ///
    /// # Errors
    ///
    /// A stream cannot be opened: the replay ends.
    fn open(&mut self, nth: usize) -> ResourceResult<Option<StreamId>>;
}

/// Streams that are open.
impl ReplayStreams for Vec<StreamId> {
    fn open(&mut self, nth: usize) -> ResourceResult<Option<StreamId>> {
        Ok(self.get(nth).copied())
    }
}

/// A stream of the trace: streams of two devices are two, even with one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TraceStream {
    pub(crate) device: u32,
    pub(crate) stream: u64,
}

/// The maximum numbers of streams and devices of the trace that are distinguished. More streams are folded
/// without being counted, so that a hostile trace takes bounded memory.
const MAX_KNOWN: usize = 1 << 16;
const MAX_DEVICES: usize = 64;

/// Maps the trace's streams to real ones, in the order in which they appear.
pub(crate) struct StreamMap<'a> {
    source: &'a mut dyn ReplayStreams,
    opened: Vec<StreamId>,
    exhausted: bool,
    known: HashMap<TraceStream, StreamId>,
    devices: BTreeSet<u32>,
}

impl<'a> StreamMap<'a> {
    pub(crate) fn new(source: &'a mut dyn ReplayStreams) -> Self {
        Self {
            source,
            opened: Vec::new(),
            exhausted: false,
            known: HashMap::new(),
            devices: BTreeSet::new(),
        }
    }

    /// Returns the real stream of a stream of the trace.
    pub(crate) fn resolve(&mut self, stream: TraceStream) -> ResourceResult<StreamId> {
        if let Some(&known) = self.known.get(&stream) {
            return Ok(known);
        }
        if self.devices.len() < MAX_DEVICES {
            self.devices.insert(stream.device);
        }
        if self.known.len() == MAX_KNOWN {
            return Ok(self.folded(stream.stream as usize));
        }
        let nth = self.known.len();
        if !self.exhausted {
            match self.source.open(nth)? {
                Some(id) => self.opened.push(id),
                None => self.exhausted = true,
            }
        }
        let id = self.folded(nth);
        self.known.insert(stream, id);
        Ok(id)
    }

    /// Returns how many real streams are in use; 0 until the first is resolved.
    pub(crate) fn real(&self) -> u64 {
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

    /// Returns a stream in turn; the pool's default stream if there is none.
    fn folded(&self, nth: usize) -> StreamId {
        match self.opened.len() {
            0 => StreamId::DEFAULT,
            n => self.opened[nth % n],
        }
    }
}
