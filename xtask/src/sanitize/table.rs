//! Prints the results as two tables in Markdown, and each problem as a sentence.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use super::outcome::Outcome;
use super::rows::{Row, Subject};

/// A row and its result; `None` if it has not run.
pub(super) type Judged<'a> = (&'a Row, Option<&'a Outcome>);

/// Both tables, then a line for each problem.
pub(super) fn render(rows: &[Judged<'_>]) -> String {
    let (tests, controls): (Vec<_>, Vec<_>) =
        rows.iter().partition(|(row, _)| row.subject == Subject::Tests);
    let mut text = String::new();
    let header = ["tool", "stack", "tests", "kernels checked", "findings", "canary", "result"];
    table(&mut text, header, tests.into_iter().map(tests_cells));
    text.push('\n');
    let header = ["control", "tool", "stack", "class", "reported as", "result"];
    table(&mut text, header, controls.into_iter().map(control_cells));
    for (row, outcome) in rows {
        for problem in outcome.iter().flat_map(|it| &it.problems) {
            text.push_str(&format!("\n{}: {problem}", row.id()));
        }
    }
    text
}

fn tests_cells((row, outcome): &Judged<'_>) -> [String; 7] {
    let count = |number: fn(&Outcome) -> u64| {
        outcome.map_or_else(|| "-".to_owned(), |outcome| number(outcome).to_string())
    };
    [
        row.tool.to_string(),
        row.stack.clone(),
        count(|it| it.tests),
        count(|it| it.kernels),
        count(|it| it.findings.len() as u64),
        outcome.and_then(|it| it.canary.clone()).unwrap_or_else(|| "-".to_owned()),
        result(*outcome).to_owned(),
    ]
}

fn control_cells((row, outcome): &Judged<'_>) -> [String; 6] {
    let (name, class) = match &row.subject {
        Subject::Control { name, class } => (name.clone(), class.clone()),
        Subject::Tests => (row.id(), String::new()),
    };
    let reported = match outcome {
        None => "-".to_owned(),
        Some(outcome) if outcome.findings.is_empty() => "nothing".to_owned(),
        Some(outcome) => outcome.classes().join(", "),
    };
    let result = result(*outcome).to_owned();
    [name, row.tool.to_string(), row.stack.clone(), class, reported, result]
}

fn result(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        None => "not run",
        Some(outcome) if outcome.is_clean() => "as expected",
        Some(_) => "RED",
    }
}

fn table<const N: usize>(
    text: &mut String,
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header).add_rows(rows);
    text.push_str(&format!("{table}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sanitize::records::Finding;
    use crate::sanitize::rows::{self, Build};

    #[test]
    fn a_table_has_every_row_and_names_what_is_wrong() {
        let tests = rows::tests();
        let controls = rows::controls(Build::Direct, "leak\tmemcheck\tdirect\tleak").unwrap();
        let clean = Outcome {
            tests: 73,
            kernels: 1500,
            canary: Some("overrun".to_owned()),
            ..Outcome::default()
        };
        let finding = Finding {
            class: "overrun".to_owned(),
            text: String::new(),
            address: None,
            api_error: None,
        };
        let red = Outcome {
            findings: vec![finding],
            problems: vec!["reported as overrun, expected leak".to_owned()],
            ..Outcome::default()
        };
        let text =
            render(&[(&tests[0], Some(&clean)), (&tests[1], None), (&controls[0], Some(&red))]);
        let expected = "\
| tool      | stack          | tests | kernels checked | findings | canary  | result      |
|-----------|----------------|-------|-----------------|----------|---------|-------------|
| memcheck  | direct-tracked | 73    | 1500            | 0        | overrun | as expected |
| initcheck | direct-tracked | -     | -               | -        | -       | not run     |

| control | tool     | stack  | class | reported as | result |
|---------|----------|--------|-------|-------------|--------|
| leak    | memcheck | direct | leak  | overrun     | RED    |

control.leak: reported as overrun, expected leak";
        assert_eq!(text, expected);
    }
}
