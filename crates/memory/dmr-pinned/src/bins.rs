//! Chunks of a heap, and lists of free chunks by size.

/// Bytes of a unit: the alignment of a block.
pub(crate) const UNIT: usize = dmr_core::size::BLOCK_ALIGNMENT;
/// The binary logarithm of the number of sizes per doubling: a size is rounded up by 1/16 at most.
const FINE_BITS: u32 = 4;
const FINE: u32 = 1 << FINE_BITS;
/// One row for the sizes below `FINE`, and one for each doubling from there on.
const ROWS: usize = (u32::BITS - FINE_BITS + 1) as usize;
/// The most units of a request: a quarter of a tebibyte.
const MOST: u32 = 1 << 30;
/// No chunk.
pub(crate) const NONE: u32 = u32::MAX;

/// A range of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) address: u64,
    pub(crate) units: u32,
    /// The chunk that ends where this one begins, in the same segment.
    pub(crate) before: u32,
    /// The chunk that begins where this one ends, in the same segment.
    pub(crate) after: u32,
    /// The previous chunk in the list of its size, while it is free.
    pub(crate) previous: u32,
    /// The next chunk in the list of its size, while it is free.
    pub(crate) next: u32,
    pub(crate) state: State,
    /// Its segment is cut into chunks.
    pub(crate) is_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The record is not in use.
    Unused,
    Free,
    Allocated,
}

/// Free chunks by size: those of about one size are in a list, and bits find the first list that is
/// not empty.
#[derive(Debug)]
pub(crate) struct Bins {
    /// One bit for each row that has a list that is not empty.
    rows: u32,
    /// By row: one bit for each list that is not empty.
    columns: [u16; ROWS],
    /// The first chunk of each list.
    first: [u32; ROWS * FINE as usize],
}

/// Rounds a size in bytes up to the smallest size of a list, so that every chunk of that list
/// serves it. Returns units; `None` for more than a request may have.
pub(crate) fn round_up(bytes: usize) -> Option<u32> {
    let units = u32::try_from(bytes.div_ceil(UNIT)).ok().filter(|units| *units <= MOST)?;
    let step = 1 << units.max(1).ilog2().saturating_sub(FINE_BITS);
    Some(units.next_multiple_of(step))
}

/// Returns the row and the column of the list that has chunks of this size.
fn list_of(units: u32) -> (usize, u32) {
    let shift = units.max(1).ilog2().saturating_sub(FINE_BITS);
    match units < FINE {
        true => (0, units),
        false => (shift as usize + 1, (units >> shift) % FINE),
    }
}

impl Default for Bins {
    fn default() -> Self {
        Self { rows: 0, columns: [0; ROWS], first: [NONE; ROWS * FINE as usize] }
    }
}

impl Bins {
    /// Returns a chunk of at least `units`, a size that [`round_up`] returned: one of the smallest
    /// list that has any.
    pub(crate) fn find(&self, units: u32) -> Option<u32> {
        let (row, column) = list_of(units);
        let right = self.columns[row] & (u16::MAX << column);
        if right != 0 {
            return Some(self.first[index(row, right.trailing_zeros())]);
        }
        let below = self.rows & (u32::MAX << (row + 1));
        if below == 0 {
            return None;
        }
        let row = below.trailing_zeros() as usize;
        Some(self.first[index(row, self.columns[row].trailing_zeros())])
    }

    /// Adds a chunk, as the first of its list.
    pub(crate) fn insert(&mut self, chunks: &mut [Chunk], id: u32) {
        let (row, column) = list_of(chunks[id as usize].units);
        let first = std::mem::replace(&mut self.first[index(row, column)], id);
        if first != NONE {
            chunks[first as usize].previous = id;
        }
        let chunk = &mut chunks[id as usize];
        chunk.state = State::Free;
        chunk.previous = NONE;
        chunk.next = first;
        self.columns[row] |= 1 << column;
        self.rows |= 1 << row;
    }

    /// Removes a chunk, which is allocated then.
    pub(crate) fn remove(&mut self, chunks: &mut [Chunk], id: u32) {
        let chunk = &mut chunks[id as usize];
        chunk.state = State::Allocated;
        let Chunk { units, previous, next, .. } = *chunk;
        if next != NONE {
            chunks[next as usize].previous = previous;
        }
        if previous != NONE {
            chunks[previous as usize].next = next;
            return;
        }
        let (row, column) = list_of(units);
        self.first[index(row, column)] = next;
        if next == NONE {
            self.columns[row] &= !(1 << column);
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }
}

fn index(row: usize, column: u32) -> usize {
    row * FINE as usize + column as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_rounded_up_by_a_sixteenth_at_most_and_is_the_smallest_of_its_list() {
        let mut last = 0;
        for units in (1..5000).chain((13..30).flat_map(|bit| {
            let power = 1_u32 << bit;
            [power - 1, power, power + 1, power + power / 3]
        })) {
            let rounded = round_up(units as usize * UNIT).unwrap();
            assert!(rounded >= units && rounded - units <= units / 16, "{units} {rounded}");
            assert!(rounded == 1 || list_of(rounded - 1) != list_of(rounded), "{units} {rounded}");
            let (row, column) = list_of(units);
            assert!(index(row, column) >= last, "{units}");
            last = index(row, column);
        }
        assert_eq!(round_up(MOST as usize * UNIT), Some(MOST));
        assert_eq!(round_up(MOST as usize * UNIT + 1), None);
        assert_eq!(round_up(usize::MAX), None);
        assert!(list_of(u32::MAX).0 < ROWS);
    }
}
