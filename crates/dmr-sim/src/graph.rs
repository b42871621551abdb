//! Graphs: nodes of work with the order between them, made by calls or captured from streams; and their launches.
//!
//! A launch is one operation of its stream: its nodes come after all earlier work of the stream, and all later work
//! of the stream comes after them. Between them only the edges order. For that, an executable graph has streams of
//! its own, its lanes: a node follows one of its dependencies on that one's lane, and waits for the others. Each
//! launch comes after the one before of the same executable graph, as the driver's manual says.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::abi::*;
use crate::clock::{Clock, Epoch};
use crate::kernel::KernelArgs;
use crate::machine::{Action, Capture, HostCall, Machine, StreamKind};
use crate::memory::{CopyWork, FillWork};
use crate::report::GraphNode;
use crate::session::Session;
use crate::stream_memory::WordOperation;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
pub(crate) const AUTO_FREE_ON_LAUNCH: u64 = 1;

/// All graphs of a machine.
#[derive(Default)]
pub(crate) struct Graphs {
    pub(crate) graphs: HashMap<u32, Graph>,
    pub(crate) executables: HashMap<u32, Executable>,
    /// The graphs that streams capture, by capture.
    pub(crate) captures: HashMap<u32, Captured>,
    /// The nodes before the last record of an event in a capture.
    event_nodes: HashMap<u32, Vec<u32>>,
    last_node: u32,
    last_executable: u32,
    /// Lanes of executable graphs that were destroyed, by context.
    free_lanes: Vec<(u32, u32)>,
}

/// A graph: its nodes in the order in which they were made. Numbers of nodes are unique in a machine.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: BTreeMap<u32, Node>,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: NodeWork,
    /// The nodes that come before.
    pub(crate) after: Vec<u32>,
    /// The node that this is a copy of.
    pub(crate) original: Option<u32>,
    /// The stream that captured it.
    pub(crate) captured_on: Option<u32>,
}

/// The work of a node, as one launch after the other does it.
#[derive(Clone)]
pub(crate) enum NodeWork {
    Empty,
    Kernel { function: u32, args: KernelArgs },
    Fill(FillWork),
    Copy(CopyWork),
    Host(HostCall),
    Record(u32),
    Wait(u32),
    Words(Vec<(u64, WordOperation)>),
    Allocate(GraphMemory),
    Free(u64),
    Child(Graph),
}

/// The memory that a node allocates at each launch.
#[derive(Clone, Copy)]
pub(crate) struct GraphMemory {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) device: usize,
}

/// A graph that streams capture.
#[derive(Default)]
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    /// The nodes that the next node of each capturing stream comes after.
    pub(crate) tails: HashMap<u32, Vec<u32>>,
    /// The handles of these nodes, as the program has seen them last.
    pub(crate) handles: HashMap<u32, Vec<Handle>>,
}

/// A graph that can be launched.
pub(crate) struct Executable {
    pub(crate) flags: u64,
    /// The nodes without child graphs, in an order that the edges allow.
    nodes: Vec<(u32, Node)>,
    /// The place in `lanes` of each node.
    lane_of: Vec<usize>,
    lanes: Vec<u32>,
    context: u32,
    /// The end of the last launch.
    last: Option<(Epoch, Clock)>,
}

impl NodeWork {
    /// Returns the `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> i32 {
        match self {
            Self::Kernel { .. } => 0,
            Self::Copy(_) => 1,
            Self::Fill(_) => 2,
            Self::Host(_) => 3,
            Self::Child(_) => 4,
            Self::Empty => 5,
            Self::Wait(_) => 6,
            Self::Record(_) => 7,
            Self::Allocate(_) => 10,
            Self::Free(_) => 11,
            Self::Words(_) => 12,
        }
    }
}

impl Graph {
    /// Returns whether a node allocates the memory at this address.
    pub(crate) fn allocates(&self, address: u64) -> bool {
        let is_it =
            |node: &Node| matches!(node.work, NodeWork::Allocate(memory) if memory.at == address);
        self.nodes.values().any(is_it)
    }

    /// Returns whether a node allocates or frees memory: then the graph cannot be copied.
    pub(crate) fn has_memory(&self) -> bool {
        let has = |node: &Node| matches!(node.work, NodeWork::Allocate(_) | NodeWork::Free(_));
        self.nodes.values().any(has)
    }

    /// Returns the edges: from, and to.
    pub(crate) fn edges(&self) -> Vec<(u32, u32)> {
        let of = |(&to, node): (&u32, &Node)| -> Vec<_> {
            node.after.iter().map(|&from| (from, to)).collect()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// Returns the nodes in an order that the edges allow; `None` if there is a cycle.
    fn sorted(&self) -> Option<Vec<u32>> {
        let (mut order, mut done) = (Vec::new(), BTreeSet::new());
        while order.len() < self.nodes.len() {
            let ready = |(id, node): &(&u32, &Node)| {
                !done.contains(*id) && node.after.iter().all(|before| done.contains(before))
            };
            let next: Vec<u32> = self.nodes.iter().filter(ready).map(|(&id, _)| id).collect();
            if next.is_empty() {
                return None;
            }
            done.extend(next.iter().copied());
            order.extend(next);
        }
        Some(order)
    }

    /// Returns whether every node is one of these or comes before one of them.
    fn all_before(&self, last: &[u32]) -> bool {
        let mut open = last.to_vec();
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if seen.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                open.extend(&node.after);
            }
        }
        self.nodes.keys().all(|id| seen.contains(id))
    }
}

impl Graphs {
    /// Returns the number of a new node.
    pub(crate) fn new_node(&mut self) -> u32 {
        self.last_node += 1;
        self.last_node
    }

    /// Returns a graph, also one that a capture in progress makes.
    pub(crate) fn graph(&mut self, id: u32) -> Outcome<&mut Graph> {
        let captured = self.captures.get_mut(&id).map(|captured| &mut captured.graph);
        self.graphs.get_mut(&id).or(captured).ok_or(ERROR_INVALID_VALUE)
    }

    /// Returns the graph that has this node.
    pub(crate) fn graph_of(&mut self, node: u32) -> Outcome<&mut Graph> {
        let captured = self.captures.values_mut().map(|captured| &mut captured.graph);
        let mut graphs = self.graphs.values_mut().chain(captured);
        graphs.find(|graph| graph.nodes.contains_key(&node)).ok_or(ERROR_INVALID_VALUE)
    }

    /// Copies a graph. The nodes get numbers of their own, in the same order.
    pub(crate) fn copy(&mut self, graph: &Graph) -> Graph {
        let mut numbers = HashMap::new();
        for &id in graph.nodes.keys() {
            numbers.insert(id, self.new_node());
        }
        let copy = |(id, node): (&u32, &Node)| {
            let after = node.after.iter().filter_map(|before| numbers.get(before).copied());
            let node = Node { after: after.collect(), original: Some(*id), ..node.clone() };
            Some((*numbers.get(id)?, node))
        };
        Graph { nodes: graph.nodes.iter().filter_map(copy).collect() }
    }

    /// Replaces each child graph by its nodes, and an empty node after all of them that keeps the child's number.
    fn flattened(&mut self, graph: &Graph) -> Graph {
        let mut flat = Graph::default();
        for (&id, node) in &graph.nodes {
            let NodeWork::Child(child) = &node.work else {
                flat.nodes.insert(id, node.clone());
                continue;
            };
            let child = self.copy(child);
            let mut child = self.flattened(&child);
            let edges = child.edges();
            let is_last = |id: &u32| !edges.iter().any(|(from, _)| from == id);
            let mut after: Vec<u32> = child.nodes.keys().copied().filter(is_last).collect();
            after.extend(&node.after);
            for first in child.nodes.values_mut().filter(|first| first.after.is_empty()) {
                first.after.clone_from(&node.after);
            }
            flat.nodes.append(&mut child.nodes);
            flat.nodes.insert(
                id,
                Node { work: NodeWork::Empty, after, original: None, captured_on: None },
            );
        }
        flat
    }

    pub(crate) fn executable(&mut self, id: u32) -> Outcome<&mut Executable> {
        self.executables.get_mut(&id).ok_or(ERROR_INVALID_VALUE)
    }

    /// Removes an executable graph. Its work still runs.
    pub(crate) fn destroy(&mut self, id: u32) -> Outcome {
        let gone = self.executables.remove(&id).ok_or(ERROR_INVALID_VALUE)?;
        self.free_lanes.extend(gone.lanes.into_iter().map(|lane| (gone.context, lane)));
        Ok(())
    }
}

impl Executable {
    /// Returns its nodes as a graph, for a launch that a stream captures.
    pub(crate) fn as_graph(&self) -> Graph {
        Graph { nodes: self.nodes.iter().cloned().collect() }
    }

    /// Replaces the work of a node by other work of the same kind.
    pub(crate) fn set(&mut self, node: u32, work: NodeWork) -> Outcome {
        let found = self.nodes.iter_mut().find(|(id, _)| *id == node);
        let (_, node) = found.ok_or(ERROR_INVALID_VALUE)?;
        if node.work.kind() != work.kind() {
            return Err(ERROR_INVALID_VALUE);
        }
        node.work = work;
        Ok(())
    }
}

/// The reason why an executable graph cannot take over a graph: `CUgraphExecUpdateResult`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    Topology = 2,
    Kind = 3,
}

impl Machine {
    /// Makes an executable graph.
    pub(crate) fn instantiate(&mut self, graph: u32, flags: u64, context: u32) -> Outcome<u32> {
        let graphs = &mut self.graphs;
        let graph = graphs.graphs.get(&graph).cloned().ok_or(ERROR_INVALID_VALUE)?;
        let flat = graphs.flattened(&graph);
        let order = flat.sorted().ok_or(ERROR_INVALID_VALUE)?;
        let nodes: Vec<_> =
            order.iter().filter_map(|id| Some((*id, flat.nodes.get(id)?.clone()))).collect();
        // The last node of each lane.
        let mut ends: Vec<u32> = Vec::new();
        let mut lane_of = Vec::new();
        for (id, node) in &nodes {
            let lane = ends.iter().position(|end| node.after.contains(end));
            match lane {
                Some(lane) => ends[lane] = *id,
                None => ends.push(*id),
            }
            lane_of.push(lane.unwrap_or(ends.len() - 1));
        }
        let device = self.contexts.get(context as usize).ok_or(ERROR_INVALID_CONTEXT)?.device;
        let mut lanes = Vec::new();
        for _ in &ends {
            let free = self.graphs.free_lanes.iter().position(|(of, _)| *of == context);
            lanes.push(match free {
                Some(at) => self.graphs.free_lanes.swap_remove(at).1,
                None => self.new_stream(context, device, StreamKind::NonBlocking, 0),
            });
        }
        let graphs = &mut self.graphs;
        graphs.last_executable += 1;
        let executable = Executable { flags, nodes, lane_of, lanes, context, last: None };
        graphs.executables.insert(graphs.last_executable, executable);
        Ok(graphs.last_executable)
    }

    /// Takes over the work of a graph with the same nodes and edges. Returns the reason if that cannot be.
    pub(crate) fn update(&mut self, executable: u32, graph: u32) -> Outcome<Option<Mismatch>> {
        let graphs = &mut self.graphs;
        let graph = graphs.graphs.get(&graph).cloned().ok_or(ERROR_INVALID_VALUE)?;
        let flat = graphs.flattened(&graph);
        let order = flat.sorted().ok_or(ERROR_INVALID_VALUE)?;
        let executable = graphs.executable(executable)?;
        let places = |ids: &[u32], after: &[u32]| -> BTreeSet<Option<usize>> {
            after.iter().map(|id| ids.iter().position(|known| known == id)).collect()
        };
        let known: Vec<u32> = executable.nodes.iter().map(|(id, _)| *id).collect();
        let new: Vec<&Node> = order.iter().filter_map(|id| flat.nodes.get(id)).collect();
        let same = |(old, new): (&(u32, Node), &&Node)| {
            places(&known, &old.1.after) == places(&order, &new.after)
        };
        if known.len() != new.len() || !executable.nodes.iter().zip(&new).all(same) {
            return Ok(Some(Mismatch::Topology));
        }
        let kinds = executable.nodes.iter().zip(&new);
        if kinds.into_iter().any(|((_, old), new)| old.work.kind() != new.work.kind()) {
            return Ok(Some(Mismatch::Kind));
        }
        for ((_, old), new) in executable.nodes.iter_mut().zip(new) {
            old.work = new.work.clone();
        }
        Ok(None)
    }

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

    /// Records an event in the capture of a stream: a stream that waits for it comes after the nodes so far.
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

    /// Ends a capture that began on `stream`: its graph, unless work of another stream does not come before the end.
    pub(crate) fn end_capture(&mut self, id: u32, stream: u32) -> Outcome<Graph> {
        let captured = self.graphs.captures.remove(&id).unwrap_or_default();
        let last = captured.tails.get(&stream).cloned().unwrap_or_default();
        match captured.graph.all_before(&last) {
            true => Ok(captured.graph),
            false => Err(ERROR_STREAM_CAPTURE_UNJOINED),
        }
    }
}

impl Session<'_> {
    /// Launches an executable graph on a stream, which does not capture. A node that is refused does nothing, and its
    /// error is returned after all others were submitted.
    ///
    /// Memory that a node allocates and that is still allocated is freed first, if the executable graph was made with that
    /// flag; otherwise it is an error.
    pub(crate) fn launch_graph(&mut self, id: u32, stream: u32) -> Outcome {
        self.free_graph_memory(id, stream)?;
        let executable = self.graphs.executable(id)?;
        let (nodes, lane_of) = (executable.nodes.clone(), executable.lane_of.clone());
        let (lanes, last) = (executable.lanes.clone(), executable.last.take());
        let (start, mut deps) = self.begin(stream);
        if let Some((epoch, clock)) = last {
            deps.push(epoch);
            self.streams[stream as usize].clock.join(&clock);
        }
        self.push(start, deps, Action::Order);
        let before = self.streams[stream as usize].clock.clone();
        let mut ends: HashMap<u32, (Epoch, Clock)> = HashMap::new();
        let mut outcome = Ok(());
        let mut made: Vec<u32> = nodes.iter().map(|(id, _)| *id).collect();
        made.sort_unstable();
        for ((node, Node { work, after, captured_on, .. }), lane) in nodes.iter().zip(lane_of) {
            let lane = lanes[lane];
            let (epoch, mut deps) = self.begin(lane);
            deps.push(start);
            self.streams[lane as usize].clock.join(&before);
            for (epoch, clock) in after.iter().filter_map(|before| ends.get(before)) {
                deps.push(*epoch);
                self.streams[lane as usize].clock.join(clock);
            }
            self.push(epoch, deps, Action::Order);
            let number = made.binary_search(node).map_or(0, |place| place as u32 + 1);
            self.node = Some((GraphNode { number, captured_on: *captured_on }, start));
            let done = self.submit_node(lane, work);
            self.node = None;
            outcome = outcome.and(done);
            ends.insert(*node, (self.last(lane), self.streams[lane as usize].clock.clone()));
        }
        let (end, mut deps) = self.begin(stream);
        for (epoch, clock) in ends.into_values() {
            deps.push(epoch);
            self.streams[stream as usize].clock.join(&clock);
        }
        self.push(end, deps, Action::Order);
        let clock = self.streams[stream as usize].clock.clone();
        self.graphs.executable(id)?.last = Some((end, clock));
        outcome
    }

    fn free_graph_memory(&mut self, id: u32, stream: u32) -> Outcome {
        let executable = self.graphs.executable(id)?;
        let frees = executable.flags & AUTO_FREE_ON_LAUNCH != 0;
        let memory = executable.nodes.iter().filter_map(|(_, node)| match node.work {
            NodeWork::Allocate(memory) => Some(memory.at),
            _ => None,
        });
        let memory: Vec<u64> = memory.collect();
        let live: Vec<u64> =
            memory.into_iter().filter(|&at| self.present.allocation(at).is_some()).collect();
        if !live.is_empty() && !frees {
            return Err(ERROR_INVALID_VALUE);
        }
        live.into_iter().try_for_each(|at| self.free_on_stream(at, stream))
    }

    /// Submits the work of a node to its lane.
    fn submit_node(&mut self, lane: u32, work: &NodeWork) -> Outcome {
        match work {
            NodeWork::Empty | NodeWork::Child(_) => Ok(()),
            NodeWork::Kernel { function, args } => {
                crate::driver::launch_kernel(self, lane, *function, args.clone())
            }
            NodeWork::Fill(work) => self.fill(lane, work.clone()).map(drop),
            NodeWork::Copy(work) => self.copy_later(lane, work).map(drop),
            NodeWork::Host(call) => {
                let (epoch, deps) = self.begin(lane);
                self.push(epoch, deps, Action::HostCall(*call));
                Ok(())
            }
            NodeWork::Allocate(memory) => self.allocate_in_graph(memory, lane),
            NodeWork::Free(at) => self.free_on_stream(*at, lane),
            NodeWork::Record(event) => {
                self.record_event(*event, lane);
                Ok(())
            }
            NodeWork::Wait(event) => {
                self.wait_for_event(*event, lane);
                Ok(())
            }
            NodeWork::Words(words) => {
                words.iter().try_for_each(|&(at, operation)| self.word(lane, at, operation))
            }
        }
    }
}
