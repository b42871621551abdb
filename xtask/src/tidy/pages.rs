//! Links and paths in pages and READMEs exist, and their tables are complete.

use std::collections::BTreeSet;

use super::tree::Tree;
use crate::failure::Violation;

const BOOK: &str = "docs/src/";
const SUMMARY: &str = "docs/src/SUMMARY.md";
const VARIABLES: &str = "docs/src/guide/environment.md";

/// The starts of code spans that are paths of the repository.
const FOLDERS: &[&str] = &[".cargo/", ".ci/", ".github/", "crates/", "docs/", "traces/", "xtask/"];

pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md") {
        check_links(tree, path, text, &mut found);
        check_paths(tree, path, text, &mut found);
    }
    check_summary(tree, &mut found);
    check_variables(tree, &mut found);
    found
}

fn check_links(tree: &Tree, path: &str, text: &str, found: &mut Vec<Violation>) {
    for (index, line) in prose(text) {
        for target in link_targets(&without_code(line)) {
            if let Some(name) = registry_page(target).filter(|name| is_own_crate(tree, name)) {
                let message = format!(
                    "`{target}` is not there before `{name}` is released: link to its README"
                );
                found.push(Violation::on_line(path, index, message));
            }
            if target.contains("://") || target.starts_with('#') || target.starts_with("mailto:") {
                continue;
            }
            let file = target.split('#').next().unwrap_or(target);
            match resolve(path, file) {
                Some(resolved) if path.starts_with(BOOK) && !resolved.starts_with(BOOK) => {
                    let message =
                        format!("`{target}` is outside the book: name it in code instead");
                    found.push(Violation::on_line(path, index, message));
                }
                Some(resolved) if tree.has(&resolved) => {}
                _ => {
                    let message = format!("links to `{target}`, which is not there");
                    found.push(Violation::on_line(path, index, message));
                }
            }
        }
    }
}

/// Returns the crate of a page of docs.rs or crates.io.
fn registry_page(target: &str) -> Option<&str> {
    let page = target.strip_prefix("https://")?;
    let page = ["docs.rs/crate/", "docs.rs/", "crates.io/crates/"]
        .iter()
        .find_map(|site| page.strip_prefix(site))?;
    page.split(['/', '#']).next()
}

fn is_own_crate(tree: &Tree, name: &str) -> bool {
    tree.ending(&format!("/{name}/Cargo.toml")).any(|(path, _)| path.starts_with("crates/"))
}

/// Checks that a path in code, such as that of a test file, exists.
fn check_paths(tree: &Tree, path: &str, text: &str, found: &mut Vec<Violation>) {
    for (index, line) in prose(text) {
        for span in code_spans(line) {
            let is_path = FOLDERS.iter().any(|folder| span.starts_with(folder))
                && !span.contains(['*', '<', '{', ' ']);
            if is_path && !tree.has(span) {
                let message = format!("names `{span}`, which is not there");
                found.push(Violation::on_line(path, index, message));
            }
        }
    }
}

/// Checks that each page of the book is in its table of contents. (`check_links` checks that the
/// entries exist.)
fn check_summary(tree: &Tree, found: &mut Vec<Violation>) {
    let summary = tree.text(SUMMARY).unwrap_or_default();
    let listed: BTreeSet<String> = summary
        .lines()
        .flat_map(link_targets)
        .filter_map(|target| resolve(SUMMARY, target))
        .collect();
    for (path, _) in tree.ending(".md") {
        if path.starts_with(BOOK) && path != SUMMARY && !listed.contains(path) {
            found.push(Violation::of(path, format!("not in {SUMMARY}")));
        }
    }
}

/// Checks that the table of environment variables and the code agree, in both directions.
fn check_variables(tree: &Tree, found: &mut Vec<Violation>) {
    let mut read = BTreeSet::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with("crates/")) {
        if path.contains("/src/") {
            read.extend(variables(text, '"'));
        }
    }
    let explained: BTreeSet<&str> =
        variables(tree.text(VARIABLES).unwrap_or_default(), '`').collect();
    for variable in read.difference(&explained) {
        found.push(Violation::of(VARIABLES, format!("`{variable}` is read but not explained")));
    }
    for variable in explained.difference(&read) {
        found.push(Violation::of(VARIABLES, format!("`{variable}` is explained but never read")));
    }
}

/// Returns the names of the library's variables directly after the quote: up to the same quote, or
/// to the `=` of an assignment.
fn variables(text: &str, quote: char) -> impl Iterator<Item = &str> {
    text.split(quote).filter_map(|part| {
        let name = part.split('=').next().unwrap_or(part);
        let is_name = name.len() > "DMR_".len()
            && name.starts_with("DMR_")
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        is_name.then_some(name)
    })
}

/// Returns the lines of a page outside fenced code, with their index.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the targets of `[text](target)`, and of a line `[name]: target`.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline.chain(definition.map(|(_, target)| target.trim()))
}

/// Returns the path from the root of a link in `page`; `None` if it leaves the repository.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        let found = violations(&Tree::from(files));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    #[test]
    fn pages_that_agree_with_the_repository_are_fine() {
        let found = messages([
            ("README.md", "[contract](docs/src/contract.md#t), [x](https://example.org/y.md)\n"),
            (
                "crates/memory/dmr/README.md",
                "up: [licence](../../../LICENSE-MIT), `crates/*/tests`\n",
            ),
            ("crates/memory/dmr/src/lib.rs", "std::env::var(\"DMR_DRIVER\")"),
            ("LICENSE-MIT", "MIT\n"),
            ("docs/src/SUMMARY.md", "- [Contract](contract.md)\n- [E](guide/environment.md)\n"),
            (
                "docs/src/contract.md",
                "`crates/memory/dmr/src/lib.rs`\n```\n[not](a/link.md)\n```\n",
            ),
            ("docs/src/guide/environment.md", "| `DMR_DRIVER=sim` | [c](../contract.md) |\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_link_to_nowhere_is_found_on_its_line() {
        let found = messages([("README.md", "[1]\n\n[2](docs/gone.md#3)\n[1]: gone.md\n")]);
        assert_eq!(
            found,
            [
                "README.md:3: links to `docs/gone.md#3`, which is not there",
                "README.md:4: links to `gone.md`, which is not there",
            ]
        );
    }

    #[test]
    fn a_page_of_a_crate_that_is_not_released_is_found() {
        for target in ["docs.rs/dmr", "docs.rs/crate/dmr#x", "crates.io/crates/dmr/0.1.0"] {
            let page = format!("[dmr](https://{target}), [cudarc](https://docs.rs/cudarc)\n");
            let found =
                messages([("README.md", &page), ("crates/memory/dmr/Cargo.toml", "[package]\n")]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("before `dmr` is released"), "{found:?}");
        }
    }

    #[test]
    fn a_link_out_of_the_repository_is_found() {
        assert_eq!(messages([("README.md", "[up](../up.md)\n"), ("up.md", "\n")]).len(), 1);
    }

    #[test]
    fn a_link_out_of_the_book_would_break_in_it() {
        let found = messages([
            ("README.md", "\n"),
            ("docs/src/SUMMARY.md", "[a](a.md)\n"),
            ("docs/src/a.md", "[readme](../../README.md)\n"),
        ]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("outside the book"), "{found:?}");
    }

    #[test]
    fn a_test_file_that_a_page_names_exists() {
        let found = messages([("README.md", "see `crates/memory/dmr/tests/gone.rs`\n")]);
        assert_eq!(
            found,
            ["README.md:1: names `crates/memory/dmr/tests/gone.rs`, which is not there"]
        );
    }

    #[test]
    fn a_page_that_the_table_of_contents_leaves_out_is_found() {
        let found = messages([("docs/src/SUMMARY.md", "# x\n"), ("docs/src/a.md", "a\n")]);
        assert_eq!(found, ["docs/src/a.md: not in docs/src/SUMMARY.md"]);
    }

    #[test]
    fn a_variable_that_the_code_reads_is_explained() {
        let found = messages([
            ("crates/memory/dmr/src/lib.rs", "var(\"DMR_BACKEND\"), \"DMR_DRIVER=cuda\", \"DMR_\""),
            ("docs/src/SUMMARY.md", "[e](guide/environment.md)\n"),
            ("docs/src/guide/environment.md", "`DMR_DRIVER`, `DMR_GONE`\n"),
        ]);
        assert_eq!(
            found,
            [
                "docs/src/guide/environment.md: `DMR_BACKEND` is read but not explained",
                "docs/src/guide/environment.md: `DMR_GONE` is explained but never read",
            ]
        );
    }
}
