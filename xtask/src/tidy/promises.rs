//! Each promise that the contract says is kept names the files that test it.

use std::collections::BTreeSet;

use super::tree::Tree;
use crate::failure::Violation;

const CONTRACT: &str = "docs/src/contract.md";

/// What the last cell of a promise's row may say.
const KEPT: &[&str] = &["now", "part"];
const NOT_YET: &str = "later";

/// The page has one row `| T1 | promise | now |` for each promise, and, in another table, one row
/// `| T1 | files |` for each that is kept. (That the files exist, the lint on pages says.)
pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let (mut promised, mut later) = (BTreeSet::new(), BTreeSet::new());
    let (mut tested, mut found) = (BTreeSet::new(), Vec::new());
    let page = tree.text(CONTRACT).unwrap_or_default();
    for (index, (id, rest)) in
        page.lines().enumerate().filter_map(|(index, line)| Some((index, row(line)?)))
    {
        let is_new = match rest.last() {
            Some(state) if KEPT.contains(state) => promised.insert(id),
            Some(&NOT_YET) => later.insert(id),
            Some(files) if files.starts_with('`') => tested.insert(id),
            _ => {
                let message = format!("{id}: neither now, part or later, nor files in code");
                found.push(Violation::on_line(CONTRACT, index, message));
                true
            }
        };
        if !is_new {
            found.push(Violation::on_line(CONTRACT, index, format!("{id} is there twice")));
        }
    }
    for id in promised.difference(&tested) {
        found.push(Violation::of(CONTRACT, format!("{id} is promised, but names no test")));
    }
    for id in tested.difference(&promised) {
        found.push(Violation::of(CONTRACT, format!("{id} names tests, but is not promised")));
    }
    found
}

/// The cells of a table's row whose first one is a promise's id.
fn row(line: &str) -> Option<(&str, Vec<&str>)> {
    let inner = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    let mut cells = inner.split('|').map(str::trim);
    let id = cells.next()?;
    let number = id.strip_prefix(|letter: char| letter.is_ascii_uppercase())?;
    let is_id = !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit());
    is_id.then(|| (id, cells.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(page: &str) -> Vec<String> {
        let found = violations(&Tree::from([(CONTRACT, page)]));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    #[test]
    fn promises_with_tests_and_plans_without_are_fine() {
        let page = "| id | promise | kept |\n| --- | --- | --- |\n| T1 | a | now |\n\
                    | T2 | b | part |\n| U1 | c | later |\n\n\
                    | id | tests |\n| T1 | `t1.rs`, `t1_b.rs` |\n| T2 | `t2.rs` |\n";
        assert_eq!(messages(page), [""; 0]);
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        let found = messages("| T1 | a | now |\n| T2 | b | part |\n| T2 | `t2.rs` |\n");
        assert_eq!(found, ["docs/src/contract.md: T1 is promised, but names no test"]);
    }

    #[test]
    fn a_test_of_what_nobody_promised_is_found() {
        let found = messages("| U1 | a | later |\n| U1 | `u1.rs` |\n");
        assert_eq!(found, ["docs/src/contract.md: U1 names tests, but is not promised"]);
    }

    #[test]
    fn a_promise_that_is_there_twice_or_in_no_state_is_found() {
        let found = messages("| U1 | a | later |\n| U1 | a | later |\n| U2 | a | soon |\n");
        assert_eq!(
            found,
            [
                "docs/src/contract.md:2: U1 is there twice",
                "docs/src/contract.md:3: U2: neither now, part or later, nor files in code",
            ]
        );
    }
}
