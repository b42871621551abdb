//! Makes a failing program small: deletes steps for as long as it still fails.

use super::program::Program;

/// The shortest program found that still fails, and how it fails.
pub(crate) fn shrink(
    program: &Program,
    mut failure: String,
    fails: impl Fn(&Program) -> Option<String>,
) -> (Program, String) {
    let mut smallest = program.clone();
    loop {
        let before = smallest.steps.len();
        // Backwards: what depends on a step goes before the step.
        for index in (0..before).rev() {
            let shorter = smallest.without(index);
            if let Some(still) = fails(&shorter) {
                smallest = shorter;
                failure = still;
            }
        }
        if smallest.steps.len() == before {
            return (smallest, failure);
        }
    }
}
