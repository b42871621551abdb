//! A count, and the first few of what was counted.

use serde::Serialize;

/// How often something happened, and the first times it did: enough to act on, bounded however
/// often it happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Noted<T> {
    /// How often.
    pub count: u64,
    /// The first [`KEPT`](Self::KEPT) of them.
    pub first: Vec<T>,
}

impl<T> Noted<T> {
    /// How many are kept.
    pub const KEPT: usize = 20;

    /// Counts one more, and keeps it if it is among the first.
    pub fn note(&mut self, item: T) {
        self.note_with(|| item);
    }

    /// [`note`](Self::note), for what is costly to make.
    pub fn note_with(&mut self, item: impl FnOnce() -> T) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(item());
        }
    }

    /// Whether it never happened.
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
