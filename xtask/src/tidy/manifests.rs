//! Every crate has the workspace's lints; every published one has the fields that a registry shows.

use super::tree::Tree;
use crate::command;
use crate::failure::Violation;
use crate::workspace::{Package, Workspace};

/// A README of a crate fits on a screen or two; the rest belongs to its documentation.
const README_LINES: usize = 60;

pub(super) fn violations(tree: &Tree, workspace: &Workspace) -> Vec<Violation> {
    let root = format!("{}/", command::root().display());
    let mut found = Vec::new();
    for package in &workspace.packages {
        let manifest = package.manifest_path.trim_start_matches(root.as_str());
        check_lints(tree, manifest, &mut found);
        check_unit_tests(tree, manifest, &mut found);
        if package.is_published() {
            check_fields(package, manifest, &mut found);
            check_files(tree, manifest.trim_end_matches("Cargo.toml"), &mut found);
        }
    }
    found
}

fn check_lints(tree: &Tree, manifest: &str, found: &mut Vec<Violation>) {
    let text = tree.text(manifest).unwrap_or_default();
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    if lines.next() != Some("workspace = true") {
        found.push(Violation::of(manifest, "add `[lints]` with `workspace = true`"));
    }
}

/// Finds unit tests in a library whose manifest builds no executable for them, in files that no
/// integration test compiles by their path: they would never run.
fn check_unit_tests(tree: &Tree, manifest: &str, found: &mut Vec<Violation>) {
    let text = tree.text(manifest).unwrap_or_default();
    let library = text.split("[lib]\n").nth(1).unwrap_or_default().split("\n[").next();
    if !library.is_some_and(|library| library.lines().any(|line| line == "test = false")) {
        return;
    }
    let folder = manifest.trim_end_matches("Cargo.toml");
    let of = |part: &str| {
        let part = format!("{folder}{part}/");
        tree.ending(".rs").filter(move |(path, _)| path.starts_with(&part))
    };
    for (path, text) in of("src") {
        let attribute = format!("../{}\"]", path.trim_start_matches(folder));
        let is_compiled = || of("tests").any(|(_, text)| text.contains(&attribute));
        if text.lines().any(|line| line.trim() == "#[test]") && !is_compiled() {
            let message = format!("never runs: {manifest} has `test = false`");
            found.push(Violation::of(path, message));
        }
    }
}

fn check_fields(package: &Package, manifest: &str, found: &mut Vec<Violation>) {
    let docs_rs = &package.metadata["docs"]["rs"];
    let fields = [
        ("description", package.description.is_some()),
        // A registry shows docs.rs by itself, and before a release there is no such page.
        ("documentation", package.documentation.is_none()),
        ("license", package.license.is_some()),
        ("rust-version", package.rust_version.is_some()),
        ("readme", package.readme.as_deref() == Some("README.md")),
        ("keywords", (1..=5).contains(&package.keywords.len())),
        ("categories", (1..=5).contains(&package.categories.len())),
        ("metadata.docs.rs", docs_rs.is_object()),
    ];
    for (field, is_good) in fields {
        if !is_good {
            let message = format!("`{field}` is missing or not what the other crates have");
            found.push(Violation::of(manifest, message));
        }
    }
}

fn check_files(tree: &Tree, folder: &str, found: &mut Vec<Violation>) {
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        let path = format!("{folder}{file}");
        match tree.text(&path).map(|text| text.lines().count()) {
            None | Some(0) => found.push(Violation::of(&path, "missing or empty")),
            Some(lines) if file == "README.md" && lines > README_LINES => {
                let message = format!("{lines} lines: a crate's README has at most {README_LINES}");
                found.push(Violation::of(&path, message));
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workspace::example;

    const LINTS: &str = "[lints]\nworkspace = true\n";
    const MANIFEST: &str = "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n";

    fn messages(tree: &Tree, package: Value) -> Vec<String> {
        let found = violations(tree, &example::workspace(&[package]));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    fn good_tree() -> Tree {
        Tree::from([
            ("crates/memory/x/Cargo.toml", MANIFEST),
            ("crates/memory/x/README.md", "# x\n"),
            ("crates/memory/x/LICENSE-MIT", "MIT\n"),
            ("crates/memory/x/LICENSE-APACHE", "Apache\n"),
        ])
    }

    #[test]
    fn a_complete_crate_is_fine() {
        assert_eq!(messages(&good_tree(), example::package("x")), [""; 0]);
    }

    #[test]
    fn each_missing_field_is_named() {
        let cases = [
            ("description", Value::Null, "description"),
            ("documentation", json!("https://docs.rs/x"), "documentation"),
            ("license", Value::Null, "license"),
            ("rust_version", Value::Null, "rust-version"),
            ("readme", Value::Null, "readme"),
            ("keywords", json!([]), "keywords"),
            ("categories", json!([]), "categories"),
            ("metadata", Value::Null, "metadata.docs.rs"),
        ];
        for (field, value, named) in cases {
            let mut package = example::package("x");
            package[field] = value;
            let found = messages(&good_tree(), package);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(&format!("`{named}`")), "{found:?}");
        }
    }

    #[test]
    fn each_missing_file_is_named() {
        let tree = Tree::from([
            ("crates/memory/x/Cargo.toml", MANIFEST),
            ("crates/memory/x/LICENSE-MIT", ""),
        ]);
        let found = messages(&tree, example::package("x"));
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn an_unpublished_crate_needs_the_lints_only() {
        let mut package = example::package("x");
        package["publish"] = json!([]);
        package["description"] = Value::Null;
        let without_lints =
            Tree::from([("crates/memory/x/Cargo.toml", "[package]\nname = \"x\"\n")]);
        let found = messages(&without_lints, package);
        assert_eq!(found, ["crates/memory/x/Cargo.toml: add `[lints]` with `workspace = true`"]);
    }

    #[test]
    fn a_unit_test_that_no_executable_is_built_for_is_found() {
        let of = |library: &str, test: &str| {
            let manifest = format!("[package]\nname = \"x\"\n\n[lib]\n{library}\n{LINTS}");
            let tree = Tree::from([
                ("crates/memory/x/Cargo.toml", manifest.as_str()),
                ("crates/memory/x/src/a.rs", "//! x\n#[test]\nfn f() {}\n"),
                ("crates/memory/x/tests/units.rs", test),
            ]);
            let mut package = example::package("x");
            package["publish"] = json!([]);
            messages(&tree, package)
        };
        assert_eq!(of("doctest = false\n", ""), [""; 0]);
        let never = "crates/memory/x/src/a.rs: never runs: crates/memory/x/Cargo.toml has \
                     `test = false`";
        assert_eq!(of("test = false\n", ""), [never]);
        let other = "#[path = \"../src/b/a.rs\"]\nmod a;\n";
        assert_eq!(of("test = false\n", other), [never]);
        let this = "#[path = \"../src/a.rs\"]\nmod a;\n";
        assert_eq!(of("test = false\n", this), [""; 0]);
    }

    #[test]
    fn a_readme_that_became_a_manual_is_refused() {
        let long = "line\n".repeat(README_LINES + 1);
        let tree = Tree::from([
            ("crates/memory/x/Cargo.toml", MANIFEST),
            ("crates/memory/x/README.md", long.as_str()),
            ("crates/memory/x/LICENSE-MIT", "MIT\n"),
            ("crates/memory/x/LICENSE-APACHE", "Apache\n"),
        ]);
        assert_eq!(messages(&tree, example::package("x")).len(), 1);
    }
}
