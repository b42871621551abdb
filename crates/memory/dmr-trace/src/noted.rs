//! A count, and the first few of the items that were counted.

use serde::Serialize;

/// The number of events of one kind, and the first of them: bounded however many there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Noted<T> {
    /// The number of events.
    pub count: u64,
    /// The first [`KEPT`](Self::KEPT) of them.
    pub first: Vec<T>,
}

impl<T> Noted<T> {
    /// The maximum number that is kept.
    pub const KEPT: usize = 20;

    /// Counts one more, and keeps it if it is among the first.
    pub fn note(&mut self, item: T) {
        self.note_with(|| item);
    }

    /// [`note`](Self::note) for an item that is costly to make.
    pub fn note_with(&mut self, item: impl FnOnce() -> T) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(item());
        }
    }

    /// Returns whether the count is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<T> Default for Noted<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T> Extend<T> for Noted<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.note(item);
        }
    }
}
