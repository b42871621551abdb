//! The ledger compared with a model: a graph of all submitted work, searched by brute force.

use std::collections::HashSet;

use dmr_core::Access::{self, Read, ReadWrite, Write};
use dmr_core::StreamId;
use dmr_core::ledger::{Ledger, UseId};
use proptest::prelude::*;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

const ALLOCATION: UseId = UseId::new(A, 1);

fn sorted(uses: impl Iterator<Item = UseId>) -> Vec<UseId> {
    let mut uses: Vec<_> = uses.collect();
    uses.sort_unstable();
    uses
}

/// Returns a ledger after `uses`, in this order, of a block whose home stream is A.
fn after(uses: &[(Access, UseId)]) -> Ledger {
    let mut ledger = Ledger::allocated(ALLOCATION);
    for &(access, used) in uses {
        ledger.commit(access, used);
    }
    ledger
}

#[test]
fn a_use_id_is_its_slot_and_its_number() {
    for (slot, seq) in [(0, 1), (7, 40), (StreamId::MAX_SLOTS - 1, UseId::MAX_SEQ)] {
        let used = UseId::new(slot, seq);
        assert_eq!(
            (used.slot(), used.seq(), UseId::from_word(used.get())),
            (slot, seq, Some(used))
        );
    }
    assert_eq!(UseId::new(3, u64::MAX), UseId::new(3, UseId::MAX_SEQ));
    assert!(UseId::new(B, 2).covers(UseId::new(B, 2)) && UseId::new(B, 2).covers(UseId::new(B, 1)));
    assert!(
        !UseId::new(B, 1).covers(UseId::new(B, 2)) && !UseId::new(C, 2).covers(UseId::new(B, 1))
    );
}

#[test]
fn fresh_memory_waits_for_its_allocation_except_at_home() {
    let ledger = after(&[]);
    for access in [Read, Write, ReadWrite] {
        assert_eq!(sorted(ledger.waits(B, access)), [ALLOCATION]);
        assert_eq!(sorted(ledger.waits(A, access)), []);
    }
    assert_eq!(sorted(ledger.free_waits()), [ALLOCATION]);
}

#[test]
fn a_second_reader_does_not_hide_the_first() {
    let [of_b, of_c] = [UseId::new(B, 1), UseId::new(C, 1)];
    let ledger = after(&[(Read, of_b), (Read, of_c)]);
    assert_eq!(sorted(ledger.waits(A, Write)), [of_b, of_c]);
    assert_eq!(sorted(ledger.waits(C, Write)), [of_b]);
    assert_eq!(sorted(ledger.free_waits()), [of_b, of_c]);
}

#[test]
fn a_reader_waits_for_the_write_and_not_for_other_readers() {
    let written = UseId::new(B, 1);
    let ledger = after(&[(Write, written), (Read, UseId::new(C, 1))]);
    assert_eq!(sorted(ledger.waits(A, Read)), [written]);
    assert_eq!(sorted(ledger.waits(B, Read)), []);
}

#[test]
fn a_stream_that_has_read_since_the_write_does_not_wait_for_it_again() {
    let read = UseId::new(C, 1);
    let ledger = after(&[(Write, UseId::new(B, 1)), (Read, read)]);
    assert_eq!(sorted(ledger.waits(C, Read)), []);
    assert_eq!(sorted(ledger.waits(C, Write)), []);
    assert_eq!(sorted(ledger.waits(A, Write)), [read]);
}

#[test]
fn a_later_read_replaces_its_own_streams_read_only() {
    let [of_c, later] = [UseId::new(C, 1), UseId::new(B, 2)];
    let ledger = after(&[(Read, UseId::new(B, 1)), (Read, of_c), (Read, later)]);
    assert_eq!(sorted(ledger.entries()), [ALLOCATION, later, of_c]);
}

#[test]
fn a_write_replaces_everything() {
    let write = UseId::new(A, 2);
    let ledger = after(&[(Read, UseId::new(B, 1)), (Read, UseId::new(C, 1)), (Write, write)]);
    assert_eq!(sorted(ledger.entries()), [write]);
}

#[test]
fn a_use_that_is_committed_late_does_not_replace_a_later_one() {
    // Two threads on one stream: the thread that submits second commits first.
    let [late, later] = [UseId::new(B, 1), UseId::new(B, 2)];
    let ledger = after(&[(Read, later), (Read, late)]);
    assert_eq!(sorted(ledger.waits(C, Write)), [later]);
    let ledger = after(&[(Write, later), (Write, late), (Read, late)]);
    assert_eq!(sorted(ledger.entries()), [later]);
}

#[test]
fn a_write_that_is_committed_late_leaves_the_later_read_of_its_stream() {
    let [write, later] = [UseId::new(B, 1), UseId::new(B, 2)];
    let ledger = after(&[(Read, UseId::new(C, 1)), (Read, later), (Write, write)]);
    assert_eq!(sorted(ledger.waits(A, Write)), [later]);
    assert_eq!(sorted(ledger.waits(A, Read)), [write]);
}

#[test]
fn one_launch_that_reads_and_writes_a_block_leaves_one_entry() {
    // Both uses share the launch's number, in either sequence.
    let launch = UseId::new(B, 1);
    for accesses in [[Read, Write], [Write, Read]] {
        assert_eq!(sorted(after(&accesses.map(|access| (access, launch))).entries()), [launch]);
    }
}

#[test]
fn a_ledger_that_was_cleared_is_that_of_a_new_block() {
    let mut ledger = after(&[(Read, UseId::new(B, 1)), (Read, UseId::new(C, 1))]);
    ledger.clear();
    assert_eq!(sorted(ledger.entries()), []);
    ledger.set_last_write(UseId::new(C, 3));
    assert_eq!(sorted(ledger.entries()), [UseId::new(C, 3)]);
}

/// One step of a random program over one block.
#[derive(Clone, Debug)]
enum Step {
    /// Prepare a use, if no open window of another stream conflicts.
    Open { stream: u32, access: Access },
    /// Advance an open window (by its position) by one stage: submit, number, record, commit. So
    /// several threads interleave, also on one stream.
    Advance(usize),
    /// The host finds an event complete: no use waits for it any more.
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

/// A use that is, or was, in the ledger.
#[derive(Clone, Debug)]
struct Use {
    stream: u32,
    access: Access,
    work: Node,
    order: u64,
    event: Node,
}

impl Use {
    fn id(&self) -> UseId {
        UseId::new(self.stream as usize, self.order)
    }
}

/// The event of a use.
fn event_of(uses: &[Use], used: UseId) -> Node {
    uses.iter().find(|it| it.id() == used).unwrap().event
}

/// All submitted work, and its order.
struct Model {
    ledger: Ledger,
    /// `true` if a stream may have several open windows, as with several threads.
    nesting: bool,
    /// The direct predecessors of each node: on its stream, and the event that it waits for.
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
            next_order: vec![2; streams as usize],
            windows: Vec::new(),
            uses: Vec::new(),
            complete: HashSet::new(),
        };
        // The allocation: a write on stream 0.
        let work = model.node(0, None);
        let event = model.node(0, None);
        model.ledger = Ledger::allocated(ALLOCATION);
        model.uses.push(Use { stream: 0, access: Write, work, order: 1, event });
        model
    }

    fn node(&mut self, stream: u32, waits_for: Option<Node>) -> Node {
        let node = self.before.len();
        let last = &mut self.last_on_stream[stream as usize];
        self.before.push(last.iter().copied().chain(waits_for).collect());
        *last = Some(node);
        node
    }

    /// Returns all nodes that are ordered before `ends`, and `ends`.
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
        let mut waits: Vec<_> = self.ledger.waits(stream as usize, access).collect();
        let mut visited = Vec::new();
        self.ledger.visit_waits(stream as usize, access, |entry| visited.push(entry));
        assert_eq!(visited, waits);
        waits.retain(|wait| !self.complete.contains(&event_of(&self.uses, *wait)));
        self.check_waits(stream, access, &waits);
        for wait in waits {
            self.node(stream, Some(event_of(&self.uses, wait)));
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
        self.ledger.commit(used.access, used.id());
        self.uses.push(used);
    }

    /// Asserts that every earlier use that conflicts is ordered before `work`, or known to be done.
    fn check_order(&self, stream: u32, access: Access, work: Node) {
        let ordered = self.reachable([work]);
        for earlier in self.uses.iter().filter(|u| u.access.conflicts_with(access)) {
            assert!(
                ordered.contains(&earlier.work) || self.complete.contains(&earlier.work),
                "{access:?} on {stream} is not ordered after {earlier:?}"
            );
        }
    }

    /// Asserts that each wait is for the last write or for a latest read since.
    fn check_waits(&self, stream: u32, access: Access, waits: &[UseId]) {
        let performed = self.reachable(self.last_on_stream[stream as usize]);
        for wait in waits {
            let event = event_of(&self.uses, *wait);
            let waited = self.uses.iter().find(|u| u.event == event).unwrap();
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
            // numbers: there, an event may come after more uses than the ledger records.
            if !self.nesting {
                assert!(!performed.contains(&event), "a wait that was performed before");
                assert!(!self.complete.contains(&event), "a wait for what is done");
            }
        }
        let distinct: HashSet<_> = waits.iter().map(|wait| wait.slot()).collect();
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
        let waited =
            self.reachable(self.ledger.free_waits().map(|entry| event_of(&self.uses, entry)));
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
        reads in proptest::collection::vec(0..4_usize, 1..500)
    ) {
        let mut ledger = Ledger::allocated(ALLOCATION);
        for (seq, slot) in (2..).zip(reads) {
            ledger.commit(Read, UseId::new(slot, seq));
            prop_assert!(ledger.entries().count() <= 4 + 1);
        }
    }
}
