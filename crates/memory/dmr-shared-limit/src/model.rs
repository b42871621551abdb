//! A model of the protocol: every order of calls of a few processes, with a kill and a failure at
//! each of their steps.
//!
//! All reads and writes happen under the lock, which the model checks. So an order of critical
//! sections, and the step at which one of them ends, is all that can differ between two runs; the
//! search visits each state once.

use std::collections::HashSet;
use std::time::Duration;

use crate::error::Problem;
use crate::layout::{HEADER_BYTES, Header, Namespaces, ProcessId, RECORD_BYTES, Record, Text};
use crate::member::{Identity, Largest, Member, Refused};
use crate::storage::Storage;

/// A fault of a process in the middle of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is killed before step `.0`.
    Kill(usize),
    /// Step `.0` returns an error, and was not done.
    Fail(usize),
    /// Step `.0` returns an error, but was done.
    FailDone(usize),
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Join { limit: u64 },
    Charge(u64),
    Release(u64),
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    /// Differs from that of the processes that had the pid before.
    start: u64,
    is_alive: bool,
    member: Option<Member>,
    /// The bytes that the program has charged, as far as it can tell.
    held: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    bytes: Vec<u8>,
    processes: Vec<Process>,
}

/// The storage as one process sees it during one call.
struct Steps<'a> {
    state: &'a mut State,
    is_locked: bool,
    fault: Option<Fault>,
    steps: usize,
    is_killed: bool,
}

const FAILED: Problem = Problem::Corrupt { what: "the model" };

impl Steps<'_> {
    /// Takes a step: `Err` if it fails, after `done` if it was done.
    fn step<T>(&mut self, done: impl FnOnce(&mut Self) -> T) -> Result<T, Problem> {
        let step = self.steps;
        self.steps += 1;
        match self.fault {
            Some(Fault::Kill(at)) if step >= at => {
                self.is_killed = true;
                Err(FAILED)
            }
            Some(Fault::Fail(at)) if step == at => Err(FAILED),
            Some(Fault::FailDone(at)) if step == at => {
                done(self);
                Err(FAILED)
            }
            _ => Ok(done(self)),
        }
    }
}

impl Storage for Steps<'_> {
    fn lock(&mut self, _: Duration) -> Result<(), Problem> {
        assert!(!self.is_locked);
        // A lock that fails is not held.
        if matches!(self.fault, Some(Fault::FailDone(0))) {
            self.fault = Some(Fault::Fail(0));
        }
        self.step(|steps| steps.is_locked = true)
    }

    fn unlock(&mut self) {
        assert!(self.is_locked);
        self.is_locked = false;
    }

    fn read(&mut self) -> Result<Vec<u8>, Problem> {
        assert!(self.is_locked, "reads without the lock");
        self.step(|steps| steps.state.bytes.clone())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Problem> {
        assert!(self.is_locked, "writes without the lock");
        assert_eq!(
            offset / 4096,
            (offset + bytes.len() - 1) / 4096,
            "a write that a signal can interrupt"
        );
        self.step(|steps| {
            let all = &mut steps.state.bytes;
            all.resize(all.len().max(offset + bytes.len()), 0);
            all[offset..offset + bytes.len()].copy_from_slice(bytes);
        })
    }

    fn remove(&mut self) -> Result<(), Problem> {
        assert!(self.is_locked, "removes without the lock");
        self.step(|steps| steps.state.bytes.clear())
    }

    fn is_alive(&mut self, process: &ProcessId) -> bool {
        let found = &self.state.processes[process.pid as usize];
        found.is_alive && found.start == process.start
    }
}

impl State {
    fn new(processes: usize) -> Self {
        let process = Process { start: 0, is_alive: false, member: None, held: 0 };
        Self { bytes: Vec::new(), processes: vec![process; processes] }
    }

    /// Makes a call in a process, and returns the number of its steps.
    fn call(&mut self, pid: usize, call: Call, fault: Option<Fault>) -> usize {
        if !self.processes[pid].is_alive {
            let start = self.processes[pid].start + 1;
            self.processes[pid] = Process { start, is_alive: true, member: None, held: 0 };
        }
        let Process { start, mut member, mut held, .. } = self.processes[pid].clone();
        let mut steps = Steps { state: self, is_locked: false, fault, steps: 0, is_killed: false };
        let largest = Largest::default();
        let patience = Duration::ZERO;
        match (call, &mut member) {
            (Call::Join { limit }, None) => {
                let process = ProcessId { pid: pid as u32, start, program: 0 };
                let identity = Identity { header: header(limit), process };
                member = Member::join(&mut steps, identity, patience).ok();
            }
            (Call::Charge(bytes), Some(member)) => {
                if member.charge(&mut steps, bytes, largest, patience).is_ok() {
                    held += bytes;
                }
            }
            (Call::Release(bytes), Some(member)) => {
                held -= bytes;
                member.change(-(bytes as i64));
                let _ = member.write_changes(&mut steps, patience);
            }
            (Call::Leave, Some(member_that_leaves)) => {
                // With bytes charged it leaves nothing: the program goes on with it.
                let mut left = member_that_leaves.clone();
                left.leave();
                let _ = left.write_changes(&mut steps, patience);
                if held == 0 {
                    member = None;
                }
            }
            _ => unreachable!("no call of this process"),
        }
        assert!(!steps.is_locked, "returns with the lock");
        let taken = steps.steps;
        let is_killed = steps.is_killed;
        let process = &mut self.processes[pid];
        if is_killed {
            process.is_alive = false;
            process.member = None;
            process.held = 0;
        } else {
            process.member = member;
            process.held = held;
        }
        taken
    }

    /// Returns the calls that a process can make next.
    fn calls(&self, pid: usize, limits: &[u64]) -> Vec<Call> {
        let Process { member, held, .. } = &self.processes[pid];
        if member.is_none() {
            return limits.iter().map(|limit| Call::Join { limit: *limit }).collect();
        }
        let mut calls = vec![Call::Charge(1), Call::Charge(2), Call::Leave];
        if *held > 0 {
            calls.push(Call::Release(1));
        }
        if *held > 1 {
            calls.push(Call::Release(*held));
        }
        calls
    }

    fn header(&self) -> Option<Header> {
        Header::decode(self.bytes.first_chunk::<HEADER_BYTES>()?).ok()
    }

    fn records(&self) -> Vec<Option<Record>> {
        let Some(records) = self.bytes.get(HEADER_BYTES..) else { return Vec::new() };
        let (records, rest) = records.as_chunks::<RECORD_BYTES>();
        assert!(rest.is_empty());
        records.iter().map(|bytes| Record::decode(bytes).expect("a whole record")).collect()
    }

    /// Panics unless the account keeps its promises in this state.
    fn check(&self) {
        let Some(Header { limit, .. }) = self.header() else {
            assert!(
                self.bytes.is_empty()
                    && self.processes.iter().all(|process| process.member.is_none())
            );
            return;
        };
        let records = self.records();
        let recorded: u64 = records.iter().flatten().map(|record| record.bytes).sum();
        assert!(recorded <= limit, "{recorded} recorded of {limit}");
        let held: u64 = self.processes.iter().map(|process| process.held).sum();
        assert!(held <= limit, "{held} held of {limit}");
        for (pid, process) in self.processes.iter().enumerate() {
            let own = |record: &&Record| {
                (record.process.pid, record.process.start) == (pid as u32, process.start)
            };
            let recorded: u64 =
                records.iter().flatten().filter(own).map(|record| record.bytes).sum();
            assert!(process.held <= recorded, "{} held, {recorded} recorded", process.held);
        }
    }

    /// Panics unless exactly what is left can be charged, and everything once all processes have
    /// ended.
    fn check_nothing_is_lost(&self) {
        let records = self.records();
        for pid in 0..self.processes.len() {
            let Some(mut member) = self.processes[pid].member.clone() else { continue };
            let mut state = self.clone();
            let limit = self.header().expect("a member has a header").limit;
            let is_alive = |record: &Record| {
                let process = &self.processes[record.process.pid as usize];
                process.is_alive && process.start == record.process.start
            };
            let others = records.iter().enumerate().filter(|(index, _)| *index != member.index);
            let others: u64 =
                others.filter_map(|(_, record)| *record).filter(is_alive).map(|r| r.bytes).sum();
            let left = limit - others - member.held;
            let mut steps = Steps {
                state: &mut state,
                is_locked: false,
                fault: None,
                steps: 0,
                is_killed: false,
            };
            let mut charge =
                |bytes| member.charge(&mut steps, bytes, Largest::default(), Duration::ZERO);
            match charge(left + 1) {
                Err(Refused::OverLimit(refusal)) => assert_eq!(refusal.remaining(), left),
                other => panic!("one byte more than is left: {other:?}"),
            }
            assert_eq!(charge(left), Ok(()), "{left} left");
        }
        let mut state = self.clone();
        state.processes.iter_mut().for_each(|process| {
            process.is_alive = false;
            process.member = None;
            process.held = 0;
        });
        state.call(0, Call::Join { limit: 7 }, None);
        state.call(0, Call::Charge(7), None);
        assert_eq!(state.processes[0].held, 7, "all processes have ended");
        state.check();
    }
}

fn header(limit: u64) -> Header {
    Header {
        limit,
        uuid: [1; 16],
        group: Text::new("model"),
        namespaces: Namespaces { pid: 1, time: 1 },
        set_by: 0,
        set_by_name: Text::new("model"),
    }
}

/// Visits every state within `depth` calls, with at most `reuses` processes that have the same pid
/// one after another. Returns the number of states.
fn explore(processes: usize, limits: &[u64], depth: usize, reuses: u64) -> usize {
    let start = State::new(processes);
    let mut seen = HashSet::from([start.clone()]);
    let mut level = vec![start];
    for _ in 0..depth {
        let mut next = Vec::new();
        for state in &level {
            for pid in 0..processes {
                let process = &state.processes[pid];
                if !process.is_alive && process.start == reuses {
                    continue;
                }
                for call in state.calls(pid, limits) {
                    let mut visit = |fault| {
                        let mut after = state.clone();
                        let steps = after.call(pid, call, fault);
                        after.check();
                        if seen.insert(after.clone()) {
                            after.check_nothing_is_lost();
                            next.push(after);
                        }
                        steps
                    };
                    let steps = visit(None);
                    for step in 0..=steps {
                        for fault in [Fault::Kill(step), Fault::Fail(step), Fault::FailDone(step)] {
                            visit(Some(fault));
                        }
                    }
                }
            }
        }
        level = next;
    }
    seen.len()
}

#[test]
fn two_processes_never_exceed_the_limit_whenever_they_are_killed() {
    let states = explore(2, &[2, 3], 6, 2);
    assert!(states > 20_000, "{states} states");
}

#[test]
fn three_processes_never_exceed_the_limit_whenever_they_are_killed() {
    let states = explore(3, &[2], 5, 2);
    assert!(states > 20_000, "{states} states");
}
