//! An array that grows and is read without a lock: items are made on first use and never move.

use std::sync::OnceLock;

/// Items by index, in chunks of which each is twice as large as the one before: an access is a shift and two loads.
#[derive(Debug)]
pub(crate) struct Table<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

const FIRST_CHUNK: usize = 16;
const CHUNKS: usize = 19;

/// The largest index of an item of its own; larger ones have the item of this one.
pub(crate) const LAST: usize = FIRST_CHUNK * ((1 << CHUNKS) - 1) - 1;

impl<T: Default> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// Returns the item, or `None` if its chunk was never used.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let (chunk, at) = position(index);
        self.chunks[chunk].get()?.get(at)
    }

    /// Returns the item; makes its chunk on first use.
    #[inline]
    pub(crate) fn get_or_make(&self, index: usize) -> &T {
        // The common case, without a shift.
        match self.chunks[0].get() {
            Some(items) if index < items.len() => &items[index],
            _ => self.get_or_make_any(index),
        }
    }

    #[inline(never)]
    fn get_or_make_any(&self, index: usize) -> &T {
        let (chunk, at) = position(index);
        match self.chunks[chunk].get() {
            Some(items) => &items[at],
            None => &self.make(chunk)[at],
        }
    }

    #[cold]
    fn make(&self, chunk: usize) -> &[T] {
        let items = || (0..FIRST_CHUNK << chunk).map(|_| T::default()).collect();
        self.chunks[chunk].get_or_init(items)
    }

    /// Returns the items that were made, with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> + Clone {
        let made = self.chunks.iter().enumerate().filter_map(|(i, chunk)| Some((i, chunk.get()?)));
        made.flat_map(|(i, items)| items.iter().zip(start(i)..).map(|(item, index)| (index, item)))
    }
}

impl<T: Default> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the chunk of an item and its index in the chunk.
#[inline]
const fn position(index: usize) -> (usize, usize) {
    let index = if index > LAST { LAST } else { index };
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - start(chunk))
}

/// Returns the index of the first item of a chunk.
#[inline]
const fn start(chunk: usize) -> usize {
    FIRST_CHUNK * ((1 << chunk) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_position_and_chunks_have_no_gaps() {
        let mut expected = (0, 0);
        for index in 0..10_000 {
            assert_eq!(position(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(position(LAST), (CHUNKS - 1, (FIRST_CHUNK << (CHUNKS - 1)) - 1));
        assert_eq!(position(usize::MAX), position(LAST));
    }

    #[test]
    fn items_keep_their_index() {
        let table: Table<std::sync::atomic::AtomicUsize> = Table::new();
        for index in [0, 7, 8, 23, 24, 4095] {
            table.get_or_make(index).store(index, std::sync::atomic::Ordering::Relaxed);
        }
        assert!(table.get(70).is_none());
        let set =
            table.iter().map(|(i, item)| (i, item.load(std::sync::atomic::Ordering::Relaxed)));
        let set: Vec<_> = set.filter(|(_, item)| *item != 0).collect();
        assert_eq!(set, [(7, 7), (8, 8), (23, 23), (24, 24), (4095, 4095)]);
    }
}
