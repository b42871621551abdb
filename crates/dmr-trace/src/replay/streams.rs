//! Which real stream stands for a stream of the trace.

use std::collections::{BTreeSet, HashMap};

use dmr_core::{ResourceResult, StreamId};

/// Where a replay gets its streams, one for each stream of the trace while there are any.
pub trait ReplayStreams {
    /// The stream for the trace's `nth` distinct stream (from 0, each asked for once, in order);
    /// `None` if there are no more. The rest of the trace's streams are then folded onto those
    /// that there are.
    ///
    /// # Errors
    ///
    /// A stream should be there and is not: the replay ends.
    fn open(&mut self, nth: usize) -> ResourceResult<Option<StreamId>>;
}

/// Ready streams.
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

/// Trace streams that are told apart. More are folded without being counted, so that a hostile
/// trace takes bounded memory.
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

    /// The stream for `stream`.
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

    /// Streams in use; 0 until the first is resolved.
    pub(crate) fn real(&self) -> u64 {
        self.opened.len() as u64
    }

    /// Distinct streams of the trace, up to [`MAX_KNOWN`].
    pub(crate) fn distinct(&self) -> u64 {
        self.known.len() as u64
    }

    /// Distinct devices of the trace, up to [`MAX_DEVICES`].
    pub(crate) fn devices(&self) -> u64 {
        self.devices.len() as u64
    }

    /// With no stream at all, the pool's own first one.
    fn folded(&self, nth: usize) -> StreamId {
        match self.opened.len() {
            0 => StreamId::DEFAULT,
            n => self.opened[nth % n],
        }
    }
}
