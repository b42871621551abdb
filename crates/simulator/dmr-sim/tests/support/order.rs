//! Happens-before by brute force: every node has the whole set of nodes before it.
//!
//! [`Order`] is the graph; [`Timeline`] puts a program's operations into it by the rules of CUDA's
//! streams and events.

use super::program::{Event, Program, Stream, StreamKind};

/// A point in the order: an operation of the device, or a moment of the host.
pub(crate) type Node = usize;

/// A set of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past(Vec<u64>);

impl Past {
    pub(crate) fn contains(&self, node: Node) -> bool {
        self.0.get(node / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    fn insert(&mut self, node: Node) {
        if self.0.len() <= node / 64 {
            self.0.resize(node / 64 + 1, 0);
        }
        self.0[node / 64] |= 1 << (node % 64);
    }

    fn absorb(&mut self, other: &Past) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }
}

/// The graph. An edge leads from a node to one submitted later, so submission order is a
/// topological order and the past of a node is complete when it is added.
#[derive(Clone, Debug, Default)]
struct Order {
    pasts: Vec<Past>,
}

impl Order {
    /// Returns all nodes before a node with these direct predecessors.
    fn past_of(&self, predecessors: &[Node]) -> Past {
        let mut past = Past::default();
        for &node in predecessors {
            past.absorb(&self.pasts[node]);
            past.insert(node);
        }
        past
    }

    fn add(&mut self, past: Past) -> Node {
        self.pasts.push(past);
        self.pasts.len() - 1
    }

    fn before(&self, first: Node, second: Node) -> bool {
        self.pasts[second].contains(first)
    }
}

/// The order of a program so far.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    streams: Vec<StreamKind>,
    order: Order,
    /// The stream that each node was submitted to; `None` for nodes of the host.
    stream_of: Vec<Option<Stream>>,
    /// The nodes that the host has made or found complete: all later work comes after them.
    host: Node,
    last: Vec<Option<Node>>,
    events: Vec<Option<Node>>,
}

impl Timeline {
    pub(crate) fn new(program: &Program) -> Timeline {
        let mut order = Order::default();
        let host = order.add(Past::default());
        Timeline {
            streams: program.streams.clone(),
            order,
            stream_of: vec![None],
            host,
            last: vec![None; program.streams.len()],
            events: vec![None; program.events],
        }
    }

    pub(crate) fn before(&self, first: Node, second: Node) -> bool {
        self.order.before(first, second)
    }

    /// Returns the stream that a node was submitted to.
    pub(crate) fn stream_of(&self, node: Node) -> Option<Stream> {
        self.stream_of[node]
    }

    /// Returns an event whose most recent record comes after `node`.
    pub(crate) fn event_after(&self, node: Node) -> Option<Event> {
        let covers = |&recorded: &Node| self.order.before(node, recorded);
        self.events.iter().position(|recorded| recorded.as_ref().is_some_and(covers))
    }

    /// Returns the nodes before an operation submitted to this stream now: those that the host has
    /// found complete, the operation before it in the stream, and those of the legacy stream's
    /// rule.
    pub(crate) fn past_on(&self, stream: Stream) -> Past {
        self.order.past_of(&self.predecessors(stream))
    }

    /// Returns the nodes before an action of the host now.
    pub(crate) fn past_on_host(&self) -> Past {
        self.order.past_of(&[self.host])
    }

    /// Returns all nodes submitted so far.
    pub(crate) fn past_of_device(&self) -> Past {
        self.order.past_of(&self.all())
    }

    /// Adds an operation submitted to a stream.
    pub(crate) fn enqueue(&mut self, stream: Stream) -> Node {
        let predecessors = self.predecessors(stream);
        self.enqueue_after(stream, &predecessors)
    }

    /// Adds an action of the host.
    pub(crate) fn host_acts(&mut self) -> Node {
        self.host_waits([]);
        self.host
    }

    pub(crate) fn record(&mut self, event: Event, stream: Stream) {
        self.events[event] = Some(self.enqueue(stream));
    }

    /// Adds a wait of a stream for the most recent record. A wait for an event that was never
    /// recorded has no effect.
    pub(crate) fn wait(&mut self, stream: Stream, event: Event) {
        if let Some(recorded) = self.events[event] {
            let mut predecessors = self.predecessors(stream);
            predecessors.push(recorded);
            self.enqueue_after(stream, &predecessors);
        }
    }

    pub(crate) fn host_waits_for_event(&mut self, event: Event) {
        self.host_waits(self.events[event]);
    }

    /// Adds a wait of the host for a stream: for the legacy stream, also for the blocking streams,
    /// not the reverse.
    pub(crate) fn host_waits_for_stream(&mut self, stream: Stream) {
        match self.streams[stream] {
            StreamKind::Legacy => self.host_waits(self.predecessors(stream)),
            StreamKind::Blocking | StreamKind::NonBlocking => self.host_waits(self.last[stream]),
        }
    }

    pub(crate) fn host_waits_for_device(&mut self) {
        self.host_waits(self.all());
    }

    fn predecessors(&self, stream: Stream) -> Vec<Node> {
        let ordered_with = |other: &Stream| {
            *other == stream
                || matches!(
                    (self.streams[stream], self.streams[*other]),
                    (StreamKind::Legacy, StreamKind::Blocking)
                        | (StreamKind::Blocking, StreamKind::Legacy)
                )
        };
        (0..self.streams.len())
            .filter(ordered_with)
            .filter_map(|other| self.last[other])
            .chain([self.host])
            .collect()
    }

    fn all(&self) -> Vec<Node> {
        self.last.iter().flatten().copied().chain([self.host]).collect()
    }

    fn enqueue_after(&mut self, stream: Stream, predecessors: &[Node]) -> Node {
        let node = self.add(predecessors, Some(stream));
        self.last[stream] = Some(node);
        node
    }

    fn host_waits(&mut self, nodes: impl IntoIterator<Item = Node>) {
        let mut predecessors: Vec<Node> = nodes.into_iter().collect();
        predecessors.push(self.host);
        self.host = self.add(&predecessors, None);
    }

    fn add(&mut self, predecessors: &[Node], stream: Option<Stream>) -> Node {
        self.stream_of.push(stream);
        self.order.add(self.order.past_of(predecessors))
    }
}
