//! The judge of the simulator: the whole order of a program's operations, and every pair in it that
//! conflicts.
//!
//! It is written from CUDA's documentation, slow and simple on purpose, and shares no code with the
//! simulator. Its inputs from a run are visible to the program as well: the addresses that the
//! driver returned and the results of queries.

use super::order::{Node, Past, Timeline};
use super::program::{Buf, Host, How, Outcome, Program, Span, Step, Stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ReadAfterWrite,
    WriteAfterRead,
    WriteAfterWrite,
    UseBeforeAllocation,
    FreeBeforeUse,
    UseAfterFree,
    DoubleFree,
    UnknownFree,
    Uninitialised,
    OutOfBounds,
}

/// An error of `step`, and the earlier step that it conflicts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) step: usize,
    pub(crate) kind: Kind,
    pub(crate) first: Option<usize>,
    /// The node from which an edge would repair the error, if one would.
    pub(crate) missing: Option<Node>,
}

/// The oracle's judgement of one run.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Every finding, in submission order.
    pub(crate) findings: Vec<Finding>,
    /// A fault of the driver: it has allocated memory that was in use.
    pub(crate) bad_addresses: Vec<String>,
    /// `true` if a second free of a buffer has freed another buffer, which has its address now.
    pub(crate) frees_another: bool,
    /// Steps whose memory is never freed.
    pub(crate) leaked: Vec<usize>,
}

/// Judges a whole run.
pub(crate) fn judge(program: &Program, outcomes: &[Outcome]) -> Judgement {
    let mut oracle = Oracle::new(program);
    let mut findings = Vec::new();
    for (index, (step, outcome)) in program.steps.iter().zip(outcomes).enumerate() {
        findings.extend(oracle.submit(index, step, outcome));
    }
    Judgement {
        findings,
        bad_addresses: oracle.bad_addresses,
        frees_another: oracle.frees_another,
        leaked: oracle
            .allocations
            .iter()
            .filter(|allocation| allocation.freed.is_none())
            .map(|allocation| allocation.step)
            .collect(),
    }
}

#[derive(Clone, Debug)]
struct Allocation {
    step: usize,
    buf: Buf,
    how: How,
    start: u64,
    end: u64,
    node: Node,
    written: Vec<bool>,
    freed: Option<(usize, Node)>,
}

#[derive(Clone, Debug)]
struct Access {
    step: usize,
    node: Node,
    start: u64,
    end: u64,
    write: bool,
    /// The allocation that the address belonged to at submission.
    owner: Option<usize>,
}

enum Owner {
    Live(usize),
    Dead(usize),
    NoAllocation,
}

/// The order and the memory of a program, step by step.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    time: Timeline,
    buffers: Vec<Option<u64>>,
    allocations: Vec<Allocation>,
    accesses: Vec<Access>,
    bad_addresses: Vec<String>,
    frees_another: bool,
}

impl Oracle {
    pub(crate) fn new(program: &Program) -> Oracle {
        Oracle {
            time: Timeline::new(program),
            buffers: vec![None; program.buffers],
            allocations: Vec::new(),
            accesses: Vec::new(),
            bad_addresses: Vec::new(),
            frees_another: false,
        }
    }

    /// Adds the next step to the order, and returns its errors.
    pub(crate) fn submit(&mut self, index: usize, step: &Step, outcome: &Outcome) -> Vec<Finding> {
        let findings = self.check(index, step);
        match *step {
            Step::Alloc { buf, bytes, how } => {
                if let Some(address) = outcome.address {
                    self.allocate(index, buf, bytes, how, address);
                }
            }
            Step::Free { buf, skew, how } => self.free(index, buf, skew, how),
            Step::Record { event, stream } => self.time.record(event, stream),
            Step::Wait { event, stream } => self.time.wait(stream, event),
            Step::SyncStream(stream) => self.time.host_waits_for_stream(stream),
            Step::SyncEvent(event) => self.time.host_waits_for_event(event),
            Step::SyncContext => self.time.host_waits_for_device(),
            Step::QueryStream(stream) if outcome.ready => self.time.host_waits_for_stream(stream),
            Step::QueryEvent(event) if outcome.ready => self.time.host_waits_for_event(event),
            Step::QueryStream(_) | Step::QueryEvent(_) => {}
            Step::Fill { stream, .. }
            | Step::Copy { stream, .. }
            | Step::Upload { stream, .. }
            | Step::Blend { stream, .. }
            | Step::Accumulate { stream, .. } => {
                self.operate(index, step, stream, writes(step, &findings));
            }
            Step::Download { stream, host, .. } => {
                if self.operate(index, step, stream, false) && host == Host::Pageable {
                    self.time.host_waits_for_stream(stream);
                }
            }
        }
        findings
    }

    /// Returns the errors that this step would have if it were submitted now.
    pub(crate) fn check(&self, index: usize, step: &Step) -> Vec<Finding> {
        match *step {
            Step::Free { buf, skew, how } => self.check_free(index, buf, skew, how),
            Step::Fill { stream, .. }
            | Step::Copy { stream, .. }
            | Step::Upload { stream, .. }
            | Step::Download { stream, .. }
            | Step::Blend { stream, .. }
            | Step::Accumulate { stream, .. } => self.check_accesses(index, step, stream),
            _ => Vec::new(),
        }
    }

    /// Adds buffers that the program did not have when the oracle was made.
    pub(crate) fn expect_buffers(&mut self, buffers: usize) {
        self.buffers.resize(buffers, None);
    }

    pub(crate) fn time(&self) -> &Timeline {
        &self.time
    }

    /// Returns whether every byte of the span was written since its allocation.
    pub(crate) fn is_written(&self, span: Span) -> bool {
        let Some(start) = self.address(span) else {
            return false;
        };
        match self.owner(start) {
            Owner::Live(owner) => self.allocations[owner].is_written(start, start + span.len),
            Owner::Dead(_) | Owner::NoAllocation => false,
        }
    }

    fn address(&self, span: Span) -> Option<u64> {
        self.buffers[span.buf].map(|base| base + span.offset)
    }

    fn owner(&self, address: u64) -> Owner {
        let covers = |a: &Allocation| a.start <= address && address < a.end;
        let find = |live: bool| {
            self.allocations.iter().rposition(|a| a.freed.is_none() == live && covers(a))
        };
        match (find(true), find(false)) {
            (Some(live), _) => Owner::Live(live),
            (None, Some(dead)) => Owner::Dead(dead),
            (None, None) => Owner::NoAllocation,
        }
    }
}

/// The alignment of allocations, in bytes.
const ALIGNMENT: u64 = 256;

// Allocation and free.
impl Oracle {
    fn allocate(&mut self, index: usize, buf: Buf, bytes: u64, how: How, address: u64) {
        let node = match how {
            How::Sync => self.time.host_acts(),
            How::Async(stream) | How::Pool(stream) => self.time.enqueue(stream),
        };
        let start = address;
        let end = address + bytes;
        for (at, earlier) in self.allocations.iter().enumerate() {
            let from = start.max(earlier.start);
            let to = end.min(earlier.end);
            // A later owner of the bytes stands for this one: the driver has seen its allocation,
            // and its free may be on a stream that the program has not ordered after that.
            let is_reused = |byte: &u64| {
                let mut later = self.allocations[at + 1..].iter();
                later.any(|it| (it.start..it.end.next_multiple_of(ALIGNMENT)).contains(byte))
            };
            if from >= to || (from..to).step_by(ALIGNMENT as usize).all(|byte| is_reused(&byte)) {
                continue;
            }
            // The program's own pool keeps its memory, and may reuse only memory whose uses the
            // program has ordered.
            let fine = match (earlier.freed, earlier.how, how) {
                (None, ..) => false,
                (Some((_, freed)), How::Pool(_), How::Pool(_)) => self.time.before(freed, node),
                (Some(_), ..) => true,
            };
            if !fine {
                let step = earlier.step;
                self.bad_addresses
                    .push(format!("step {index} got memory of step {step}, still in use"));
            }
        }
        self.buffers[buf] = Some(address);
        self.allocations.push(Allocation {
            step: index,
            buf,
            how,
            start,
            end,
            node,
            written: vec![false; bytes as usize],
            freed: None,
        });
    }

    /// Returns the live allocation that a free of this address names.
    fn named_by(&self, address: u64) -> Option<usize> {
        self.allocations.iter().position(|a| a.freed.is_none() && a.start == address)
    }

    fn check_free(&self, index: usize, buf: Buf, skew: u64, how: How) -> Vec<Finding> {
        let Some(address) = self.buffers[buf].map(|base| base + skew) else {
            return Vec::new();
        };
        let finding = |kind, first, missing| Finding { step: index, kind, first, missing };
        let Some(named) = self.named_by(address) else {
            let was_freed = self.allocations.iter().rev().find(|a| a.start == address);
            let inside_another = matches!(self.owner(address), Owner::Live(_));
            return match was_freed {
                // Another allocation contains this address now: both kinds are correct.
                Some(a) if inside_another => vec![
                    finding(Kind::DoubleFree, a.freed.map(|(step, _)| step), None),
                    finding(Kind::UnknownFree, None, None),
                ],
                Some(a) => vec![finding(Kind::DoubleFree, a.freed.map(|(step, _)| step), None)],
                None => vec![finding(Kind::UnknownFree, None, None)],
            };
        };
        let allocation = &self.allocations[named];
        let past = self.past_of_free(named, how);
        let mut findings = Vec::new();
        if !past.contains(allocation.node) {
            for kind in [Kind::FreeBeforeUse, Kind::UseBeforeAllocation] {
                findings.push(finding(kind, Some(allocation.step), Some(allocation.node)));
            }
        }
        for access in &self.accesses {
            if access.owner == Some(named) && !past.contains(access.node) {
                findings.push(finding(Kind::FreeBeforeUse, Some(access.step), Some(access.node)));
            }
        }
        findings
    }

    /// `cuMemFree` waits for the whole device; for memory from a pool it does not wait.
    fn past_of_free(&self, named: usize, how: How) -> Past {
        match (how, self.allocations[named].how) {
            (How::Sync, How::Sync) => self.time.past_of_device(),
            (How::Sync, How::Async(_) | How::Pool(_)) => self.time.past_on_host(),
            (How::Async(stream) | How::Pool(stream), _) => self.time.past_on(stream),
        }
    }

    fn free(&mut self, index: usize, buf: Buf, skew: u64, how: How) {
        let Some(address) = self.buffers[buf].map(|base| base + skew) else {
            return;
        };
        let Some(named) = self.named_by(address) else {
            return;
        };
        let node = match (how, self.allocations[named].how) {
            (How::Async(stream) | How::Pool(stream), _) => self.time.enqueue(stream),
            (How::Sync, How::Async(_) | How::Pool(_)) => self.time.host_acts(),
            (How::Sync, How::Sync) => {
                self.time.host_waits_for_device();
                self.time.host_acts()
            }
        };
        self.frees_another |= self.allocations[named].buf != buf;
        self.allocations[named].freed = Some((index, node));
    }
}

/// Returns whether the driver executes an operation: it refuses a memset or copy with an address
/// that is freed or out of bounds.
fn writes(step: &Step, findings: &[Finding]) -> bool {
    let is_kernel = matches!(step, Step::Blend { .. } | Step::Accumulate { .. });
    let is_refused =
        |finding: &Finding| matches!(finding.kind, Kind::OutOfBounds | Kind::UseAfterFree);
    is_kernel || !findings.iter().any(is_refused)
}

// Operations.
impl Oracle {
    fn check_accesses(&self, index: usize, step: &Step, stream: Stream) -> Vec<Finding> {
        let past = self.time.past_on(stream);
        let mut findings = Vec::new();
        for span in step.reads() {
            self.check_access(index, span, false, &past, &mut findings);
        }
        for span in step.writes() {
            self.check_access(index, span, true, &past, &mut findings);
        }
        findings
    }

    fn check_access(
        &self,
        index: usize,
        span: Span,
        write: bool,
        past: &Past,
        findings: &mut Vec<Finding>,
    ) {
        let Some(start) = self.address(span) else {
            return;
        };
        let end = start + span.len;
        let mut find = |kind, first, missing| {
            findings.push(Finding { step: index, kind, first, missing });
        };
        let owner = self.owner(start);
        match owner {
            Owner::Live(live) => {
                let allocation = &self.allocations[live];
                if end > allocation.end {
                    find(Kind::OutOfBounds, Some(allocation.step), None);
                }
                if !past.contains(allocation.node) {
                    let step = Some(allocation.step);
                    find(Kind::UseBeforeAllocation, step, Some(allocation.node));
                }
                if !write && !allocation.is_written(start, end.min(allocation.end)) {
                    find(Kind::Uninitialised, Some(allocation.step), None);
                }
            }
            Owner::Dead(dead) => {
                let freed = self.allocations[dead].freed.map(|(step, _)| step);
                find(Kind::UseAfterFree, freed, None);
            }
            Owner::NoAllocation => find(Kind::OutOfBounds, None, None),
        }
        for access in &self.accesses {
            let overlap = access.start < end && start < access.end;
            let conflict = overlap && (write || access.write) && !past.contains(access.node);
            if conflict && !self.is_settled(access, &owner) {
                let kind = match (access.write, write) {
                    (true, true) => Kind::WriteAfterWrite,
                    (true, false) => Kind::ReadAfterWrite,
                    (false, _) => Kind::WriteAfterRead,
                };
                find(kind, Some(access.step), Some(access.node));
            }
        }
    }

    /// An access of an earlier owner that its free came after: the driver itself has ordered it
    /// before the memory was allocated again.
    fn is_settled(&self, access: &Access, owner: &Owner) -> bool {
        let (Some(before), Owner::Live(now)) = (access.owner, owner) else {
            return false;
        };
        let freed = self.allocations[before].freed;
        before != *now && freed.is_some_and(|(_, freed)| self.time.before(access.node, freed))
    }

    /// Submits the step; not if its buffer does not exist. `has_effect`: whether the driver writes
    /// its bytes.
    fn operate(&mut self, index: usize, step: &Step, stream: Stream, has_effect: bool) -> bool {
        let spans = [(step.reads(), false), (step.writes(), true)];
        let known =
            spans.iter().flat_map(|(spans, _)| spans).all(|&span| self.address(span).is_some());
        if !known {
            return false;
        }
        let node = self.time.enqueue(stream);
        for (spans, write) in spans {
            for span in spans {
                let start = self.address(span).expect("checked above");
                let end = start + span.len;
                let owner = match self.owner(start) {
                    Owner::Live(live) => {
                        let allocation = &mut self.allocations[live];
                        if has_effect && write && end <= allocation.end {
                            allocation.write(start, end);
                        }
                        Some(live)
                    }
                    Owner::Dead(dead) => Some(dead),
                    Owner::NoAllocation => None,
                };
                self.accesses.push(Access { step: index, node, start, end, write, owner });
            }
        }
        true
    }
}

impl Allocation {
    fn is_written(&self, start: u64, end: u64) -> bool {
        self.written[(start - self.start) as usize..(end - self.start) as usize]
            .iter()
            .all(|&written| written)
    }

    fn write(&mut self, start: u64, end: u64) {
        self.written[(start - self.start) as usize..(end - self.start) as usize].fill(true);
    }
}
