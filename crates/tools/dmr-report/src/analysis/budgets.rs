//! Budgets: their high marks, and the blocks that belong to them as far as a file says.

use crate::model::{BudgetPeak, Model, NONE};

/// Returns the last high mark of each budget, in the order of the names' first appearance.
#[must_use]
pub fn high_marks(model: &Model) -> Vec<BudgetPeak> {
    let mut marks: Vec<BudgetPeak> = Vec::new();
    for peak in &model.budget_peaks {
        match marks.iter_mut().find(|mark| mark.budget == peak.budget) {
            Some(mark) if mark.bytes > peak.bytes => {}
            Some(mark) => *mark = *peak,
            None => marks.push(*peak),
        }
    }
    marks
}

/// Returns the budget of a block, a name: the one that is named as its tag or as its label;
/// [`NONE`] if there is none. A recording does not say to which budget a block was charged.
#[must_use]
pub fn budget_of(model: &Model, marks: &[BudgetPeak], block: usize) -> u32 {
    let names = [model.blocks.tag[block], model.blocks.label[block]];
    let is_budget = |name: &u32| *name != 0 && marks.iter().any(|mark| mark.budget == *name);
    names.into_iter().find(is_budget).unwrap_or(NONE)
}
