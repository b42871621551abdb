//! One statement binds one name and assigns one place; comments are as wide as code.
//!
//! rustfmt checks neither. Tuple statements are found in the text, without a parser: of comments
//! and literals only the length matters, and a statement `let (a, b) = (x, y);` consists of two
//! pairs of parentheses with a comma in each.

use super::tree::Tree;
use crate::failure::Violation;

/// The width of a line of code, which rustfmt holds.
const MOST_COLUMNS: usize = 100;

const FENCE: &str = "```";

pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        check_tuples(path, text, &mut found);
        let doc = |line| doc_of(line).unwrap_or_default();
        check_tuples(path, &fenced(text.lines().map(doc)), &mut found);
        check_width(path, text, &mut found);
    }
    for (path, text) in tree.ending(".md") {
        check_tuples(path, &fenced(text.lines()), &mut found);
    }
    found
}

fn doc_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// Returns the code blocks of a page, with an empty line for each line of prose.
fn fenced<'t>(lines: impl Iterator<Item = &'t str>) -> String {
    let mut code = String::new();
    let mut is_inside = false;
    for line in lines {
        if line.trim_start().starts_with(FENCE) {
            is_inside = !is_inside;
        } else if is_inside {
            code.push_str(line);
        }
        code.push('\n');
    }
    code
}

fn check_tuples(path: &str, text: &str, found: &mut Vec<Violation>) {
    let code = without_comments_and_literals(text);
    for (at, _) in code.iter().enumerate().filter(|(_, byte)| **byte == b'(') {
        if let Some(message) = tuple_statement(&code[..at], &code[at..]) {
            let line = code[..at].iter().filter(|byte| **byte == b'\n').count();
            found.push(Violation::on_line(path, line, message));
        }
    }
}

/// Returns what is wrong with a statement whose tuple on the left begins with `code`.
fn tuple_statement(before: &[u8], code: &[u8]) -> Option<&'static str> {
    let before = before.trim_ascii_end();
    let is_let = before.ends_with(b"let");
    let is_statement =
        before.ends_with(b"=>") || before.last().is_none_or(|it| b";{}".contains(it));
    if !is_let && !is_statement {
        return None;
    }
    let mut rest = after_tuple(code)?;
    if is_let && rest.starts_with(b":") {
        rest = &rest[rest.iter().position(|byte| *byte == b'=')?..];
    }
    let right = rest.strip_prefix(b"=")?.trim_ascii_start();
    let rest = after_tuple(right)?;
    if is_let {
        // With `else` or a condition, the tuple is what two patterns are matched with.
        rest.starts_with(b";").then_some("a `let` of several names: write one `let` for each")
    } else {
        let message = "an assignment to several places: write one assignment for each";
        rest.first().is_some_and(|it| b";,})".contains(it)).then_some(message)
    }
}

/// Returns the code after the tuple that it starts with; `None` if it starts with no tuple.
fn after_tuple(code: &[u8]) -> Option<&[u8]> {
    let mut depth = 0_usize;
    let mut has_comma = false;
    for (at, byte) in code.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b',' if depth == 1 => has_comma = true,
            _ => {}
        }
        if depth == 0 {
            return (*byte == b')' && has_comma).then(|| code[at + 1..].trim_ascii_start());
        }
    }
    None
}

/// Returns the text with spaces for each comment and literal, so that their brackets and commas do
/// not count. Lines stay where they are.
fn without_comments_and_literals(text: &str) -> Vec<u8> {
    let mut code = text.as_bytes().to_vec();
    let mut at = 0;
    while at < code.len() {
        let length = length_of_comment_or_literal(&code[at..]);
        let end = code.len().min(at + length);
        code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end.max(at + 1);
    }
    code
}

/// Returns the length of the comment or literal that the text starts with; 0 for other code.
fn length_of_comment_or_literal(text: &[u8]) -> usize {
    let until = |start: usize, end: &[u8]| {
        let rest = text.get(start..).unwrap_or_default();
        let found = rest.windows(end.len()).position(|window| window == end);
        found.map_or(text.len(), |found| start + found + end.len())
    };
    match text {
        [b'/', b'/', ..] => until(2, b"\n"),
        [b'/', b'*', ..] => until(2, b"*/"),
        [b'"', ..] => {
            let mut is_escaped = false;
            let end = text[1..].iter().position(|byte| {
                let ends = *byte == b'"' && !is_escaped;
                is_escaped = *byte == b'\\' && !is_escaped;
                ends
            });
            end.map_or(text.len(), |end| end + 2)
        }
        [b'r', b'"' | b'#', ..] => {
            let hashes = text[1..].iter().take_while(|byte| **byte == b'#').count();
            let is_string = text.get(1 + hashes) == Some(&b'"');
            let end = [b"\"", &b"#".repeat(hashes)[..]].concat();
            if is_string { until(2 + hashes, &end) } else { 0 }
        }
        [b'\'', b'\\', ..] => until(3, b"'"),
        // A lifetime has no second quote.
        [b'\'', first, ..] => {
            let width = first.leading_ones().max(1) as usize;
            if text.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
        }
        _ => 0,
    }
}

/// Checks the width of comments. Rows of tables and lines without a space to break them at may be
/// wider.
fn check_width(path: &str, text: &str, found: &mut Vec<Violation>) {
    for (index, line) in text.lines().enumerate() {
        let width = line.chars().count();
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        let is_link = comment.starts_with('[') && comment.contains("]: ");
        let can_break = !comment.starts_with('|') && !is_link && comment.contains(' ');
        if width > MOST_COLUMNS && can_break {
            let message =
                format!("a comment of {width} columns, more than {MOST_COLUMNS}: wrap it");
            found.push(Violation::on_line(path, index, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LET: &str = "a `let` of several names: write one `let` for each";
    const ASSIGNMENT: &str = "an assignment to several places: write one assignment for each";

    fn messages(path: &str, text: &str) -> Vec<String> {
        let found = violations(&Tree::from([(path, text)]));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    fn in_code(text: &str) -> Vec<String> {
        messages("a.rs", text)
    }

    #[test]
    fn a_let_of_several_names_is_found() {
        for text in [
            "let (a, b) = (1, 2);",
            "    let (mut a, (b, c)) = (f(1, 2), (3, x.y));",
            "let (a, b): (u8, Vec<(u8, u8)>) = (1, vec![]);",
            "let (a, b) = (\")\", '(');",
            "let (first, second) = (\n    \"one\", // why, (\n    \"two\",\n);",
        ] {
            let found = in_code(&format!("//! x\nfn f() {{\n{text}\n}}\n"));
            assert_eq!(found, [format!("a.rs:3: {LET}")], "{text}");
        }
    }

    #[test]
    fn a_let_of_what_a_call_returns_or_of_a_pattern_is_fine() {
        for text in [
            "let (a, b) = f(1, 2);",
            "let (a, b) = (1, 2).max((2, 1));",
            "let (a, b) = *pair;",
            "let (Some(a), Some(b)) = (f(), g()) else { return };",
            "if let (Some(a), Some(b)) = (f(), g()) {}",
            "while let (Some(a), true) = (f(), g()) {}",
            "let a = (1, 2);",
            "let (a) = (1);",
            "// let (a, b) = (1, 2);",
            "let text = \"let (a, b) = (1, 2);\";",
            "let text = r#\"a \" let (a, b) = (1, 2);\"#;",
        ] {
            assert_eq!(in_code(&format!("//! x\nfn f<'a>() {{\n{text}\n}}\n")), [""; 0], "{text}");
        }
    }

    #[test]
    fn an_assignment_to_several_places_is_found() {
        for text in [
            "(a.x, a.y) = (1, 2);",
            "(self.a[0], *b) =\n    (f(1, 2), 2);",
            "if x {} (a, b) = (b, a);",
            "match x { 1 => (a, b) = (b, a), _ => {} }",
            "if x { (a, b) = (b, a) }",
        ] {
            let found = in_code(&format!("//! x\nfn f() {{\n{text}\n}}\n"));
            assert_eq!(found, [format!("a.rs:3: {ASSIGNMENT}")], "{text}");
        }
    }

    #[test]
    fn a_comparison_a_call_and_an_assignment_of_what_a_call_returns_are_fine() {
        for text in [
            "(a, b) = f();",
            "assert!((a, b) == (1, 2));",
            "let is = { (a, b) == (1, 2) };",
            "match x { (a, b) => (1, 2), _ => (b, a) };",
            "f(a, b);",
        ] {
            assert_eq!(in_code(&format!("//! x\nfn f() {{\n{text}\n}}\n")), [""; 0], "{text}");
        }
    }

    #[test]
    fn code_on_pages_and_in_doc_comments_is_checked() {
        let block = "```rust\nlet (a, b) = (1, 2);\n```\n";
        let page = messages("docs/src/a.md", &format!("# A\n\nlet (a, b) = (1, 2);\n{block}"));
        assert_eq!(page, [format!("docs/src/a.md:5: {LET}")]);
        let doc = "//! x\n\n/// ```\n/// let (a, b) = (\n///     1,\n///     2,\n/// );\n/// ```\n";
        assert_eq!(in_code(doc), [format!("a.rs:4: {LET}")]);
    }

    #[test]
    fn a_wide_comment_is_found() {
        for start in ["// ", "    /// ", "//! ", "/// [", "/// - "] {
            let fits = format!("{start}{}", "word ".repeat(30));
            let fits: String = fits.chars().take(100).collect();
            assert_eq!(in_code(fits.trim_end()), [""; 0]);
            let found = in_code(&format!("{fits}é\n"));
            let expected = "a.rs:1: a comment of 101 columns, more than 100: wrap it";
            assert_eq!(found, [expected], "{start}");
        }
    }

    #[test]
    fn a_wide_row_link_or_word_is_fine() {
        let word = "a".repeat(101);
        for text in [
            format!("/// | {word} | b |\n"),
            format!("/// [`a b`]: {word}\n"),
            format!("// https://{word}\n"),
            format!("let a = 1; // {word} b\n"),
        ] {
            assert_eq!(in_code(&text), [""; 0], "{text}");
        }
    }
}
