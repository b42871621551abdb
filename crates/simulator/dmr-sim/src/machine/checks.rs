//! Checks of a machine: at once, or behind the launches in the log.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::access::{AccessedRanges, Clock, DeclaredUse, Operation, Origin};
use crate::check::{Before, Findings, Logged, LoggedLaunch, Report, Shadow, Ticket};
use crate::kernel::Recording;
use crate::machine::Machine;
use crate::memory::Reach;

impl Machine {
    /// Runs a check: now, or after the checks that were logged before.
    pub(crate) fn check(&mut self, check: impl FnOnce(&mut Self) + Send + 'static) {
        if self.checks.log.is_empty() {
            check(self);
        } else {
            self.checks.log.push(Logged::Check(Box::new(check)));
        }
    }

    /// Runs a check of an operation that comes after all of `clock`.
    pub(crate) fn check_after(
        &mut self,
        clock: Clock,
        check: impl FnOnce(&mut Shadow, Before<'_>, &mut Findings) + Send + 'static,
    ) {
        self.check(move |machine| {
            machine.checks.shadow.check_after(clock, &mut machine.checks.findings, check)
        });
    }

    /// Adds a finding.
    pub(crate) fn report(&mut self, report: Report) {
        self.check(move |machine| machine.checks.findings.push(report));
    }

    /// Checks the accesses of the operation just begun, and adds them to the history if they
    /// `happen`.
    pub(crate) fn access(
        &mut self,
        operation: &Operation,
        ranges: &[AccessedRanges<'_>],
        peers: Option<&[usize]>,
        happen: bool,
    ) {
        let stream = &self.streams[operation.epoch.stream as usize];
        let device = stream.device;
        if self.checks.log.is_empty() {
            let reach = Reach { device, peers };
            let clock = &stream.clock;
            self.checks.shadow.submitted(
                operation,
                ranges,
                clock,
                reach,
                happen,
                &mut self.checks.findings,
            );
            return;
        }
        let operation = operation.clone();
        let clock = stream.clock.clone();
        let owned: Vec<_> = ranges.iter().map(|some| (some.kind, some.ranges.to_vec())).collect();
        let peers: Option<SmallVec<[usize; 2]>> = peers.map(SmallVec::from_slice);
        self.check(move |machine| {
            let ranges = owned.iter().map(|(kind, ranges)| AccessedRanges::new(*kind, ranges));
            let ranges: SmallVec<[_; 4]> = ranges.collect();
            let reach = Reach { device, peers: peers.as_deref() };
            let clock = machine.checks.shadow.words.up_to_date(clock);
            let findings = &mut machine.checks.findings;
            machine.checks.shadow.submitted(&operation, &ranges, &clock, reach, happen, findings);
        });
    }

    /// Adds the launch just begun, whose footprint will be recorded. Later checks wait for it.
    pub(crate) fn launch_unchecked(&mut self, operation: Operation, peers: &[usize]) -> Ticket {
        let clock = self.streams[operation.epoch.stream as usize].clock.clone();
        let peers = SmallVec::from_slice(peers);
        let launch = LoggedLaunch { operation, clock, peers, recording: None };
        self.checks.log.push(Logged::Launch(Box::new(launch)))
    }

    /// Adds the footprint of a launch that has run, and runs the checks that have waited for it.
    pub(crate) fn launch_recorded(&mut self, ticket: Ticket, footprint: Recording) {
        self.checks.log.set_recording(ticket, footprint);
        while let Some(entry) = self.checks.log.pop_ready() {
            match entry {
                Logged::Check(check) => check(self),
                Logged::Launch(launch) => self.check_launch(*launch),
            }
        }
        if self.checks.log.is_empty() {
            self.memory.late_frees.clear();
        }
    }

    /// Checks a launch that has run.
    fn check_launch(&mut self, launch: LoggedLaunch) {
        let LoggedLaunch { operation, clock, peers, recording } = launch;
        let Some(recording) = recording else { return };
        let device = self.streams[operation.epoch.stream as usize].device;
        let reach = Reach { device, peers: Some(&peers) };
        let clock = self.checks.shadow.words.up_to_date(clock);
        self.checks.shadow.launched(
            &operation,
            recording,
            &clock,
            reach,
            &mut self.checks.findings,
        );
    }

    /// Begins a declaration for the calling thread, as `Declarations::begin` does, and returns
    /// its id.
    pub(crate) fn begin_declaration(
        &mut self,
        stream: Option<u32>,
        uses: Option<Vec<DeclaredUse>>,
    ) -> u64 {
        let (id, declaration) = self.declarations.begin(stream, uses);
        if let Some(declaration) = declaration {
            // Blocks are known when all work before has been checked.
            self.check(move |machine| machine.checks.shadow.resolve(&declaration));
        }
        id
    }

    /// Returns the description of work that this thread submits to `stream`, with the declaration
    /// in force.
    pub(crate) fn declared(&self, stream: u32, origin: Arc<Origin>) -> Arc<Origin> {
        // Nodes of a graph run on streams of its own.
        let stream = self.node.map_or(stream, |(_, launch)| launch.stream);
        self.declarations.of_work(stream, origin)
    }
}
