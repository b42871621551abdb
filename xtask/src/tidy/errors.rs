//! Checks that public errors are `#[non_exhaustive]`: a new field or variant then breaks no program
//! that matches on them. And that those of the library convert to `dmr::Error`.

use super::tree::Tree;
use crate::failure::Violation;

const MARK: &str = "#[non_exhaustive]";

/// The crate of the error that all others convert to, and its file.
const FACADE: &str = "crates/memory/dmr/Cargo.toml";
const ONE_ERROR: &str = "crates/memory/dmr/src/one_error.rs";

/// Checks each public type that derives `thiserror::Error`, and each of its variants that has
/// named fields. (A variant with an unnamed field gets no further fields.)
pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        if path.starts_with("crates/") && path.contains("/src/") {
            check(path, text, &mut found);
            if is_of_the_library(tree, path) {
                check_conversion(tree, path, text, &mut found);
            }
        }
    }
    found
}

/// Returns whether the file is of the facade, or of a crate that it depends on.
fn is_of_the_library(tree: &Tree, path: &str) -> bool {
    let name = path.split('/').nth(2).unwrap_or_default();
    let manifest = tree.text(FACADE).unwrap_or_default();
    let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
    name == "dmr" || dependencies.lines().any(|line| line.split([' ', '.']).next() == Some(name))
}

/// Checks that the file of `dmr::Error` names each public error, by which it converts it.
fn check_conversion(tree: &Tree, path: &str, text: &str, found: &mut Vec<Violation>) {
    let Some(one) = tree.text(ONE_ERROR) else { return };
    for (index, line) in text.lines().enumerate() {
        let Some(name) = type_name(line).filter(|name| name.ends_with("Error")) else { continue };
        let is_named = one.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
        if !is_named {
            let message = format!("the error `{name}` does not convert to `dmr::Error`");
            found.push(Violation::on_line(path, index, message));
        }
    }
}

fn check(path: &str, text: &str, found: &mut Vec<Violation>) {
    let lines: Vec<_> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = type_name(line) else { continue };
        let attributes = before(&lines, index, "");
        let is_error = |line: &&str| line.contains("derive(") && line.contains("thiserror::Error");
        if !attributes.iter().any(is_error) {
            continue;
        }
        if !attributes.contains(&MARK) {
            let message = format!("the error `{name}` is not `{MARK}`");
            found.push(Violation::on_line(path, index, message));
        }
        if !line.starts_with("pub enum ") {
            continue;
        }
        let body = lines[index..].iter().take_while(|line| **line != "}").count();
        for (at, line) in lines.iter().enumerate().skip(index + 1).take(body - 1) {
            let Some(variant) = variant_with_fields(line) else { continue };
            if !before(&lines, at, "    ").contains(&MARK) {
                let message = format!("the variant `{name}::{variant}` is not `{MARK}`");
                found.push(Violation::on_line(path, at, message));
            }
        }
    }
}

/// Returns `Name` of `pub enum Name {` and of `pub struct Name {`, with or without parameters.
fn type_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub enum ").or_else(|| line.strip_prefix("pub struct "))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns `Name` of `    Name {`.
fn variant_with_fields(line: &str) -> Option<&str> {
    let name = line.strip_prefix("    ")?.strip_suffix(" {")?;
    let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_alphanumeric());
    is_name.then_some(name)
}

/// Returns the documentation and the attributes of the item on a line, trimmed: the lines above it,
/// up to one that begins or ends another item of the same indentation.
fn before<'t>(lines: &[&'t str], index: usize, indent: &str) -> Vec<&'t str> {
    let is_of_another = |line: &&&str| {
        let own = line.strip_prefix(indent);
        line.is_empty()
            || own.is_some_and(|line| line.starts_with('}') || line.starts_with(char::is_uppercase))
            || line.starts_with("pub ")
    };
    let above = lines[..index].iter().rev().take_while(|line| !is_of_another(line));
    above.map(|line| line.trim()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! x\n\n/// E.\n#[derive(Debug, thiserror::Error)]\n#[non_exhaustive]\n\
        pub enum E {\n    /// A.\n    #[error(\"a\")]\n    A,\n    /// B.\n    #[error(\n        \
        \"b {c}\"\n    )]\n    #[non_exhaustive]\n    B {\n        /// C.\n        c: u8,\n    },\n    \
        /// D.\n    #[error(transparent)]\n    D(#[from] F),\n}\n\n\
        #[derive(thiserror::Error)]\n#[error(\"f\")]\n#[non_exhaustive]\npub struct F {\n    \
        /// G.\n    pub g: u8,\n}\n";

    fn messages(text: &str) -> Vec<String> {
        let found = violations(&Tree::from([("crates/memory/dmr/src/error.rs", text)]));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    #[test]
    fn an_error_that_can_grow_is_fine() {
        assert_eq!(messages(GOOD), [""; 0]);
    }

    #[test]
    fn an_error_type_a_variant_and_a_struct_without_the_mark_are_found() {
        let without = |nth: usize| {
            let (at, _) = GOOD.match_indices(MARK).nth(nth).unwrap();
            let (above, below) = GOOD.split_at(at);
            messages(&format!("{above}{}", below.replacen(MARK, "#[must_use]", 1)))
        };
        for (nth, what) in
            ["the error `E`", "the variant `E::B`", "the error `F`"].iter().enumerate()
        {
            let found = without(nth);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(what), "{found:?}");
        }
    }

    #[test]
    fn an_error_of_the_library_that_does_not_convert_is_found() {
        let manifest =
            "[dependencies]\ndmr-core.workspace = true\n[dev-dependencies]\ndmr-sim = {}\n";
        let of = |path, one| {
            let text = "//! x\n\npub enum CallError {\n}\n";
            violations(&Tree::from([(FACADE, manifest), (ONE_ERROR, one), (path, text)])).len()
        };
        assert_eq!(of("crates/memory/dmr-core/src/error.rs", "//! x\nNoCallErrors(x)"), 1);
        assert_eq!(of("crates/memory/dmr-core/src/error.rs", "//! x\nCall(CallError);"), 0);
        assert_eq!(of("crates/simulator/dmr-sim/src/error.rs", "//! x\n"), 0);
    }

    #[test]
    fn types_that_are_no_errors_are_left_alone() {
        let text = "//! x\n\n#[derive(Debug)]\npub enum E {\n    A {\n        b: u8,\n    },\n}\n";
        assert_eq!(messages(text), [""; 0]);
    }
}
