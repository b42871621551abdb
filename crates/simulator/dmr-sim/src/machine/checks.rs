//! The order of checks: that of submission, also behind a launch whose footprint is recorded while
//! it runs.
//!
//! An operation is checked when it is submitted, unless a launch with a recorded footprint was
//! submitted before and has not run. Then its check is logged behind the launch, with its clock,
//! and runs when the launch has run. So the shadow, the words and the findings change in the order
//! of submission under every policy.
//!
//! A check changes only these, and clocks by the order of a word wait. It submits nothing.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::access::clock::{Clock, Epoch};
use crate::access::recording::{Recording, Touch};
use crate::check::findings::Findings;
use crate::check::history::{Access, Before, Check};
use crate::check::report::{Report, ReportKind};
use crate::check::shadow::Shadow;
use crate::machine::state::Machine;
use crate::memory::mapping::Reach;
use crate::memory::memory_map::{Allocation, Home};

/// The number of logged checks from which on calls run the launch that they wait for.
const FULL: usize = 1 << 16;

/// The stores of undefined values of one launch whose places are searched.
const MOST_PLACES: usize = 256;

/// Checks that wait for launches whose footprints are not known yet, in the order of submission.
/// The first is such a launch.
#[derive(Default)]
pub(crate) struct CheckLog {
    entries: VecDeque<Logged>,
    /// The number of entries that were removed.
    removed: u64,
    /// Device memory that was freed since the log was empty: launches in it may use this memory.
    freed: Vec<(u64, u64, Home)>,
}

enum Logged {
    Check(Box<dyn FnOnce(&mut Machine) + Send>),
    Launch(Box<LoggedLaunch>),
}

/// A launch whose footprint is recorded.
struct LoggedLaunch {
    access: Access,
    clock: Clock,
    peers: SmallVec<[usize; 2]>,
    /// The footprint, once it has run.
    recording: Option<Recording>,
}

/// The number of an entry in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

/// Ranges of an operation: addresses and bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ranges<'a> {
    pub(crate) reads: &'a [(u64, u64)],
    pub(crate) writes: &'a [(u64, u64)],
    /// Read and written by atomic operations.
    pub(crate) atomics: &'a [(u64, u64)],
}

impl CheckLog {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Records device memory that is freed while launches in the log may use it.
    pub(crate) fn note_freed(&mut self, at: u64, allocation: &Allocation) {
        if !self.is_empty() && allocation.home != Home::Host {
            self.freed.push((at, allocation.bytes, allocation.home));
        }
    }

    /// Returns the start, end and origin of freed memory with these bytes that a launch in the log
    /// may use.
    pub(crate) fn freed_around(&self, at: u64, len: u64) -> Option<(u64, u64, Home)> {
        let contains = |(start, bytes, _): &&(u64, u64, Home)| {
            let skipped = at.checked_sub(*start);
            skipped.is_some_and(|skipped| skipped < *bytes && len <= *bytes - skipped)
        };
        self.freed.iter().find(contains).map(|&(start, bytes, home)| (start, start + bytes, home))
    }

    /// Removes the first entry, unless it is a launch that has not run.
    fn pop_ready(&mut self) -> Option<Logged> {
        if let Logged::Launch(launch) = self.entries.front()?
            && launch.recording.is_none()
        {
            return None;
        }
        self.removed += 1;
        self.entries.pop_front()
    }

    fn push(&mut self, entry: Logged) -> Ticket {
        self.entries.push_back(entry);
        Ticket(self.removed + self.entries.len() as u64 - 1)
    }
}

impl Machine {
    /// Runs a check: now, or after the checks that were logged before.
    pub(crate) fn check(&mut self, check: impl FnOnce(&mut Self) + Send + 'static) {
        if self.log.is_empty() {
            check(self);
        } else {
            self.log.push(Logged::Check(Box::new(check)));
        }
    }

    /// Runs a check of an operation that comes after all of `clock`.
    pub(crate) fn check_after(
        &mut self,
        clock: Clock,
        check: impl FnOnce(&mut Shadow, Before<'_>, &mut Findings) + Send + 'static,
    ) {
        self.check(move |machine| machine.shadow.check_after(clock, &mut machine.findings, check));
    }

    /// Adds a finding.
    pub(crate) fn report(&mut self, report: Report) {
        self.check(move |machine| machine.findings.push(report));
    }

    /// Checks the accesses of the operation just begun, and adds them to the history if they
    /// `happen`.
    pub(crate) fn access(
        &mut self,
        access: &Access,
        ranges: Ranges<'_>,
        peers: Option<&[usize]>,
        happen: bool,
    ) {
        let stream = &self.streams[access.epoch.stream as usize];
        let device = stream.device;
        if self.log.is_empty() {
            let reach = Reach { device, peers };
            let clock = &stream.clock;
            self.shadow.submitted(access, ranges, clock, reach, happen, &mut self.findings);
            return;
        }
        let access = access.clone();
        let clock = stream.clock.clone();
        let owned = [ranges.reads, ranges.writes, ranges.atomics].map(<[_]>::to_vec);
        let peers: Option<SmallVec<[usize; 2]>> = peers.map(SmallVec::from_slice);
        self.check(move |machine| {
            let [reads, writes, atomics] = &owned;
            let ranges = Ranges { reads, writes, atomics };
            let reach = Reach { device, peers: peers.as_deref() };
            let clock = machine.shadow.words.up_to_date(clock);
            machine.shadow.submitted(&access, ranges, &clock, reach, happen, &mut machine.findings);
        });
    }

    /// Adds the launch just begun, whose footprint will be recorded. Later checks wait for it.
    pub(crate) fn launch_unchecked(&mut self, access: Access, peers: &[usize]) -> Ticket {
        let clock = self.streams[access.epoch.stream as usize].clock.clone();
        let peers = SmallVec::from_slice(peers);
        let launch = LoggedLaunch { access, clock, peers, recording: None };
        self.log.push(Logged::Launch(Box::new(launch)))
    }

    /// Adds the footprint of a launch that has run, and runs the checks that have waited for it.
    pub(crate) fn launch_recorded(&mut self, ticket: Ticket, footprint: Recording) {
        let index = (ticket.0 - self.log.removed) as usize;
        if let Some(Logged::Launch(launch)) = self.log.entries.get_mut(index) {
            launch.recording = Some(footprint);
        }
        while let Some(entry) = self.log.pop_ready() {
            match entry {
                Logged::Check(check) => check(self),
                Logged::Launch(launch) => self.check_launch(*launch),
            }
        }
        if self.log.is_empty() {
            self.log.freed.clear();
        }
    }

    /// Returns the launch to run because too many checks wait for it.
    pub(crate) fn overdue(&self) -> Option<Epoch> {
        self.awaited().filter(|_| self.log.entries.len() >= FULL)
    }

    /// Returns the launch that checks wait for; `None` if no check waits.
    pub(crate) fn awaited(&self) -> Option<Epoch> {
        match self.log.entries.front() {
            Some(Logged::Launch(launch)) => Some(launch.access.epoch),
            _ => None,
        }
    }

    /// Checks a launch that has run.
    fn check_launch(&mut self, launch: LoggedLaunch) {
        let LoggedLaunch { access, clock, peers, recording } = launch;
        let Some(recording) = recording else { return };
        let device = self.streams[access.epoch.stream as usize].device;
        let reach = Reach { device, peers: Some(&peers) };
        let clock = self.shadow.words.up_to_date(clock);
        self.shadow.launched(&access, recording, &clock, reach, &mut self.findings);
    }
}

impl Shadow {
    /// Runs a check of an operation that comes after all of `clock`.
    fn check_after(
        &mut self,
        clock: Clock,
        out: &mut Findings,
        check: impl FnOnce(&mut Self, Before<'_>, &mut Findings),
    ) {
        let clock = self.words.up_to_date(clock);
        // Taken out of the shadow, which is written to meanwhile.
        let open = self.words.take_open();
        check(self, Before { clock: &clock, open: &open }, out);
        self.words.put_open(open);
    }

    /// Checks the declared accesses of an operation.
    fn submitted(
        &mut self,
        access: &Access,
        ranges: Ranges<'_>,
        clock: &Clock,
        reach: Reach<'_>,
        happen: bool,
        out: &mut Findings,
    ) {
        self.words.submitted(access.epoch, clock);
        let open = self.words.take_open();
        let before = Before { clock, open: &open };
        // Reads of earlier content first.
        for (writes, plain) in [(false, ranges.reads), (true, ranges.writes)] {
            let check = Check { access, before, writes, reach };
            for &(at, bytes) in plain {
                self.access(at, bytes, &check, happen, out);
            }
            if ranges.atomics.is_empty() {
                continue;
            }
            let check = Check { access: &access.as_atomic(), ..check };
            for &(at, bytes) in ranges.atomics {
                self.access(at, bytes, &check, happen, out);
            }
        }
        self.words.put_open(open);
    }

    /// Checks the recorded accesses of a launch. Of equal findings it reports the first: one launch
    /// is one mistake, however many ranges it touches.
    fn launched(
        &mut self,
        access: &Access,
        recording: Recording,
        clock: &Clock,
        reach: Reach<'_>,
        out: &mut Findings,
    ) {
        self.words.submitted(access.epoch, clock);
        let open = self.words.take_open();
        let before = Before { clock, open: &open };
        let atomic = &access.as_atomic();
        let mut left = Recording::MAX_RANGES;
        out.begin_launch(recording.sites);
        'all: for (set, kind) in &recording.sets {
            let access = if kind.is_atomic() { atomic } else { access };
            let check = Check { access, before, writes: kind.writes(), reach };
            out.in_launch(*kind);
            for (from, to) in set.ranges() {
                let mut at = from;
                while at < to {
                    let bytes = self.part(at, to - at, &recording.straddled);
                    self.access(at, bytes, &check, true, out);
                    at += bytes;
                    if left == 0 {
                        out.verdict.cut_footprints += 1;
                        break 'all;
                    }
                    left -= 1;
                }
            }
        }
        out.in_launch(Touch::Write);
        for (number, (from, to)) in recording.undefined.ranges().enumerate() {
            let store = access.site();
            let store = if number < MOST_PLACES { out.placed(store, from) } else { store };
            self.undefine(from, to - from, Some(&store));
        }
        out.end_launch();
        self.words.put_open(open);
        for message in recording.faults {
            let mut second = access.site();
            second.operation = format!("{}: {message}", second.operation).into();
            out.push(Report::new(ReportKind::KernelFault, second));
        }
        if recording.panicked {
            out.push(Report::new(ReportKind::KernelPanicked, access.site()));
        }
    }
}
