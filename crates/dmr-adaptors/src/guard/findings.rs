//! Corruptions that were found, and whether a call has reported them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use dmr_core::Corruption;
use dmr_core::process::LeakedInChild;
use dmr_core::sync::lock;

/// The maximum number of findings that are kept.
const KEPT: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Findings(LeakedInChild<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    found: VecDeque<Finding>,
    beyond: u64,
}

#[derive(Debug)]
struct Finding {
    corruption: Corruption,
    reported: bool,
}

impl Findings {
    pub(super) fn add(&self, corruption: Corruption, reported: bool) {
        let mut list = self.list();
        if list.found.len() < KEPT {
            list.found.push_back(Finding { corruption, reported });
        } else {
            list.beyond += 1;
        }
    }

    pub(super) fn all(&self) -> Vec<Corruption> {
        self.list().found.iter().map(|finding| finding.corruption.clone()).collect()
    }

    pub(super) fn take(&self) -> Vec<Corruption> {
        self.list().found.drain(..).map(|finding| finding.corruption).collect()
    }

    pub(super) fn beyond(&self) -> u64 {
        self.list().beyond
    }

    /// Returns the oldest that no call has reported, and counts it as reported.
    pub(super) fn report_one(&self) -> Option<Corruption> {
        let mut list = self.list();
        let finding = list.found.iter_mut().find(|finding| !finding.reported)?;
        finding.reported = true;
        Some(finding.corruption.clone())
    }

    /// Returns all that no call has reported, and counts them as reported.
    pub(super) fn report_all(&self) -> Vec<Corruption> {
        std::iter::from_fn(|| self.report_one()).collect()
    }

    fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.0)
    }
}
