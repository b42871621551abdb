//! Each public method of `dmr` that needs a feature says which: docs.rs shows the features of an
//! item only beside the item, and an editor does not show them at all.

use super::tree::Tree;
use crate::failure::Violation;

const SOURCES: &str = "crates/memory/dmr/src/";
const ROOT: &str = "crates/memory/dmr/src/lib.rs";

/// Checks the public functions in the crate's files. A function needs the feature of its own
/// attribute, of the block around it, or of its file where `lib.rs` declares that.
pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with(SOURCES)) {
        let of_file = tree.text(ROOT).and_then(|root| feature_of_file(root, path));
        check(path, text, of_file, &mut found);
    }
    found
}

/// Returns the feature of `#[cfg(feature = "x")]` before `mod name;`, for the file of that module.
fn feature_of_file<'t>(root: &'t str, path: &str) -> Option<&'t str> {
    let name = path.strip_prefix(SOURCES)?.strip_suffix(".rs")?;
    let declared = format!("mod {name};");
    let lines: Vec<_> = root.lines().collect();
    let at = lines.iter().position(|line| *line == declared)?;
    at.checked_sub(1).and_then(|before| feature(lines[before]))
}

fn check(path: &str, text: &str, of_file: Option<&str>, found: &mut Vec<Violation>) {
    // The blocks around a line that need a feature, by their indentation.
    let mut around: Vec<(usize, &str)> = Vec::new();
    let mut docs = String::new();
    let mut own = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indentation = line.len() - code.len();
        if code.starts_with("///") {
            docs.push_str(code);
            continue;
        }
        if code.starts_with("#[") {
            own.extend(feature(code));
            continue;
        }
        if code.starts_with('}') {
            around.retain(|(block, _)| *block < indentation);
        } else if code.ends_with('{') && (code.starts_with("impl") || code.starts_with("mod ")) {
            around.extend(own.iter().map(|feature| (indentation, *feature)));
        }
        if let Some(name) = code.strip_prefix("pub fn ") {
            let name = name.split(['(', '<']).next().unwrap_or(name);
            // The innermost one brings those around it.
            let needed =
                own.last().copied().or(around.last().map(|(_, feature)| *feature)).or(of_file);
            if let Some(feature) = needed
                && !docs.contains(&format!("feature `{feature}`"))
            {
                let message = format!("`{name}` does not say that it needs feature `{feature}`");
                found.push(Violation::on_line(path, index, message));
            }
        }
        docs.clear();
        own.clear();
    }
}

/// Returns `x` of `#[cfg(feature = "x")]`.
fn feature(attribute: &str) -> Option<&str> {
    attribute.trim().strip_prefix("#[cfg(feature = \"")?.strip_suffix("\")]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str) -> Vec<String> {
        let root = "mod free;\n#[cfg(feature = \"gated\")]\nmod gated;\n";
        let tree = Tree::from([(ROOT, root), (file_path(file), file)]);
        violations(&tree).into_iter().map(|violation| violation.message).collect()
    }

    fn file_path(file: &str) -> &'static str {
        if file.starts_with("// gated") {
            "crates/memory/dmr/src/gated.rs"
        } else {
            "crates/memory/dmr/src/free.rs"
        }
    }

    #[test]
    fn a_function_that_needs_a_feature_says_so() {
        let silent = "`f` does not say that it needs feature `x`";
        for file in [
            "#[cfg(feature = \"x\")]\n/// Does it.\npub fn f() {}\n",
            "#[cfg(feature = \"x\")]\nmod m {\n    impl A {\n        /// Does it.\n        pub fn f(self) {\n        }\n    }\n}\n",
            "#[cfg(feature = \"x\")]\nimpl A {\n    fn g() {\n    }\n\n    pub fn f<T>() {}\n}\n",
        ] {
            assert_eq!(found(file), [silent], "{file}");
            let said = file.replace("pub fn f", "/// Needs feature `x`.\npub fn f");
            assert_eq!(found(&said), Vec::<String>::new());
        }
        assert_eq!(found("// gated\npub fn f() {}\n").len(), 1);
    }

    #[test]
    fn a_function_behind_a_gated_block_or_without_a_feature_says_nothing() {
        let file = "#[cfg(feature = \"x\")]\nimpl A {\n    fn g() {}\n}\n\nimpl A {\n    pub fn f() {}\n}\n";
        assert_eq!(found(file), Vec::<String>::new());
    }
}
