//! Graphs that streams capture: the work of a stream becomes nodes, and waits for events become
//! edges.

use std::collections::HashMap;

use crate::abi::*;
use crate::machine::graph::{Graph, Node, NodeWork};
use crate::machine::state::{Capture, Machine};

/// A graph that streams capture.
#[derive(Default)]
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    /// The nodes that the next node of each capturing stream comes after.
    pub(crate) tails: HashMap<u32, Vec<u32>>,
    /// The handles of these nodes, as the program has seen them last.
    pub(crate) handles: HashMap<u32, Vec<Handle>>,
}

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
