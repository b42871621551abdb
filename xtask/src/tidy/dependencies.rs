//! The table of dependencies has each crate that a manifest names, and no other.

use std::collections::BTreeSet;

use super::tree::Tree;
use crate::failure::Violation;
use crate::workspace::Workspace;

const TABLE: &str = "docs/src/decisions/0005-dependencies.md";

pub(super) fn violations(tree: &Tree, workspace: &Workspace) -> Vec<Violation> {
    let named: BTreeSet<&str> = workspace
        .packages
        .iter()
        .flat_map(|package| &package.dependencies)
        .map(|dependency| dependency.name.as_str())
        .filter(|name| workspace.package(name).is_none())
        .collect();
    let explained: BTreeSet<&str> =
        tree.text(TABLE).unwrap_or_default().lines().filter_map(first_cell).collect();
    let missing = named
        .difference(&explained)
        .map(|name| Violation::of(TABLE, format!("does not say what `{name}` is for")));
    let stale = explained
        .difference(&named)
        .map(|name| Violation::of(TABLE, format!("`{name}` is not a dependency any more")));
    missing.chain(stale).collect()
}

/// Returns the name in a row that starts with a name in code.
fn first_cell(row: &str) -> Option<&str> {
    row.strip_prefix("| `")?.split('`').next()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workspace::example::{self, dependency};

    fn messages(page: &str) -> Vec<String> {
        let mut a = example::package("a");
        let b = example::package("b");
        a["dependencies"] = json!([dependency("b", None, "^1"), dependency("libc", None, "^1")]);
        let found = violations(&Tree::from([(TABLE, page)]), &example::workspace(&[a, b]));
        found.into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn a_table_with_every_foreign_crate_is_fine() {
        assert_eq!(messages("| crate | what for |\n| `libc` | `dlopen` |\n"), [""; 0]);
    }

    #[test]
    fn a_dependency_without_a_row_is_found() {
        assert_eq!(messages("text\n"), ["does not say what `libc` is for"]);
    }

    #[test]
    fn a_row_for_a_removed_dependency_is_found() {
        let page = "| `libc` | x |\n| `rand` | x |\n";
        assert_eq!(messages(page), ["`rand` is not a dependency any more"]);
    }
}
