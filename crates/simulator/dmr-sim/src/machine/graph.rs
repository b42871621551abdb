//! Graphs: nodes of work with the order between them, made by calls or captured from streams.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::abi::*;
use crate::access::{Clock, Epoch, Operation};
use crate::kernel::KernelArgs;
use crate::machine::{CopyWork, FillWork, HostCall, References, WordOperation};

/// All graphs of a machine.
#[derive(Default)]
pub(crate) struct Graphs {
    pub(crate) graphs: HashMap<u32, Graph>,
    pub(crate) executables: HashMap<u32, Executable>,
    /// The graphs that streams capture, by capture.
    pub(crate) captures: HashMap<u32, Captured>,
    /// The nodes before the last record of an event in a capture.
    pub(crate) event_nodes: HashMap<u32, Vec<u32>>,
    last_node: u32,
    pub(crate) last_executable: u32,
    /// The memory of nodes, also of nodes that no graph has any more.
    pub(crate) memory: Vec<Arc<GraphMemory>>,
    /// The last free of memory of a node, until the memory is allocated again.
    pub(crate) frees: HashMap<u64, Operation>,
    /// The references of the program to user objects.
    pub(crate) user_objects: References,
    pub(crate) last_user_object: u32,
}

/// A graph: its nodes in the order in which they were made. Numbers of nodes are unique in a
/// machine.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: BTreeMap<u32, Node>,
    /// The user objects that it keeps alive, as its copies do.
    pub(crate) objects: References,
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
    Allocate(Arc<GraphMemory>),
    Free(u64),
    Child(Graph),
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
            |node: &Node| matches!(&node.work, NodeWork::Allocate(memory) if memory.at == address);
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
    pub(crate) fn sorted(&self) -> Option<Vec<u32>> {
        let mut followers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut missing: BTreeMap<u32, usize> = BTreeMap::new();
        for (&id, node) in &self.nodes {
            missing.insert(id, node.after.len());
            for &before in &node.after {
                followers.entry(before).or_default().push(id);
            }
        }
        let mut order = Vec::new();
        let mut ready: Vec<u32> =
            missing.iter().filter(|left| *left.1 == 0).map(|left| *left.0).collect();
        while !ready.is_empty() {
            let mut next = Vec::new();
            for &follower in ready.iter().filter_map(|id| followers.get(id)).flatten() {
                if let Some(left) = missing.get_mut(&follower) {
                    *left -= 1;
                    next.extend((*left == 0).then_some(follower));
                }
            }
            next.sort_unstable();
            order.append(&mut ready);
            ready = next;
        }
        (order.len() == self.nodes.len()).then_some(order)
    }

    /// Returns whether each node of `nodes` is one of `last` or comes before one of them.
    pub(crate) fn all_before(&self, nodes: &[u32], last: &[u32]) -> bool {
        let mut open = last.to_vec();
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if seen.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                open.extend(&node.after);
            }
        }
        nodes.iter().all(|id| seen.contains(id))
    }

    /// Removes a node with its edges.
    fn remove(&mut self, node: u32) -> Option<Node> {
        let removed = self.nodes.remove(&node)?;
        for other in self.nodes.values_mut() {
            other.after.retain(|before| *before != node);
        }
        Some(removed)
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

    /// Returns all graphs, also those that captures in progress make.
    fn all(&mut self) -> impl Iterator<Item = &mut Graph> {
        let captured = self.captures.values_mut().map(|captured| &mut captured.graph);
        self.graphs.values_mut().chain(captured)
    }

    /// Returns a node of any graph.
    pub(crate) fn node(&mut self, node: u32) -> Outcome<&mut Node> {
        self.all().find_map(|graph| graph.nodes.get_mut(&node)).ok_or(ERROR_INVALID_VALUE)
    }

    /// Returns the nodes that come after a node.
    pub(crate) fn nodes_after(&mut self, node: u32) -> Vec<u32> {
        let graph = self.all().find(|graph| graph.nodes.contains_key(&node));
        let nodes = graph.into_iter().flat_map(|graph| graph.nodes.iter());
        nodes.filter(|(_, other)| other.after.contains(&node)).map(|(id, _)| *id).collect()
    }

    /// Removes a node with its edges. One of a capture in progress stays (as observed on an H200).
    pub(crate) fn remove_node(&mut self, node: u32) -> Outcome {
        if self.captures.values().any(|captured| captured.graph.nodes.contains_key(&node)) {
            return Err(ERROR_ILLEGAL_STATE);
        }
        let mut graphs = self.graphs.values_mut();
        graphs.find_map(|graph| graph.remove(node)).map(drop).ok_or(ERROR_INVALID_VALUE)
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
        let nodes = graph.nodes.iter().filter_map(copy).collect();
        Graph { nodes, objects: graph.objects.clone() }
    }

    /// Replaces each child graph by its nodes, and an empty node after all of them that keeps the
    /// child's number.
    pub(crate) fn flattened(&mut self, graph: &Graph) -> Graph {
        let mut flat = Graph { objects: graph.objects.clone(), ..Graph::default() };
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
            flat.objects.add(&child.objects);
            flat.nodes.insert(
                id,
                Node { work: NodeWork::Empty, after, original: None, captured_on: None },
            );
        }
        flat
    }
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

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
pub(crate) const AUTO_FREE_ON_LAUNCH: u64 = 1;

/// A graph that can be launched.
pub(crate) struct Executable {
    pub(crate) flags: u64,
    /// The number of the graph that it was made from.
    pub(super) graph: u32,
    /// The nodes without child graphs, in an order that the edges allow.
    pub(crate) nodes: Vec<(u32, Node)>,
    /// The place in `lanes` of each node.
    pub(super) lane_of: Vec<usize>,
    pub(super) lanes: Vec<u32>,
    pub(super) objects: References,
    /// The end of the last launch.
    pub(super) last: Option<(Epoch, Clock)>,
}

impl Executable {
    /// Returns its nodes as a graph, for a launch that a stream captures.
    pub(crate) fn as_graph(&self) -> Graph {
        Graph { nodes: self.nodes.iter().cloned().collect(), objects: self.objects.clone() }
    }

    /// Returns a node.
    pub(crate) fn node(&mut self, id: u32) -> Outcome<&mut Node> {
        let found = self.nodes.iter_mut().find(|(known, _)| *known == id);
        found.map(|(_, node)| node).ok_or(ERROR_INVALID_VALUE)
    }
}

impl Graphs {
    /// Returns an executable graph.
    pub(crate) fn executable(&mut self, id: u32) -> Outcome<&mut Executable> {
        self.executables.get_mut(&id).ok_or(ERROR_INVALID_VALUE)
    }
}

/// The memory that a node allocates at each launch.
pub(crate) struct GraphMemory {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) device: usize,
}

/// The bytes of a device that graphs have.
#[derive(Clone, Copy, Default)]
pub(crate) struct GraphUsage {
    /// The memory that is allocated.
    pub(super) allocated: u64,
    /// The memory that no other allocation can have. A device reports it as used, too.
    pub(crate) reserved: u64,
    /// The most since the program has reset the mark of the memory that is used, and of that which
    /// is reserved.
    pub(crate) used_high: u64,
    pub(crate) reserved_high: u64,
}
