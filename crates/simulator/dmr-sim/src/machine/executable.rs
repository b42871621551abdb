//! Executable graphs: instantiation, updates and launches.
//!
//! A launch is one operation of its stream: its nodes come after all earlier work of the stream,
//! and all later work of the stream comes after them. Between them only the edges order. For that,
//! an executable graph has streams of its own, its lanes: a node follows one of its dependencies on
//! that one's lane, and waits for the others. Nodes on different lanes without a path of edges are
//! as unordered as work of two streams, so the same checks find their races. A graph needs as many
//! lanes as nodes begin without a dependency that ends a lane, and keeps them for all its launches.
//! Each launch comes after the one before of the same executable graph, as the driver's manual
//! says.

use std::collections::{BTreeSet, HashMap};

use crate::abi::*;
use crate::access::{Clock, Epoch, GraphNode};
use crate::machine::{Action, Executable, Machine, Node, NodeWork, Session, StreamKind};

/// The reason why an executable graph cannot take over a graph: `CUgraphExecUpdateResult`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    Topology = 2,
    Kind = 3,
}

impl Machine {
    /// Removes an executable graph. Its work still runs.
    pub(crate) fn destroy_executable(&mut self, id: u32) -> Outcome {
        let gone = self.graphs.executables.remove(&id).ok_or(ERROR_INVALID_VALUE)?;
        gone.lanes.into_iter().for_each(|lane| self.retire_stream(lane));
        Ok(())
    }

    /// Makes an executable graph. A graph with nodes of memory has one at a time.
    pub(crate) fn instantiate(&mut self, number: u32, flags: u64, context: u32) -> Outcome<u32> {
        let graphs = &mut self.graphs;
        let graph = graphs.graphs.get(&number).cloned().ok_or(ERROR_INVALID_VALUE)?;
        if graph.has_memory() && graphs.executables.values().any(|made| made.graph == number) {
            return Err(ERROR_NOT_SUPPORTED);
        }
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
        let lane = |_| self.new_stream(context, device, StreamKind::NonBlocking, 0);
        let lanes: Vec<u32> = ends.iter().map(lane).collect();
        let graphs = &mut self.graphs;
        graphs.last_executable += 1;
        let objects = flat.objects;
        let executable =
            Executable { flags, graph: number, nodes, lane_of, lanes, objects, last: None };
        graphs.executables.insert(graphs.last_executable, executable);
        Ok(graphs.last_executable)
    }

    /// Takes over the work of a graph with the same nodes and edges. Returns the reason if that
    /// cannot be.
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
        executable.objects = flat.objects;
        Ok(None)
    }
}

impl Session<'_> {
    /// Launches an executable graph on a stream, which does not capture. A node that is refused
    /// does nothing, and its error is returned after all others were submitted.
    ///
    /// Memory that a node allocates and that is still allocated is freed first, if the executable
    /// graph was made with that flag; otherwise it is an error.
    pub(crate) fn launch_graph(&mut self, id: u32, stream: u32) -> Outcome {
        self.prepare_graph_memory(id, stream)?;
        let executable = self.graphs.executable(id)?;
        let nodes = executable.nodes.clone();
        let lane_of = executable.lane_of.clone();
        let lanes = executable.lanes.clone();
        let last = executable.last.take();
        let objects = executable.objects.clone();
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
        self.push(
            end,
            deps,
            if objects.is_empty() { Action::Order } else { Action::Keep(objects) },
        );
        let clock = self.streams[stream as usize].clock.clone();
        self.graphs.executable(id)?.last = Some((end, clock));
        outcome
    }

    /// Submits the work of a node to its lane.
    fn submit_node(&mut self, lane: u32, work: &NodeWork) -> Outcome {
        match work {
            NodeWork::Empty | NodeWork::Child(_) => Ok(()),
            NodeWork::Kernel { function, args } => {
                crate::machine::launch::launch(self, lane, *function, args.clone())
            }
            NodeWork::Fill(work) => self.fill(lane, work.clone()).map(drop),
            NodeWork::Copy(work) => self.copy(lane, work).map(drop),
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
