//! Each kept promise of the contract has a row on the safety page: the files that test
//! it, and a fault that they would detect.

use std::collections::BTreeSet;

use super::tree::Tree;
use crate::failure::Violation;

const CONTRACT: &str = "docs/src/contract.md";
const SAFETY: &str = "docs/src/safety.md";

/// The allowed values of the last cell of a promise's row.
const KEPT: &[&str] = &["now", "part"];
const NOT_YET: &str = "later";

/// The contract has one row `| T1 | promise | now |` for each promise, and the safety page one row
/// `| T1 | files | fault |` for each kept one. (The lint on pages checks that the files exist.)
pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let kept = kept_promises(tree, &mut found);
    let checked = checked_promises(tree, &mut found);
    for id in kept.difference(&checked) {
        found.push(Violation::of(SAFETY, format!("{id} is kept, but has no row here")));
    }
    for id in checked.difference(&kept) {
        found.push(Violation::of(SAFETY, format!("{id} has a row, but is no kept promise")));
    }
    found
}

fn kept_promises<'t>(tree: &'t Tree, found: &mut Vec<Violation>) -> BTreeSet<&'t str> {
    let mut promised = BTreeSet::new();
    let mut kept = BTreeSet::new();
    for Row { index, id, cells } in rows(tree, CONTRACT) {
        match cells.last() {
            Some(state) if KEPT.contains(state) => _ = kept.insert(id),
            Some(&NOT_YET) => {}
            _ => {
                let message = format!("{id}: the last cell is none of now, part and later");
                found.push(Violation::on_line(CONTRACT, index, message));
            }
        }
        if !promised.insert(id) {
            found.push(Violation::on_line(CONTRACT, index, format!("{id} is there twice")));
        }
    }
    kept
}

fn checked_promises<'t>(tree: &'t Tree, found: &mut Vec<Violation>) -> BTreeSet<&'t str> {
    let mut checked = BTreeSet::new();
    for Row { index, id, cells } in rows(tree, SAFETY) {
        let mut refuse = |message: &str| {
            found.push(Violation::on_line(SAFETY, index, format!("{id} {message}")));
        };
        match cells[..] {
            [files, _] if !names_a_test(files) => refuse("names no test file"),
            [_, ""] => refuse("does not say what makes it red"),
            [_, _] => {}
            _ => refuse("needs three cells: the id, what checks it, what makes it red"),
        }
        if !checked.insert(id) {
            refuse("is there twice");
        }
    }
    checked
}

/// Returns whether a cell has the path of a source file in code.
fn names_a_test(cell: &str) -> bool {
    let mut spans = cell.split('`').skip(1).step_by(2);
    spans.any(|span| span.starts_with("crates/") && span.ends_with(".rs"))
}

/// A row of a table whose first cell is a promise's id.
struct Row<'t> {
    /// The index of the line in its page, from zero.
    index: usize,
    id: &'t str,
    /// The cells after the id.
    cells: Vec<&'t str>,
}

fn rows<'t>(tree: &'t Tree, page: &str) -> impl Iterator<Item = Row<'t>> {
    let lines = tree.text(page).unwrap_or_default().lines().enumerate();
    lines.filter_map(|(index, line)| row(line).map(|(id, cells)| Row { index, id, cells }))
}

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

    fn messages(contract: &str, safety: &str) -> Vec<String> {
        let found = violations(&Tree::from([(CONTRACT, contract), (SAFETY, safety)]));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    #[test]
    fn kept_promises_with_a_row_and_plans_without_are_fine() {
        let contract = "| id | promise | kept |\n| --- | --- | --- |\n| T1 | a | now |\n\
                        | T2 | b | part |\n| U1 | c | later |\n";
        let safety = "| id | what checks it | red, for example, if |\n| --- | --- | --- |\n\
                      | T1 | conformance, `crates/a/tests/t1.rs` | a stream is stored |\n\
                      | T2 | `crates/a/tests/t2.rs` | a stream is lost |\n\n\
                      | what | figure |\n| NVIDIA H200 | 0 |\n";
        assert_eq!(messages(contract, safety), [""; 0]);
    }

    #[test]
    fn a_kept_promise_without_a_row_is_found() {
        let contract = "| T1 | a | now |\n| T2 | b | part |\n";
        let found = messages(contract, "| T2 | `crates/a/tests/t2.rs` | a fault |\n");
        assert_eq!(found, ["docs/src/safety.md: T1 is kept, but has no row here"]);
    }

    #[test]
    fn a_row_in_the_contract_is_none_on_the_safety_page() {
        let found = messages("| T1 | a | now |\n| T1 | `crates/a/tests/t1.rs` |\n", "");
        assert_eq!(
            found,
            [
                "docs/src/contract.md:2: T1: the last cell is none of now, part and later",
                "docs/src/contract.md:2: T1 is there twice",
                "docs/src/safety.md: T1 is kept, but has no row here",
            ]
        );
    }

    #[test]
    fn a_row_of_what_is_not_kept_is_found() {
        let safety = "| U1 | `crates/a/tests/u1.rs` | a fault |\n\
                      | U2 | `crates/a/tests/u2.rs` | a fault |\n";
        assert_eq!(
            messages("| U1 | a | later |\n", safety),
            [
                "docs/src/safety.md: U1 has a row, but is no kept promise",
                "docs/src/safety.md: U2 has a row, but is no kept promise",
            ]
        );
    }

    #[test]
    fn a_row_names_a_test_file_and_a_fault() {
        let contract = "| T1 | a | now |\n| T2 | a | now |\n| T3 | a | now |\n| T4 | a | now |\n";
        let safety = "| T1 | conformance, `crates/a` | a fault |\n\
                      | T2 | `crates/a/tests/t2.rs` |  |\n\
                      | T3 | `crates/a/tests/t3.rs` |\n\
                      | T4 | crates/a/tests/t4.rs | a fault |\n";
        assert_eq!(
            messages(contract, safety),
            [
                "docs/src/safety.md:1: T1 names no test file",
                "docs/src/safety.md:2: T2 does not say what makes it red",
                "docs/src/safety.md:3: T3 needs three cells: the id, what checks it, what makes it red",
                "docs/src/safety.md:4: T4 names no test file",
            ]
        );
    }

    #[test]
    fn a_promise_that_is_there_twice_or_in_no_state_is_found() {
        let contract =
            "| U1 | a | later |\n| U1 | a | later |\n| U2 | a | soon |\n| U3 | a | now |\n";
        let row = "| U3 | `crates/a/tests/u3.rs` | a fault |\n";
        assert_eq!(
            messages(contract, &row.repeat(2)),
            [
                "docs/src/contract.md:2: U1 is there twice",
                "docs/src/contract.md:3: U2: the last cell is none of now, part and later",
                "docs/src/safety.md:2: U3 is there twice",
            ]
        );
    }
}
