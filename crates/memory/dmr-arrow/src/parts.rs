//! The parts of a column that is made of buffers, and the rules for them.

use crate::error::Path;
use crate::format::Format;
use crate::plan::MAX_DEPTH;
use crate::shape::{self, Child, Need, Rows};
use crate::{ArrowColumn, ColumnBuffer, ColumnError};

/// The name of a column's parts in messages.
pub(crate) const PARTS: &str = "ColumnParts";

/// The parts of a column that is made of buffers.
#[derive(Clone, Debug, Default)]
pub struct ColumnParts {
    /// The type, as a format string of the specification: `"i"`, `"+s"`, `"tsu:UTC"`.
    pub format: String,
    /// The name; empty for none.
    pub name: String,
    /// The flags of the schema, such as
    /// [`ARROW_FLAG_NULLABLE`](crate::abi::ARROW_FLAG_NULLABLE).
    pub flags: i64,
    /// The number of rows.
    pub length: usize,
    /// The rows in the buffers before the first one.
    pub offset: usize,
    /// The number of null rows; `None` if it is not known.
    pub null_count: Option<usize>,
    /// The buffers that the specification lists for the type, without the sizes of the data of
    /// binary views. `None` for absent ones.
    pub buffers: Vec<Option<ColumnBuffer>>,
    /// The columns below.
    pub children: Vec<ArrowColumn>,
    /// The values, if this column has their indices.
    pub dictionary: Option<Box<ArrowColumn>>,
}

/// The type and the rows of parts that belong together.
pub(crate) struct Checked {
    pub(crate) format: Format,
    pub(crate) rows: Rows,
}

impl ColumnParts {
    /// Checks the parts as [`ArrowColumn::new`] does, with buffers of these sizes in bytes instead
    /// of their own: before the buffers are made.
    ///
    /// # Errors
    ///
    /// As [`ArrowColumn::new`].
    pub fn check(&self, sizes: &[Option<usize>]) -> Result<(), ColumnError> {
        self.checked(sizes).map(drop)
    }

    pub(crate) fn checked(&self, sizes: &[Option<usize>]) -> Result<Checked, ColumnError> {
        let path = &Path::Root;
        let invalid = |field: &str, problem: String| Err(path.invalid(PARTS, field, problem));
        let format = Format::parse(&self.format)
            .map_err(|problem| path.invalid(PARTS, "format", problem))?;
        for (field, text) in [("name", &self.name), ("format", &self.format)] {
            if text.contains('\0') {
                return invalid(field, "has a NUL, which a text in C cannot have".to_owned());
            }
        }
        let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let null_count = self.null_count.map_or(-1, signed);
        let mut rows =
            Rows::read(signed(self.length), signed(self.offset), null_count, PARTS, path)?;
        let layout = format.layout();
        if shape::children(layout).is_some_and(|count| count != self.children.len()) {
            let problem = format!("are {}, which the type {format} has not", self.children.len());
            return invalid("children", problem);
        }
        let Some(needs) = shape::needs(layout, rows, sizes.len()) else {
            return invalid("length", "is too large for the size of the values".to_owned());
        };
        if needs.len() != sizes.len() {
            let problem = format!("are {}: the type {format} has {}", sizes.len(), needs.len());
            return invalid("buffers", problem);
        }
        let has_nulls = rows.null_count.is_some_and(|count| count > 0);
        for (index, (need, size)) in needs.iter().zip(sizes).enumerate() {
            let least = match *need {
                Need::Validity(_) if size.is_none() && !has_nulls => 0,
                Need::Validity(bytes) | Need::Bytes(bytes) => bytes,
                Need::LastOffset { .. } | Need::Variadic => 0,
            };
            let found = size.unwrap_or(0);
            if found < least {
                let problem = format!("has {found} bytes: the rows need {least}");
                return invalid(&format!("buffers[{index}]"), problem);
            }
        }
        if matches!((needs.first(), sizes.first()), (Some(Need::Validity(_)), Some(None))) {
            rows.null_count = Some(0);
        }
        let mut below = self.children.iter().chain(self.dictionary.as_deref());
        if below.any(|below| below.depth() >= MAX_DEPTH) {
            let problem = format!("are too deep: columns are nested {MAX_DEPTH} times at most");
            return invalid("children", problem);
        }
        let column = Child { format: &format, rows, children: self.children.len() };
        let below: Vec<Child<'_>> = self.children.iter().map(ArrowColumn::as_child).collect();
        shape::check(PARTS, path, column, &below, self.dictionary.is_some())?;
        Ok(Checked { format, rows })
    }
}
