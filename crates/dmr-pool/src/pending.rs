//! Chunks that were freed and that the device may still use, oldest first.

use dmr_streams::uses::Carried;

use crate::heap::ChunkId;

/// A freed chunk, and what must complete before its memory can be reused.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) chunk: ChunkId,
    pub(crate) after: Carried,
}

/// A list in which any entry can be removed. An entry's index stays the same as long as it is in
/// the list.
#[derive(Debug)]
pub(crate) struct PendingQueue {
    /// A ring. The first one is where it begins and ends, and has no chunk.
    entries: Vec<Entry>,
    unused: Vec<u32>,
    /// The last number.
    number: u64,
    /// The next entry that [`advance`](Self::advance) returns.
    cursor: u32,
}

#[derive(Debug)]
struct Entry {
    pending: Option<Pending>,
    /// Grows from the oldest entry to the newest.
    number: u64,
    older: u32,
    newer: u32,
}

const ENDS: u32 = 0;

impl Default for PendingQueue {
    fn default() -> Self {
        let ends = Entry { pending: None, number: 0, older: ENDS, newer: ENDS };
        Self { entries: vec![ends], unused: Vec::new(), number: 0, cursor: ENDS }
    }
}

impl PendingQueue {
    /// Adds an entry, the newest, and returns its index.
    #[inline(always)]
    pub(crate) fn push(&mut self, pending: Pending) -> u32 {
        let newest = self.entries[ENDS as usize].older;
        self.number += 1;
        let (pending, number) = (Some(pending), self.number);
        let entry = Entry { pending, number, older: newest, newer: ENDS };
        let index = match self.unused.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.entries[newest as usize].newer = index;
        self.entries[ENDS as usize].older = index;
        index
    }

    /// Removes an entry.
    #[inline(always)]
    pub(crate) fn remove(&mut self, index: u32) -> Option<Pending> {
        let entry = &mut self.entries[index as usize];
        let pending = entry.pending.take()?;
        let (older, newer) = (entry.older, entry.newer);
        self.entries[older as usize].newer = newer;
        self.entries[newer as usize].older = older;
        if self.cursor == index {
            self.cursor = newer;
        }
        self.unused.push(index);
        Some(pending)
    }

    /// Returns what an entry holds.
    pub(crate) fn get(&self, index: u32) -> Option<&Pending> {
        self.entries[index as usize].pending.as_ref()
    }

    /// Returns a number of an entry that grows from the oldest to the newest.
    pub(crate) fn number(&self, index: u32) -> u64 {
        self.entries[index as usize].number
    }

    /// Returns the index of the oldest entry.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let oldest = self.entries[ENDS as usize].newer;
        (oldest != ENDS).then_some(oldest)
    }

    /// Returns the number of the oldest entry.
    pub(crate) fn oldest_number(&self) -> Option<u64> {
        self.oldest().map(|index| self.number(index))
    }

    /// Returns the entries, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pending> {
        let first = self.entries[ENDS as usize].newer;
        let entries =
            std::iter::successors(Some(first), |&at| Some(self.entries[at as usize].newer));
        entries.map_while(|at| self.get(at))
    }

    /// Returns the entries, newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Pending> {
        let first = self.entries[ENDS as usize].older;
        let entries =
            std::iter::successors(Some(first), |&at| Some(self.entries[at as usize].older));
        entries.map_while(|at| self.get(at))
    }

    /// Returns the next entry of a walk from the oldest to the newest, and again from the oldest.
    pub(crate) fn advance(&mut self) -> Option<u32> {
        if self.cursor == ENDS {
            self.restart();
        }
        let index = self.cursor;
        self.cursor = self.entries[index as usize].newer;
        (index != ENDS).then_some(index)
    }

    /// Lets the walk of [`advance`](Self::advance) begin with the oldest entry.
    pub(crate) fn restart(&mut self) {
        self.cursor = self.entries[ENDS as usize].newer;
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - 1 - self.unused.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.oldest().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &mut PendingQueue, chunk: u32) -> u32 {
        let chunk = ChunkId::new(chunk).unwrap();
        queue.push(Pending { chunk, after: Carried::default() })
    }

    fn chunks<'q>(entries: impl Iterator<Item = &'q Pending>) -> Vec<u32> {
        entries.map(|pending| pending.chunk.get()).collect()
    }

    #[test]
    fn entries_are_in_order_whichever_are_removed() {
        let mut queue = PendingQueue::default();
        let entries: Vec<_> = (1..=6).map(|chunk| push(&mut queue, chunk)).collect();
        for removed in [entries[2], entries[0], entries[5]] {
            assert!(queue.remove(removed).is_some());
            assert!(queue.remove(removed).is_none(), "it was removed");
        }
        push(&mut queue, 7);
        assert_eq!(chunks(queue.iter()), [2, 4, 5, 7]);
        assert_eq!(chunks(queue.newest_first()), [7, 5, 4, 2]);
        assert_eq!(queue.len(), 4);
    }

    #[test]
    fn a_walk_goes_on_behind_an_entry_that_was_removed() {
        let mut queue = PendingQueue::default();
        let entries: Vec<_> = (1..=4).map(|chunk| push(&mut queue, chunk)).collect();
        queue.restart();
        assert_eq!(queue.advance(), Some(entries[0]));
        queue.remove(entries[1]);
        assert_eq!(queue.advance(), Some(entries[2]));
        queue.remove(entries[2]);
        assert_eq!(queue.advance(), Some(entries[3]));
        assert_eq!(queue.advance(), Some(entries[0]), "and begins again");
        for entry in [0, 3].map(|at| entries[at]) {
            queue.remove(entry);
        }
        assert_eq!((queue.advance(), queue.is_empty()), (None, true));
    }
}
