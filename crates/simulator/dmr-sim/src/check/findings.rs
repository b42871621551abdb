//! The findings of a universe so far: bounded, without the kinds that are ignored.

use crate::access::{AccessKind, GraphNode, Site};
use crate::check::{Report, ReportKind, Verdict};
use crate::kernel::Sites;

/// The findings so far.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) verdict: Verdict,
    /// The number of findings that the program has read, of those kept and of those only counted.
    read: Read,
    ignored: Vec<ReportKind>,
    launch: Option<LaunchFindings>,
}

/// The number of findings that the program has read.
#[derive(Clone, Copy, Default)]
struct Read {
    reports: usize,
    dropped: u64,
}

/// The findings about a launch whose recorded footprint is being checked.
struct LaunchFindings {
    sites: Sites,
    /// The accesses that are being checked.
    kind: AccessKind,
    reported: Vec<Reported>,
}

/// A finding about a launch that was reported, as far as another one would be a repetition.
#[derive(PartialEq, Eq)]
struct Reported {
    kind: ReportKind,
    other: Option<OtherOperation>,
    /// The first byte of the block that was not declared.
    undeclared: Option<u64>,
}

/// The other operation in a finding.
#[derive(PartialEq, Eq)]
struct OtherOperation {
    stream: Option<u32>,
    op: u64,
    node: Option<GraphNode>,
}

impl Findings {
    /// Makes a list that drops findings of these kinds.
    pub(crate) fn without(ignored: Vec<ReportKind>) -> Self {
        Self { ignored, ..Self::default() }
    }

    /// Returns a copy, for more findings than those of the universe.
    pub(crate) fn copied(&self) -> Self {
        Self { verdict: self.verdict.clone(), ..Self::without(self.ignored.clone()) }
    }

    /// Counts all findings so far as read by the program.
    pub(crate) fn set_read(&mut self) {
        self.read = Read { reports: self.verdict.reports.len(), dropped: self.verdict.dropped };
    }

    /// Returns the findings that the program has not read, if there are any.
    pub(crate) fn unread(&self) -> Option<Verdict> {
        let unread = Verdict {
            reports: self.verdict.reports[self.read.reports..].to_vec(),
            dropped: self.verdict.dropped - self.read.dropped,
            ..Verdict::default()
        };
        (!unread.is_clean()).then_some(unread)
    }

    /// Begins the check of a launch: each finding names the place of the access, and each kind is
    /// reported once for another operation, and once for a block that was not declared.
    pub(crate) fn begin_launch(&mut self, sites: Sites) {
        self.launch = Some(LaunchFindings { sites, kind: AccessKind::Read, reported: Vec::new() });
    }

    /// Begins the check of the launch's accesses of one kind.
    pub(crate) fn in_launch(&mut self, kind: AccessKind) {
        if let Some(launch) = &mut self.launch {
            launch.kind = kind;
        }
    }

    pub(crate) fn end_launch(&mut self) {
        self.launch = None;
    }

    /// Returns the site of the launch with the place in the kernel that has accessed a byte.
    pub(crate) fn placed(&self, site: Site, at: u64) -> Site {
        let Some(launch) = &self.launch else { return site };
        let Some(place) = launch.sites.find(at, launch.kind) else { return site };
        let (place, source) = launch.sites.line(place);
        Site { place: Some(place), source, ..site }
    }

    pub(crate) fn push(&mut self, mut report: Report) {
        if self.ignored.contains(&report.kind) {
            return;
        }
        if let Some(launch) = &mut self.launch {
            let of_site =
                |site: &Site| OtherOperation { stream: site.stream, op: site.op, node: site.node };
            let reported = Reported {
                kind: report.kind,
                other: report.first.as_ref().map(of_site),
                undeclared: report.undeclared.as_ref().map(|undeclared| undeclared.start),
            };
            if launch.reported.contains(&reported) {
                return;
            }
            launch.reported.push(reported);
            report.second = self.placed(report.second, report.address);
        }
        if self.verdict.reports.len() < Verdict::MAX_REPORTS {
            self.verdict.reports.push(report);
        } else {
            self.verdict.dropped += 1;
        }
    }
}
