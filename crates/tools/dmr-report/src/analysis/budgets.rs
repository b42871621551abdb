//! Budgets: their high marks, and the blocks that belong to them as far as a file says.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::{BudgetPeak, Model, NONE};

/// The highest mark of each budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HighMarks {
    /// The marks, the highest first.
    pub marks: Vec<BudgetPeak>,
    names: FxHashSet<u32>,
}

impl HighMarks {
    /// Finds the highest mark of each budget of a file.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        let mut highest: FxHashMap<u32, BudgetPeak> = FxHashMap::default();
        for peak in &model.budget_peaks {
            let mark = highest.entry(peak.budget).or_insert(*peak);
            if peak.bytes >= mark.bytes {
                *mark = *peak;
            }
        }
        let mut marks: Vec<_> = highest.into_values().collect();
        marks.sort_by_key(|mark| (std::cmp::Reverse(mark.bytes), mark.budget));
        // The empty name is that of no tag, too.
        let names = marks.iter().map(|mark| mark.budget).filter(|name| *name != 0).collect();
        Self { marks, names }
    }

    /// Returns the budget of a block, a name: the one that is named as its tag or as its label;
    /// [`NONE`] if there is none. A recording does not say to which budget a block was charged.
    #[must_use]
    pub fn budget_of(&self, model: &Model, block: usize) -> u32 {
        let names = [model.blocks.tag[block], model.blocks.label[block]];
        names.into_iter().find(|name| self.names.contains(name)).unwrap_or(NONE)
    }
}
