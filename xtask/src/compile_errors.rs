//! The errors on the guide's page of compile errors are those of the compiler.

use std::fs;

use crate::command;
use crate::failure::{Failure, Violation, none_of};

const PAGE: &str = "docs/src/guide/compile-errors.md";

/// A piece of code that does not compile, with the lines of its error.
struct Example {
    line: usize,
    code: String,
    expected: Vec<String>,
}

/// Compiles each example in a program that depends on `dmr`, and compares.
pub(crate) fn run() -> Result<(), Failure> {
    let root = command::root();
    let folder = root.join("target/compile-errors");
    let setup = |error: std::io::Error| Failure::Setup(format!("{}: {error}", folder.display()));
    let page = fs::read_to_string(root.join(PAGE)).map_err(setup)?;
    let manifest = format!(
        "[package]\nname = \"compile-errors\"\nedition = \"2024\"\n\n[dependencies]\n\
         dmr = {{ path = \"{}/crates/memory/dmr\" }}\n\n[workspace]\n",
        root.display()
    );
    fs::create_dir_all(folder.join("src")).map_err(setup)?;
    fs::write(folder.join("Cargo.toml"), manifest).map_err(setup)?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).map_err(setup)?;
    let mut found = Vec::new();
    for Example { line, code, expected } in examples(&page) {
        fs::write(folder.join("src/main.rs"), format!("{code}\nfn main() {{}}\n"))
            .map_err(setup)?;
        let mut check = command::cargo(&["check", "--quiet"]);
        let output = check.current_dir(&folder).output().map_err(setup)?;
        let errors = without_paths(&String::from_utf8_lossy(&output.stderr));
        let missing = expected.iter().filter(|line| !errors.contains(&without_paths(line)));
        found.extend(missing.map(|missing| {
            Violation::on_line(
                PAGE,
                line,
                format!("not in the compiler's error: {missing}\n{errors}"),
            )
        }));
    }
    none_of(found)
}

/// Returns each block that must not compile, with the text block behind it.
fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut fence = None;
    let mut waits = false;
    for (line, text) in page.lines().enumerate() {
        match (text.strip_prefix("```"), fence) {
            (Some(_), Some(_)) => fence = None,
            (Some("rust,compile_fail"), None) => {
                examples.push(Example { line, code: String::new(), expected: Vec::new() });
                fence = Some("code");
                waits = true;
            }
            (Some("text"), None) if waits => {
                fence = Some("error");
                waits = false;
            }
            (Some(_), None) => fence = Some("other"),
            (None, Some("code")) => {
                examples.iter_mut().last().into_iter().for_each(|example| {
                    example.code.push_str(text);
                    example.code.push('\n');
                });
            }
            (None, Some("error")) => {
                examples
                    .iter_mut()
                    .last()
                    .into_iter()
                    .for_each(|e| e.expected.push(text.to_owned()));
            }
            (None, _) => {}
        }
    }
    examples
}

/// Removes the paths in front of names: which one the compiler prints depends on its version.
fn without_paths(text: &str) -> String {
    let mut names = String::new();
    for part in text.split("::") {
        if !names.is_empty() {
            let before = names.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_').len();
            names.truncate(before);
        }
        names.push_str(part);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_of_code_has_the_error_behind_it() {
        let page = "```text\nno\n```\n```rust,compile_fail\nlet x;\n```\nAnd:\n```text\nerror\nhint\n```\n```rust\nok\n```\n```text\nno\n```\n";
        let found = examples(page);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].code.as_str()), (3, "let x;\n"));
        assert_eq!(found[0].expected, ["error", "hint"]);
    }

    #[test]
    fn every_example_of_the_page_has_an_error() {
        let page = include_str!("../../docs/src/guide/compile-errors.md");
        let found = examples(page);
        assert!(found.len() >= 9);
        for example in found {
            assert!(!example.expected.is_empty(), "line {}", example.line + 1);
        }
    }

    #[test]
    fn paths_are_left_out() {
        assert_eq!(without_paths("`Particle: dmr::prelude::Pod`"), "`Particle: Pod`");
        assert_eq!(without_paths("a `&x::Y<z::W>`, b"), "a `&Y<W>`, b");
    }
}
