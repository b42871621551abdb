//! A queue of pending values: freed memory that the device may still use, oldest first.

use super::Dependencies;

/// A value that was freed, and the work that must complete before its memory is used again.
#[derive(Clone, Debug)]
pub struct Pending<T> {
    /// The value, which names the memory.
    pub value: T,
    /// The dependencies of the memory.
    pub after: Dependencies,
}

/// A queue of pending values from which any entry can be removed. An entry's index stays the same
/// as long as it is in the queue. Makes no driver call and takes no lock: the caller synchronises.
#[derive(Debug)]
pub struct PendingQueue<T> {
    /// A ring. The first node is its beginning and its end, and has no value.
    entries: Vec<Node<T>>,
    unused: Vec<u32>,
    /// The number of the newest entry.
    number: u64,
    /// The next entry that [`advance`](Self::advance) returns.
    cursor: u32,
}

#[derive(Debug)]
struct Node<T> {
    pending: Option<Pending<T>>,
    /// Grows from the oldest entry to the newest.
    number: u64,
    older: u32,
    newer: u32,
}

const ENDS: u32 = 0;

impl<T> Default for PendingQueue<T> {
    fn default() -> Self {
        let ends = Node { pending: None, number: 0, older: ENDS, newer: ENDS };
        Self { entries: vec![ends], unused: Vec::new(), number: 0, cursor: ENDS }
    }
}

impl<T> PendingQueue<T> {
    /// Adds an entry, the newest, and returns its index.
    #[inline(always)]
    pub fn push(&mut self, pending: Pending<T>) -> u32 {
        let newest = self.entries[ENDS as usize].older;
        self.number += 1;
        let pending = Some(pending);
        let number = self.number;
        let entry = Node { pending, number, older: newest, newer: ENDS };
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
    pub fn remove(&mut self, index: u32) -> Option<Pending<T>> {
        let entry = &mut self.entries[index as usize];
        let pending = entry.pending.take()?;
        let older = entry.older;
        let newer = entry.newer;
        self.entries[older as usize].newer = newer;
        self.entries[newer as usize].older = older;
        if self.cursor == index {
            self.cursor = newer;
        }
        self.unused.push(index);
        Some(pending)
    }

    /// Removes the oldest entry.
    pub fn pop(&mut self) -> Option<Pending<T>> {
        self.remove(self.oldest()?)
    }

    /// Returns an entry.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&Pending<T>> {
        self.entries[index as usize].pending.as_ref()
    }

    /// Returns the number of an entry. Numbers grow from the oldest entry to the newest.
    #[must_use]
    pub fn number(&self, index: u32) -> u64 {
        self.entries[index as usize].number
    }

    /// Returns the index of the oldest entry.
    #[must_use]
    pub fn oldest(&self) -> Option<u32> {
        let oldest = self.entries[ENDS as usize].newer;
        (oldest != ENDS).then_some(oldest)
    }

    /// Returns the entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Pending<T>> {
        self.walk(self.entries[ENDS as usize].newer, |entry| entry.newer)
    }

    /// Returns the entries, newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Pending<T>> {
        self.walk(self.entries[ENDS as usize].older, |entry| entry.older)
    }

    fn walk(
        &self,
        first: u32,
        next: impl Fn(&Node<T>) -> u32,
    ) -> impl Iterator<Item = &Pending<T>> {
        let follow = move |&at: &u32| Some(next(&self.entries[at as usize]));
        std::iter::successors(Some(first), follow).map_while(|at| self.get(at))
    }

    /// Returns the next entry of a walk from the oldest to the newest, which then begins again.
    pub fn advance(&mut self) -> Option<u32> {
        if self.cursor == ENDS {
            self.restart();
        }
        let index = self.cursor;
        self.cursor = self.entries[index as usize].newer;
        (index != ENDS).then_some(index)
    }

    /// Lets the walk of [`advance`](Self::advance) begin with the oldest entry.
    pub fn restart(&mut self) {
        self.cursor = self.entries[ENDS as usize].newer;
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - 1 - self.unused.len()
    }

    /// Returns whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.oldest().is_none()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn push(queue: &mut PendingQueue<u32>, value: u32) -> u32 {
        queue.push(Pending { value, after: Dependencies::default() })
    }

    fn values<'q>(entries: impl Iterator<Item = &'q Pending<u32>>) -> Vec<u32> {
        entries.map(|pending| pending.value).collect()
    }

    #[test]
    fn entries_are_in_order_whichever_are_removed() {
        let mut queue = PendingQueue::default();
        let entries: Vec<_> = (1..=6).map(|value| push(&mut queue, value)).collect();
        for removed in [entries[2], entries[0], entries[5]] {
            assert!(queue.remove(removed).is_some());
            assert!(queue.remove(removed).is_none(), "it was removed");
        }
        push(&mut queue, 7);
        assert_eq!(values(queue.iter()), [2, 4, 5, 7]);
        assert_eq!(values(queue.newest_first()), [7, 5, 4, 2]);
        assert_eq!(queue.len(), 4);
        assert_eq!(queue.pop().map(|pending| pending.value), Some(2));
    }

    #[test]
    fn a_walk_goes_on_behind_an_entry_that_was_removed() {
        let mut queue = PendingQueue::default();
        let entries: Vec<_> = (1..=4).map(|value| push(&mut queue, value)).collect();
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
