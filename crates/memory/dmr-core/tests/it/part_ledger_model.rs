//! The ledger of a block that is used in parts, against the order of all work on each byte.

use std::collections::HashMap;

use dmr_core::Access::{self, Read, ReadWrite, Write};
use dmr_core::ByteRange;
use dmr_core::ledger::{Ledger, PartLedger, UseId};
use proptest::prelude::*;

const ALLOCATION: UseId = UseId::new(0, 1);
/// Bytes of the block, and its address.
const BYTES: usize = 600;
const PTR: u64 = 0x1000;
/// The number of ranges that a ledger may have before it joins some that have different uses.
const EXACT: usize = 126;

fn part(start: usize, end: usize) -> ByteRange {
    ByteRange::new(PTR + start as u64, end - start)
}

fn waits(ledger: &PartLedger, bytes: ByteRange, slot: usize, access: Access) -> Vec<UseId> {
    let mut waits = Vec::new();
    ledger.visit_waits(bytes, slot, access, |used| waits.push(used));
    waits.sort_unstable();
    waits.dedup();
    waits
}

#[test]
fn uses_of_parts_are_found_where_they_overlap() {
    let [left, right] = [UseId::new(1, 2), UseId::new(2, 2)];
    let mut ledger = PartLedger::allocated(ALLOCATION);
    ledger.commit(part(0, 300), Write, left);
    ledger.commit(part(300, 600), Write, right);
    for (bytes, expected) in [
        (part(0, 1), vec![left]),
        (part(299, 300), vec![left]),
        (part(300, 301), vec![right]),
        (part(299, 301), vec![left, right]),
        (part(600, 601), vec![ALLOCATION]),
        (part(0, 0), vec![]),
        (ByteRange::WHOLE, vec![ALLOCATION, left, right]),
    ] {
        assert_eq!(waits(&ledger, bytes, 3, Read), expected, "{bytes:?}");
    }
    assert_eq!(waits(&ledger, part(0, 600), 1, Write), [right], "its own use is no wait");
}

#[test]
fn a_write_of_the_whole_leaves_one_range_which_a_ledger_can_have() {
    let mut ledger = PartLedger::allocated(ALLOCATION);
    for (stream, at) in [(1, 0), (2, 64), (1, 128), (3, 7)] {
        ledger.commit(part(at, at + 32), Read, UseId::new(stream, 2));
        assert!(ledger.take_whole().is_none());
    }
    ledger.commit(ByteRange::WHOLE, Write, UseId::new(2, 4));
    assert_eq!(ledger.ranges(), 1);
    let whole = ledger.take_whole().expect("one range with one write");
    assert_eq!(whole.entries().collect::<Vec<_>>(), [UseId::new(2, 4)]);
    assert!(ledger.is_empty());
}

#[test]
fn a_ledger_is_copied_with_all_its_uses() {
    let mut whole = Ledger::allocated(ALLOCATION);
    for used in [UseId::new(3, 2), UseId::new(1, 2), UseId::new(2, 8)] {
        whole.commit(Read, used);
    }
    let mut ledger = PartLedger::default();
    ledger.copy(&whole);
    let all = [ALLOCATION, UseId::new(1, 2), UseId::new(2, 8), UseId::new(3, 2)];
    assert_eq!(waits(&ledger, part(5, 6), 9, Write), all);
    assert!(ledger.take_whole().is_none(), "another stream's read may not come after the write");
}

#[test]
fn ranges_inside_a_use_that_have_the_same_uses_then_are_one() {
    let mut ledger = PartLedger::allocated(ALLOCATION);
    for at in (0..600).step_by(6) {
        ledger.commit(part(at, at + 6), Read, UseId::new(at % 5, 2));
    }
    assert_eq!(ledger.ranges(), 102);
    ledger.commit(part(3, 597), Write, UseId::new(1, 4));
    // Before the block, its first and last 3 bytes, those between them, and behind the block.
    assert_eq!(ledger.ranges(), 5);
    assert_eq!(waits(&ledger, part(3, 597), 0, Write), [UseId::new(1, 4)]);
    assert_eq!(waits(&ledger, part(0, 4), 9, Write).len(), 3);
}

#[test]
fn uses_that_are_done_are_dropped_before_ranges_with_other_uses_are_joined() {
    let mut ledger = PartLedger::allocated(ALLOCATION).with_most_ranges(64);
    let in_flight = 560;
    let is_done = |used: UseId| used.seq() < in_flight;
    for at in 0..600 {
        ledger.make_room(is_done);
        let used = UseId::new(1 + at % 7, at as u64);
        ledger.commit(part(at, at + 1), Write, used);
        assert!(ledger.ranges() <= 64);
    }
    for at in in_flight as usize..600 {
        let used = UseId::new(1 + at % 7, at as u64);
        assert_eq!(waits(&ledger, part(at, at + 1), 9, Read), [used]);
    }
}

/// One step of a random program over one block.
#[derive(Clone, Debug)]
enum Step {
    /// Prepare a use, if no open window of another stream conflicts.
    Open { stream: usize, access: Access, bytes: ByteRange },
    /// Advance an open window (by its position) by one stage: submit, number, record, commit.
    Advance(usize),
}

fn bytes(longest: usize) -> impl Strategy<Value = ByteRange> {
    prop_oneof![
        20 => (0..BYTES, 1..=longest).prop_map(|(at, len)| part(at, (at + len).min(BYTES))),
        1 => Just(ByteRange::WHOLE),
    ]
}

fn steps(streams: usize, longest: usize, most: usize) -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![3 => Just(Read), 2 => Just(Write), 1 => Just(ReadWrite)];
    let open = (0..streams, access, bytes(longest));
    let open = open.prop_map(|(stream, access, bytes)| Step::Open { stream, access, bytes });
    let step = prop_oneof![
        6 => open,
        20 => any::<usize>().prop_map(Step::Advance),
    ];
    proptest::collection::vec(step, 1..most)
}

/// Of each stream, up to which of its work something comes after it.
type Clock = Vec<u64>;

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

#[derive(Clone, Debug)]
enum Stage {
    Opened,
    Submitted,
    Numbered { seq: u64 },
    Recorded { seq: u64, event: Clock },
}

#[derive(Clone, Debug)]
struct Window {
    stream: usize,
    access: Access,
    bytes: ByteRange,
    stage: Stage,
}

/// All work on each byte, and its order.
struct Model {
    ledger: PartLedger,
    /// Of each stream: what its next work comes after.
    clocks: Vec<Clock>,
    /// Of each stream: the sequence number of its last use.
    last_seq: Vec<u64>,
    windows: Vec<Window>,
    /// Each use with its access, its bytes, and the work that its event covers.
    uses: HashMap<UseId, (Access, ByteRange, Clock)>,
    /// Of each byte and stream, its last write and its last read.
    writes: Vec<Clock>,
    reads: Vec<Clock>,
    /// Of each stream, the work that the host has waited for.
    done: Clock,
    /// No ranges with different uses were joined.
    is_exact: bool,
}

impl Model {
    fn new(streams: usize) -> Self {
        let none = vec![0; streams];
        let mut model = Self {
            ledger: PartLedger::allocated(ALLOCATION).with_most_ranges(EXACT),
            clocks: vec![none.clone(); streams],
            last_seq: vec![1; streams],
            windows: Vec::new(),
            uses: HashMap::new(),
            writes: vec![none.clone(); BYTES],
            reads: vec![none.clone(); BYTES],
            done: none,
            is_exact: true,
        };
        model.submit(0, Write, ByteRange::WHOLE);
        let event = model.clocks[0].clone();
        model.uses.insert(ALLOCATION, (Write, ByteRange::WHOLE, event));
        model
    }

    fn indices(bytes: ByteRange) -> std::ops::Range<usize> {
        let index = |address: u64| (address.saturating_sub(PTR) as usize).min(BYTES);
        index(bytes.start())..index(bytes.end())
    }

    fn step(&mut self, step: &Step) {
        // A commit adds two ranges at most.
        self.is_exact &= self.ledger.ranges() + 2 <= EXACT;
        match *step {
            Step::Open { stream, access, bytes } => self.open(stream, access, bytes),
            Step::Advance(at) if !self.windows.is_empty() => self.advance(at % self.windows.len()),
            Step::Advance(_) => {}
        }
        assert!(self.ledger.ranges() <= EXACT, "{} ranges", self.ledger.ranges());
    }

    fn open(&mut self, stream: usize, access: Access, bytes: ByteRange) {
        let conflicts = |open: &Window| {
            open.stream != stream
                && open.access.conflicts_with(access)
                && open.bytes.overlaps(bytes)
        };
        if self.windows.iter().any(conflicts) {
            return;
        }
        for wait in waits(&self.ledger, bytes, stream, access) {
            let (used, at, event) = &self.uses[&wait];
            assert_ne!(wait.slot(), stream, "a wait for its own stream");
            let needed = used.conflicts_with(access) && at.overlaps(bytes);
            assert!(
                needed || !self.is_exact,
                "{access:?} of {bytes:?} waits for {used:?} of {at:?}"
            );
            join(&mut self.clocks[stream], event);
        }
        self.windows.push(Window { stream, access, bytes, stage: Stage::Opened });
    }

    /// Submits work, and asserts that every earlier use that conflicts is ordered before it.
    fn submit(&mut self, stream: usize, access: Access, bytes: ByteRange) {
        let clock = self.clocks[stream].clone();
        let is_ordered = |of_byte: &Clock| {
            let mut streams = of_byte.iter().zip(clock.iter().zip(&self.done));
            streams.all(|(used, (before, done))| used <= before || used <= done)
        };
        for byte in Self::indices(bytes) {
            let is_after = is_ordered(&self.writes[byte])
                && (!access.writes() || is_ordered(&self.reads[byte]));
            assert!(is_after, "{access:?} of byte {byte} on {stream} is not ordered");
        }
        self.clocks[stream][stream] += 1;
        let index = self.clocks[stream][stream];
        for byte in Self::indices(bytes) {
            if access.writes() {
                self.writes[byte][stream] = index;
            } else {
                self.reads[byte][stream] = index;
            }
        }
    }

    fn advance(&mut self, at: usize) {
        let Window { stream, access, bytes, stage } = self.windows[at].clone();
        self.windows[at].stage = match stage {
            Stage::Opened => {
                self.submit(stream, access, bytes);
                Stage::Submitted
            }
            Stage::Submitted => {
                self.last_seq[stream] += 1;
                Stage::Numbered { seq: self.last_seq[stream] }
            }
            Stage::Numbered { seq } => Stage::Recorded { seq, event: self.clocks[stream].clone() },
            Stage::Recorded { seq, event } => {
                self.windows.remove(at);
                let uses = &self.uses;
                let is_done = |used: UseId| {
                    let (_, _, event) = &uses[&used];
                    event.iter().zip(&self.done).all(|(used, done)| used <= done)
                };
                self.ledger.make_room(is_done);
                let used = UseId::new(stream, seq);
                self.uses.insert(used, (access, bytes, event));
                self.ledger.commit(bytes, access, used);
                return;
            }
        };
    }

    /// Closes every window, then frees.
    fn finish(mut self) {
        while !self.windows.is_empty() {
            self.advance(0);
        }
        let mut after = self.done.clone();
        let mut streams = Vec::new();
        self.ledger.visit_free_waits(|used| {
            join(&mut after, &self.uses[&used].2);
            streams.push(used.slot());
        });
        streams.sort_unstable();
        assert!(streams.windows(2).all(|pair| pair[0] != pair[1]), "two uses of one stream");
        for of_byte in self.writes.iter().chain(&self.reads) {
            let is_after = of_byte.iter().zip(&after).all(|(used, after)| used <= after);
            assert!(is_after, "the free is not ordered after {of_byte:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn overlapping_uses_are_ordered_and_disjoint_ones_are_not_waited_for(
        program in (1..6_usize, 1..40_usize).prop_flat_map(|(streams, longest)| {
            (Just(streams), steps(streams, longest * longest, 200))
        }),
    ) {
        let mut model = Model::new(program.0);
        program.1.iter().for_each(|step| model.step(step));
        model.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// In more parts than a ledger has ranges.
    #[test]
    fn uses_of_many_small_parts_are_ordered(
        program in (2..6_usize).prop_flat_map(|n| (Just(n), steps(n, 3, 6000))),
    ) {
        let mut model = Model::new(program.0);
        program.1.iter().for_each(|step| model.step(step));
        model.finish();
    }
}
