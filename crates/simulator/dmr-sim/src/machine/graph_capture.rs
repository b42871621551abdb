//! Graphs that streams capture: the work of a stream becomes nodes, and waits for events become
//! edges.

use crate::abi::*;
use crate::host::capture_mode::{GLOBAL, MODE_OF_THREAD, RELAXED};
use crate::machine::{Capture, Graph, Machine, Node, NodeWork, Stream, StreamKind};

impl Machine {
    /// Adds the work to the graph that the stream captures, if it captures one.
    pub(crate) fn capture(
        &mut self,
        stream: u32,
        work: impl FnOnce() -> NodeWork,
    ) -> Outcome<bool> {
        if !self.captured(stream)? {
            return Ok(false);
        }
        let Some(Capture { id, .. }) = self.streams[stream as usize].capture else {
            return Ok(true);
        };
        let node = self.graphs.new_node();
        let captured = self.graphs.captures.entry(id).or_default();
        let tail = captured.tails.entry(stream).or_default();
        let after = std::mem::replace(tail, vec![node]);
        captured
            .graph
            .nodes
            .insert(node, Node { work: work(), after, original: None, captured_on: Some(stream) });
        Ok(true)
    }

    /// Records an event in the capture of a stream: a stream that waits for it comes after the
    /// nodes so far.
    pub(crate) fn capture_record(&mut self, stream: u32, event: u32) {
        let Some(Capture { id, .. }) = self.streams[stream as usize].capture else { return };
        let captured = self.graphs.captures.entry(id).or_default();
        let nodes = captured.tails.get(&stream).cloned().unwrap_or_default();
        self.graphs.event_nodes.insert(event, nodes);
    }

    /// Makes the next node of a capturing stream come after the nodes of an event.
    pub(crate) fn capture_wait(&mut self, stream: u32, event: u32) {
        let Some(Capture { id, .. }) = self.streams[stream as usize].capture else { return };
        let nodes = self.graphs.event_nodes.get(&event).cloned().unwrap_or_default();
        let tail = self.graphs.captures.entry(id).or_default().tails.entry(stream).or_default();
        tail.extend(nodes);
        tail.sort_unstable();
        tail.dedup();
    }

    /// Ends the captures that began on streams which have been destroyed: no call can end them.
    pub(crate) fn abandon_captures(&mut self) {
        let gone: Vec<u32> = self
            .streams
            .iter()
            .filter(|stream| stream.destroyed)
            .filter_map(|stream| stream.capture.filter(|capture| capture.origin))
            .map(|capture| capture.id)
            .collect();
        for stream in &mut self.streams {
            stream.capture = stream.capture.filter(|capture| !gone.contains(&capture.id));
        }
        gone.iter().for_each(|id| drop(self.graphs.captures.remove(id)));
    }

    /// Ends a capture that began on `stream`: its graph, unless work that another stream has forked
    /// does not come before the end. Nodes that the program has added, or has removed from the
    /// dependencies of a stream, need not.
    pub(crate) fn end_capture(&mut self, id: u32, stream: u32) -> Outcome<Graph> {
        let captured = self.graphs.captures.remove(&id).unwrap_or_default();
        let last = captured.tails.get(&stream).cloned().unwrap_or_default();
        let is_joined = |tail: &Vec<u32>| captured.graph.all_before(tail, &last);
        match captured.tails.values().all(is_joined) {
            true => Ok(captured.graph),
            false => Err(ERROR_STREAM_CAPTURE_UNJOINED),
        }
    }
}

impl Machine {
    /// Returns whether work for the stream becomes part of a graph instead of being executed. Work
    /// for the legacy stream is refused while a blocking stream of its context captures.
    pub(crate) fn captured(&mut self, stream: u32) -> Outcome<bool> {
        let this = &self.streams[stream as usize];
        if let Some(capture) = this.capture {
            return if capture.invalidated {
                Err(ERROR_STREAM_CAPTURE_INVALIDATED)
            } else {
                Ok(true)
            };
        }
        let mut implicit = false;
        for capture in self.captures_implied(stream) {
            capture.invalidated = true;
            implicit = true;
        }
        if implicit { Err(ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(false) }
    }

    /// Returns the captures of blocking streams of the same context, if the stream is the legacy
    /// one.
    pub(crate) fn captures_implied(&mut self, stream: u32) -> impl Iterator<Item = &mut Capture> {
        let this = &self.streams[stream as usize];
        let legacy = this.kind == StreamKind::Legacy;
        let context = this.context;
        let implied = move |other: &&mut Stream| {
            legacy && other.context == context && other.kind == StreamKind::Blocking
        };
        self.streams.iter_mut().filter(implied).filter_map(|other| other.capture.as_mut())
    }

    /// Refuses a call that a capturing stream does not accept, and invalidates its capture.
    pub(crate) fn refuse_if_capturing(&mut self, stream: u32) -> Outcome {
        match &mut self.streams[stream as usize].capture {
            Some(capture) => {
                capture.invalidated = true;
                Err(ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Refuses a call that the captures in progress forbid to this thread, and invalidates them:
    /// captures of this thread that are not relaxed, and captures of other threads in global mode.
    /// A thread that has exchanged its mode obeys only its own captures, or none.
    pub(crate) fn refuse_while_capturing(&mut self) -> Outcome {
        let of_thread = MODE_OF_THREAD.get();
        if of_thread == RELAXED {
            return Ok(());
        }
        let me = std::thread::current().id();
        let mut refused = false;
        for stream in &mut self.streams {
            if let Some(capture) = &mut stream.capture
                && capture.mode != RELAXED
                && (capture.by == me || (capture.mode == GLOBAL && of_thread == GLOBAL))
            {
                capture.invalidated = true;
                refused = true;
            }
        }
        if refused { Err(ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses a call while any stream of a context captures, in whatever modes, and invalidates
    /// those captures.
    pub(crate) fn refuse_while_any_captures(&mut self, context: u32) -> Outcome {
        let mut refused = false;
        for stream in self.streams.iter_mut().filter(|stream| stream.context == context) {
            if let Some(capture) = &mut stream.capture {
                capture.invalidated = true;
                refused = true;
            }
        }
        if refused { Err(ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Invalidates the capture, which can then only be ended.
    pub(crate) fn invalidate(&mut self, capture: u32) {
        for stream in &mut self.streams {
            if let Some(this) = stream.capture.as_mut().filter(|this| this.id == capture) {
                this.invalidated = true;
            }
        }
    }

    /// Returns whether a wait belongs to a capture. A stream that waits for a captured event joins
    /// the capture; a capturing stream that waits for an event from outside of its capture
    /// invalidates it.
    pub(crate) fn wait_inside_capture(&mut self, stream: u32, event: u32) -> Outcome<bool> {
        let captured = self.event(event)?.captured;
        match (self.streams[stream as usize].capture, captured) {
            (None, None) => Ok(false),
            (None, Some(captured)) => {
                let mut under_way = self.streams.iter().filter_map(|stream| stream.capture);
                let capture = under_way.find(|capture| capture.id == captured.id);
                let capture = capture.ok_or(ERROR_CAPTURED_EVENT)?;
                let joined = Some(Capture { origin: false, ..capture });
                self.streams[stream as usize].capture = joined;
                Ok(true)
            }
            (Some(capture), Some(other)) if capture.id == other.id => Ok(true),
            (Some(capture), _) => {
                self.invalidate(capture.id);
                Err(ERROR_STREAM_CAPTURE_ISOLATION)
            }
        }
    }

    /// Frees the memory of destroyed pools that have no live block any more.
    pub(crate) fn bury_dead_pools(&mut self) {
        for index in 0..self.dead_pools.len() {
            let pool = self.dead_pools[index] as usize;
            if self.pools[pool].blocks_out() == 0 {
                self.trim(pool, 0);
            }
        }
    }
}
