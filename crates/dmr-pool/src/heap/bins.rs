//! Free chunks by size: which list a size belongs to, and which lists have any, in two bitmaps.

use super::chunk::ChunkId;

/// Sizes below this many units have a list each; larger ones share one with those that agree in
/// as many bits after the first.
const FINE: u32 = 32;
const FINE_BITS: u32 = FINE.ilog2();
/// How often a 32-bit size doubles from `FINE` on, and the row of small sizes.
const ROWS: usize = (u32::BITS - FINE_BITS) as usize + 1;

/// The heads of the lists, and which are not empty.
#[derive(Debug)]
pub(super) struct Bins {
    /// By row: one bit for each list that is not empty.
    columns: [u32; ROWS],
    /// One bit for each row that has a list that is not empty.
    rows: u32,
    heads: [[Option<ChunkId>; FINE as usize]; ROWS],
    /// Something may be in another list than before.
    changed: bool,
}

/// A list: sizes that are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bin {
    row: u8,
    column: u8,
}

impl Default for Bins {
    fn default() -> Self {
        Self { columns: [0; ROWS], rows: 0, heads: [[None; FINE as usize]; ROWS], changed: false }
    }
}

impl Bin {
    /// Where chunks of this size are listed.
    #[inline]
    pub(super) fn of(units: u32) -> Self {
        let Some(shift) = units.ilog2().checked_sub(FINE_BITS) else {
            return Self { row: 0, column: units as u8 };
        };
        let column = (units >> shift) & (FINE - 1);
        Self { row: shift as u8 + 1, column: column as u8 }
    }

    /// The smallest size listed here.
    pub(super) fn smallest(self) -> u32 {
        match self.row {
            0 => u32::from(self.column),
            row => (FINE | u32::from(self.column)) << (row - 1),
        }
    }
}

impl Bins {
    #[inline]
    pub(super) fn head(&self, bin: Bin) -> Option<ChunkId> {
        self.heads[usize::from(bin.row)][usize::from(bin.column)]
    }

    /// Makes `head` the first of its list.
    #[inline]
    pub(super) fn set_head(&mut self, bin: Bin, head: Option<ChunkId>) {
        let (row, column) = (usize::from(bin.row), usize::from(bin.column));
        self.heads[row][column] = head;
        self.changed = true;
        let bit = 1 << column;
        if head.is_some() {
            self.columns[row] |= bit;
            self.rows |= 1 << row;
        } else {
            self.columns[row] &= !bit;
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// Whether a list has got another head since this was last asked.
    #[inline]
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The first list after this one that is not empty: every chunk in it is larger.
    #[inline]
    pub(super) fn next_after(&self, bin: Bin) -> Option<Bin> {
        let row = usize::from(bin.row);
        let right =
            self.columns[row] & (!0_u32).checked_shl(u32::from(bin.column) + 1).unwrap_or(0);
        if right != 0 {
            return Some(Bin { row: bin.row, column: right.trailing_zeros() as u8 });
        }
        let below = self.rows & (!0_u32).checked_shl(u32::from(bin.row) + 1).unwrap_or(0);
        if below == 0 {
            return None;
        }
        let row = below.trailing_zeros();
        Some(Bin { row: row as u8, column: self.columns[row as usize].trailing_zeros() as u8 })
    }

    /// The last list that is not empty.
    pub(super) fn last(&self) -> Option<Bin> {
        let row = self.rows.checked_ilog2()?;
        let column = self.columns[row as usize].checked_ilog2()?;
        Some(Bin { row: row as u8, column: column as u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_listed_in_order_and_a_list_begins_with_its_smallest() {
        let sizes = (1..5000).chain((13..32).flat_map(|bit| {
            let power = 1_u32 << bit;
            [power - 1, power, power + 1, power + power / 3]
        }));
        let mut last = Bin::of(1);
        for size in sizes {
            let bin = Bin::of(size);
            assert!(bin.smallest() <= size, "{size} in {bin:?}");
            assert!((bin.row, bin.column) >= (last.row, last.column), "{size}: {last:?} {bin:?}");
            assert_eq!(Bin::of(bin.smallest()), bin);
            last = bin;
        }
        assert!(usize::from(Bin::of(u32::MAX).row) < ROWS);
    }
}
