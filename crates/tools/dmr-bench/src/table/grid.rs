//! A table as aligned Markdown; columns and rows with nothing in them are left out.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

/// Cells by row and column.
#[derive(Debug)]
pub(super) struct Grid {
    first: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: String,
    first: Option<String>,
    cells: Vec<Option<String>>,
}

impl Grid {
    /// Makes a grid with a column `first` and those of `columns` that `wanted` accepts.
    pub(super) fn new(first: &str, columns: &[String], wanted: impl Fn(&str) -> bool) -> Self {
        let columns = columns.iter().filter(|name| wanted(name)).cloned().collect();
        Self { first: first.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub(super) fn row(
        &mut self,
        name: &str,
        first: Option<String>,
        cell: impl Fn(&String) -> Option<String>,
    ) {
        let cells = self.columns.iter().map(cell).collect();
        self.rows.push(Row { name: name.to_owned(), first, cells });
    }

    /// Fills the first column, by the names of the rows.
    pub(super) fn first_column(&mut self, of: impl Fn(&str) -> Option<String>) {
        for row in &mut self.rows {
            row.first = of(&row.name);
        }
    }

    /// Title and table; nothing if there is no cell.
    pub(super) fn render(&self, title: &str) -> String {
        let rows: Vec<_> =
            self.rows.iter().filter(|row| row.cells.iter().any(Option::is_some)).collect();
        if rows.is_empty() {
            return String::new();
        }
        let has_first = rows.iter().any(|row| row.first.is_some());
        let used = |nth: usize| rows.iter().any(|row| row.cells[nth].is_some());
        let used: Vec<usize> = (0..self.columns.len()).filter(|&nth| used(nth)).collect();
        let line = |name: &str, first: Option<&str>, cell: &dyn Fn(usize) -> String| {
            let first = has_first.then(|| first.unwrap_or_default().to_owned());
            let cells = used.iter().map(|&nth| cell(nth));
            std::iter::once(name.to_owned()).chain(first).chain(cells).collect::<Vec<_>>()
        };
        let mut lines = vec![line("", Some(&self.first), &|nth| self.columns[nth].clone())];
        for row in rows {
            let cell = |nth: usize| row.cells[nth].clone().unwrap_or_default();
            lines.push(line(&row.name, row.first.as_deref(), &cell));
        }
        format!("\n{title}\n\n{}", aligned(&lines))
    }
}

/// Renders the lines; the first is the header. Names are on the left, figures on the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    if let Some((header, rows)) = lines.split_first() {
        table.set_header(header).add_rows(rows);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}
