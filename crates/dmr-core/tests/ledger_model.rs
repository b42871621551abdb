//! The ledger against its model: a graph of everything that was submitted, searched by brute
//! force.

use std::collections::HashSet;

use dmr_core::Access::{self, Read, ReadWrite, Write};
use dmr_core::ledger::{Entry, Ledger, StreamKey};
use dmr_core::{StreamId, StreamPoolId};
use proptest::prelude::*;

const A: StreamKey = StreamKey::new(0);
const B: StreamKey = StreamKey::new(1);
const C: StreamKey = StreamKey::new(2);

/// An entry whose event is named.
fn used(stream: StreamKey, order: u64, event: &'static str) -> Entry<&'static str> {
    Entry { stream, order, event }
}

fn events<'a>(entries: impl Iterator<Item = &'a Entry<&'static str>>) -> Vec<&'static str> {
    let mut events: Vec<_> = entries.map(|entry| entry.event).collect();
    events.sort_unstable();
    events
}

/// A ledger after `uses`, in order, of a block at home on A.
fn after(uses: &[(Access, Entry<&'static str>)]) -> Ledger<&'static str> {
    let mut ledger = Ledger::allocated(used(A, 0, "alloc"));
    for &(access, entry) in uses {
        drop(ledger.commit(access, entry));
    }
    ledger
}

#[test]
fn fresh_memory_waits_for_its_allocation_except_at_home() {
    let ledger = after(&[]);
    for access in [Read, Write, ReadWrite] {
        assert_eq!(events(ledger.waits(B, access)), ["alloc"]);
        assert_eq!(events(ledger.waits(A, access)), [""; 0]);
    }
    assert_eq!(events(ledger.free_waits()), ["alloc"]);
}

#[test]
fn a_second_reader_does_not_hide_the_first() {
    let ledger = after(&[(Read, used(B, 1, "b")), (Read, used(C, 1, "c"))]);
    assert_eq!(events(ledger.waits(A, Write)), ["b", "c"]);
    assert_eq!(events(ledger.waits(C, Write)), ["b"]);
    assert_eq!(events(ledger.free_waits()), ["b", "c"]);
}

#[test]
fn a_reader_waits_for_the_write_and_not_for_other_readers() {
    let ledger = after(&[(Write, used(B, 1, "w")), (Read, used(C, 1, "r"))]);
    assert_eq!(events(ledger.waits(A, Read)), ["w"]);
    assert_eq!(events(ledger.waits(B, Read)), [""; 0]);
}

#[test]
fn a_stream_that_has_read_since_the_write_does_not_wait_for_it_again() {
    let ledger = after(&[(Write, used(B, 1, "w")), (Read, used(C, 1, "r"))]);
    assert_eq!(events(ledger.waits(C, Read)), [""; 0]);
    assert_eq!(events(ledger.waits(C, Write)), [""; 0]);
    assert_eq!(events(ledger.waits(A, Write)), ["r"]);
}

#[test]
fn a_later_read_takes_the_place_of_its_own_streams_read_only() {
    let mut ledger = after(&[(Read, used(B, 1, "b1")), (Read, used(C, 1, "c1"))]);
    let displaced: Vec<_> = ledger.commit(Read, used(B, 2, "b2")).collect();
    assert_eq!(displaced, [used(B, 1, "b1")]);
    assert_eq!(events(ledger.entries()), ["alloc", "b2", "c1"]);
}

#[test]
fn a_write_hands_back_every_event_that_it_makes_superfluous() {
    let mut ledger = after(&[(Read, used(B, 1, "b")), (Read, used(C, 1, "c"))]);
    let displaced = ledger.commit(Write, used(A, 1, "w"));
    assert_eq!(displaced.len(), 3);
    assert_eq!(displaced.map(|entry| entry.event).collect::<HashSet<_>>().len(), 3);
    assert_eq!(events(ledger.entries()), ["w"]);
}

#[test]
fn a_use_that_is_committed_late_does_not_take_the_place_of_a_later_one() {
    // Two threads on one stream: the second to submit is the first to commit.
    let mut ledger = after(&[(Read, used(B, 2, "later"))]);
    assert_eq!(ledger.commit(Read, used(B, 1, "late")).next(), Some(used(B, 1, "late")));
    assert_eq!(events(ledger.waits(C, Write)), ["later"]);

    let mut ledger = after(&[(Write, used(B, 2, "later"))]);
    assert_eq!(ledger.commit(Write, used(B, 1, "late")).next(), Some(used(B, 1, "late")));
    assert_eq!(ledger.commit(Read, used(B, 1, "late")).next(), Some(used(B, 1, "late")));
    assert_eq!(events(ledger.entries()), ["later"]);
}

#[test]
fn a_write_that_is_committed_late_leaves_the_later_read_of_its_stream() {
    let mut ledger = after(&[(Read, used(C, 1, "c")), (Read, used(B, 2, "later"))]);
    let displaced: Vec<_> = ledger.commit(Write, used(B, 1, "write")).collect();
    assert_eq!(displaced, [used(A, 0, "alloc"), used(C, 1, "c")]);
    assert_eq!(events(ledger.waits(A, Write)), ["later"]);
    assert_eq!(events(ledger.waits(A, Read)), ["write"]);
}

#[test]
fn one_launch_that_reads_and_writes_a_block_leaves_one_entry() {
    // Both uses share the launch's event and order, in either sequence.
    let ledger = after(&[(Read, used(B, 1, "e")), (Write, used(B, 1, "e"))]);
    assert_eq!(events(ledger.entries()), ["e"]);
    let ledger = after(&[(Write, used(B, 1, "e")), (Read, used(B, 1, "e"))]);
    assert_eq!(events(ledger.entries()), ["e"]);
}

#[test]
fn work_known_to_be_done_is_not_waited_for() {
    let mut ledger = after(&[(Write, used(B, 1, "w")), (Read, used(C, 1, "r"))]);
    ledger.retain(|entry| entry.event != "r");
    assert_eq!(events(ledger.waits(A, Write)), ["w"]);
    ledger.retain(|_| false);
    assert_eq!(ledger.entries().count(), 0);
    assert_eq!(events(ledger.free_waits()), [""; 0]);
}

#[test]
fn what_is_cleared_is_handed_back() {
    let mut ledger = after(&[(Read, used(B, 1, "b")), (Read, used(C, 1, "c"))]);
    assert_eq!(ledger.clear().count(), 3);
    assert_eq!(ledger.entries().count(), 0);
}

#[test]
fn displaced_events_leave_the_ledger_even_if_nobody_takes_them() {
    let mut ledger = after(&[(Read, used(B, 1, "b")), (Read, used(C, 1, "c"))]);
    std::mem::forget(ledger.commit(Write, used(A, 1, "w")));
    assert_eq!(events(ledger.entries()), ["w"]);
}

#[test]
fn two_leases_of_one_slot_are_one_stream() {
    let pool = StreamPoolId::next().unwrap();
    let key = |slot, lease| StreamKey::of(StreamId::from_parts(pool, slot, lease).unwrap());
    assert_eq!(key(3, 1), key(3, 2));
    assert_ne!(key(3, 1), key(4, 1));
}

/// One step of a random program over one block.
#[derive(Clone, Debug)]
enum Step {
    /// Prepare a use, if no open window of another stream conflicts.
    Open { stream: u32, access: Access },
    /// Take an open window (by its position) one stage on: submit, number, record, commit. So
    /// several threads interleave, on one stream too.
    Advance(usize),
    /// The host learns that an event is complete, and the ledger is told.
    Learn(usize),
}

fn steps(streams: u32) -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![3 => Just(Read), 1 => Just(Write), 1 => Just(ReadWrite)];
    let open = (0..streams, access).prop_map(|(stream, access)| Step::Open { stream, access });
    let step = prop_oneof![
        4 => open,
        12 => any::<usize>().prop_map(Step::Advance),
        1 => any::<usize>().prop_map(Step::Learn),
    ];
    proptest::collection::vec(step, 1..200)
}

/// A node of the graph: work, a wait, or the record of an event.
type Node = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opened,
    Submitted { work: Node },
    Numbered { work: Node, order: u64 },
    Recorded { work: Node, order: u64, event: Node },
}

#[derive(Clone, Debug)]
struct Window {
    stream: u32,
    access: Access,
    stage: Stage,
}

/// A use that is in the ledger, or was.
#[derive(Clone, Debug)]
struct Use {
    stream: u32,
    access: Access,
    work: Node,
    order: u64,
    event: Node,
}

/// Everything that ever happened, and what must come before what.
struct Model {
    ledger: Ledger<Node>,
    /// Whether a stream may have several windows at a time, as several threads on it would.
    nesting: bool,
    /// Of each node, those just before it: on its stream, and the event it waits for.
    before: Vec<Vec<Node>>,
    last_on_stream: Vec<Option<Node>>,
    next_order: Vec<u64>,
    windows: Vec<Window>,
    uses: Vec<Use>,
    complete: HashSet<Node>,
}

impl Model {
    fn new(streams: u32, nesting: bool) -> Self {
        let mut model = Self {
            ledger: Ledger::new(),
            nesting,
            before: Vec::new(),
            last_on_stream: vec![None; streams as usize],
            next_order: vec![1; streams as usize],
            windows: Vec::new(),
            uses: Vec::new(),
            complete: HashSet::new(),
        };
        // The allocation: a write on stream 0.
        let work = model.node(0, None);
        let event = model.node(0, None);
        model.ledger = Ledger::allocated(Entry { stream: A, order: 0, event });
        model.uses.push(Use { stream: 0, access: Write, work, order: 0, event });
        model
    }

    fn node(&mut self, stream: u32, waits_for: Option<Node>) -> Node {
        let node = self.before.len();
        let last = &mut self.last_on_stream[stream as usize];
        self.before.push(last.iter().copied().chain(waits_for).collect());
        *last = Some(node);
        node
    }

    /// All that is ordered before `ends`, and `ends`.
    fn reachable(&self, ends: impl IntoIterator<Item = Node>) -> HashSet<Node> {
        let mut found = HashSet::new();
        let mut todo: Vec<_> = ends.into_iter().collect();
        while let Some(node) = todo.pop() {
            if found.insert(node) {
                todo.extend(&self.before[node]);
            }
        }
        found
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Open { stream, access } => self.open(stream, access),
            Step::Advance(index) if !self.windows.is_empty() => {
                self.advance(index % self.windows.len());
            }
            Step::Learn(index) => {
                let event = self.uses[index % self.uses.len()].event;
                self.complete.extend(self.reachable([event]));
                self.ledger.retain(|entry| !self.complete.contains(&entry.event));
            }
            Step::Advance(_) => {}
        }
        self.check_bounds();
    }

    fn open(&mut self, stream: u32, access: Access) {
        let conflicts = |w: &Window| w.stream != stream && w.access.conflicts_with(access);
        let nests = |w: &Window| w.stream == stream && !self.nesting;
        if self.windows.iter().any(|w| conflicts(w) || nests(w)) {
            return;
        }
        let waits: Vec<_> = self.ledger.waits(StreamKey::new(stream), access).copied().collect();
        let mut visited = Vec::new();
        self.ledger.visit_waits(StreamKey::new(stream), access, |entry| visited.push(*entry));
        assert_eq!(visited, waits);
        self.check_waits(stream, access, &waits);
        for wait in waits {
            self.node(stream, Some(wait.event));
        }
        self.windows.push(Window { stream, access, stage: Stage::Opened });
    }

    fn advance(&mut self, index: usize) {
        let Window { stream, access, stage } = self.windows[index];
        self.windows[index].stage = match stage {
            Stage::Opened => {
                let work = self.node(stream, None);
                self.check_order(stream, access, work);
                Stage::Submitted { work }
            }
            Stage::Submitted { work } => {
                let order = self.next_order[stream as usize];
                self.next_order[stream as usize] += 1;
                Stage::Numbered { work, order }
            }
            Stage::Numbered { work, order } => {
                Stage::Recorded { work, order, event: self.node(stream, None) }
            }
            Stage::Recorded { work, order, event } => {
                self.windows.remove(index);
                self.commit(Use { stream, access, work, order, event });
                return;
            }
        };
    }

    fn commit(&mut self, used: Use) {
        let Use { stream, access, order, event, .. } = used;
        let before: Vec<_> = self.ledger.entries().copied().collect();
        let entry = Entry { stream: StreamKey::new(stream), order, event };
        let displaced: Vec<_> = self.ledger.commit(access, entry).collect();
        // Nothing is lost and nothing appears: an event is in the ledger or handed back.
        let mut expected: Vec<_> = before.iter().map(|e| e.event).chain([event]).collect();
        let mut found: Vec<_> =
            displaced.iter().chain(self.ledger.entries()).map(|e| e.event).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        self.uses.push(used);
    }

    /// Every earlier use that conflicts is ordered before `work`, or known to be done.
    fn check_order(&self, stream: u32, access: Access, work: Node) {
        let ordered = self.reachable([work]);
        for earlier in self.uses.iter().filter(|u| u.access.conflicts_with(access)) {
            assert!(
                ordered.contains(&earlier.work) || self.complete.contains(&earlier.work),
                "{access:?} on {stream} is not ordered after {earlier:?}"
            );
        }
    }

    /// Nothing is asked for that is not the last write or a latest read since.
    fn check_waits(&self, stream: u32, access: Access, waits: &[Entry<Node>]) {
        let performed = self.reachable(self.last_on_stream[stream as usize]);
        for wait in waits {
            let waited = self.uses.iter().find(|u| u.event == wait.event).unwrap();
            assert_ne!(waited.stream, stream, "a wait for its own stream");
            assert!(waited.access.conflicts_with(access), "a read waits for a read");
            let superseded = self.uses.iter().any(|later| {
                let same_stream = later.stream == waited.stream && later.order > waited.order;
                let displaces = later.access.writes() || !waited.access.writes();
                let after = same_stream && displaces
                    || later.access.writes()
                        && later.work != waited.work
                        && self.reachable([later.work]).contains(&waited.event);
                after && !self.complete.contains(&later.work)
            });
            assert!(!superseded, "{waited:?} is neither the last write nor a latest read");
            // Windows of one stream can record and commit in another order than they took their
            // numbers: there, an event may be after more than the ledger knows.
            if !self.nesting {
                assert!(!performed.contains(&wait.event), "a wait that was performed before");
                assert!(!self.complete.contains(&wait.event), "a wait for what is done");
            }
        }
        let distinct: HashSet<_> = waits.iter().map(|wait| wait.stream).collect();
        assert_eq!(distinct.len(), waits.len(), "two waits for one stream");
    }

    fn check_bounds(&self) {
        let streams = self.last_on_stream.len();
        assert!(self.ledger.entries().count() <= streams + 1, "{:?}", self.ledger);
    }

    /// Closes every window, then frees.
    fn finish(mut self) {
        while !self.windows.is_empty() {
            self.advance(0);
            self.check_bounds();
        }
        let waited = self.reachable(self.ledger.free_waits().map(|entry| entry.event));
        for used in &self.uses {
            assert!(
                waited.contains(&used.work) || self.complete.contains(&used.work),
                "the free is not ordered after {used:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn conflicting_uses_are_ordered_and_nothing_else_is_waited_for(
        (streams, program) in (1..6_u32).prop_flat_map(|n| (Just(n), steps(n))),
        nesting: bool,
    ) {
        let mut model = Model::new(streams, nesting);
        for step in &program {
            model.step(step);
        }
        model.finish();
    }

    #[test]
    fn the_number_of_entries_is_bounded_by_the_number_of_streams(
        reads in proptest::collection::vec(0..4_u32, 1..500)
    ) {
        let mut ledger = Ledger::allocated(used(A, 0, "alloc"));
        for (order, stream) in (1..).zip(reads) {
            drop(ledger.commit(Read, used(StreamKey::new(stream), order, "read")));
            prop_assert!(ledger.entries().count() <= 4 + 1);
        }
    }
}
