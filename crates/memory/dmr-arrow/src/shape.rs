//! The rules for rows, buffers and children of a column of each type.

use crate::ColumnError;
use crate::error::Path;
use crate::format::{Format, Layout, Offsets};

/// The rows of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) length: usize,
    /// The rows in the buffers before the first one.
    pub(crate) offset: usize,
    /// `None` if it is not known.
    pub(crate) null_count: Option<usize>,
}

/// The bytes that a buffer must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A bit for each row. May be absent if no row is null.
    Validity(usize),
    Bytes(usize),
    /// As many bytes as the offset at this index of the buffer before says.
    LastOffset {
        offsets: Offsets,
        index: usize,
    },
    /// As many bytes as the buffer of sizes says.
    Variadic,
}

/// A column as its parent sees it.
#[derive(Clone, Copy)]
pub(crate) struct Child<'a> {
    pub(crate) format: &'a Format,
    pub(crate) rows: Rows,
    pub(crate) children: usize,
}

impl Rows {
    /// Returns one past the last row in the buffers.
    pub(crate) fn end(&self) -> usize {
        self.offset + self.length
    }

    /// Checks the numbers of a struct.
    pub(crate) fn read(
        length: i64,
        offset: i64,
        null_count: i64,
        of: &str,
        path: &Path<'_>,
    ) -> Result<Self, ColumnError> {
        let invalid = |field, value, must| {
            Err(path.invalid(of, field, format_args!("is {value}: it must be {must}")))
        };
        let Ok(length) = usize::try_from(length) else {
            return invalid("length", length, "0 or more".to_owned());
        };
        let Ok(offset) = usize::try_from(offset) else {
            return invalid("offset", offset, "0 or more".to_owned());
        };
        if length.checked_add(offset).is_none_or(|end| end > isize::MAX as usize / 8) {
            let must = "smaller: with the length it exceeds the address space".to_owned();
            return invalid("offset", offset as i64, must);
        }
        let null_count = match null_count {
            -1 => None,
            count => match usize::try_from(count) {
                Ok(count) if count <= length => Some(count),
                _ => {
                    let must = format!("-1, or 0 to {length}, the length");
                    return invalid("null_count", null_count, must);
                }
            },
        };
        Ok(Self { length, offset, null_count })
    }
}

/// Returns what each buffer must have, in the order of the specification; `None` if a size exceeds
/// the address space. `buffers` is their number: binary views may have any above 2.
pub(crate) fn needs(layout: &Layout, rows: Rows, buffers: usize) -> Option<Vec<Need>> {
    // Nothing is read of a column without rows.
    let end = if rows.length == 0 { 0 } else { rows.end() };
    let validity = Need::Validity(end.div_ceil(8));
    let bytes = |count: usize, width: usize| {
        let bytes = count.checked_mul(width).filter(|bytes| *bytes <= isize::MAX as usize);
        bytes.map(Need::Bytes)
    };
    let offsets = |width: Offsets| match end {
        0 => Some(Need::Bytes(0)),
        _ => bytes(end + 1, width.bytes()),
    };
    Some(match layout {
        Layout::Null | Layout::RunEndEncoded => vec![],
        Layout::Struct | Layout::FixedSizeList(_) => vec![validity],
        Layout::Fixed { bits: 1, .. } => vec![validity, Need::Bytes(end.div_ceil(8))],
        Layout::Fixed { bits, .. } => vec![validity, bytes(end, bits / 8)?],
        Layout::List(width) => vec![validity, offsets(*width)?],
        Layout::Map => vec![validity, offsets(Offsets::Int32)?],
        Layout::ListView(width) => {
            vec![validity, bytes(end, width.bytes())?, bytes(end, width.bytes())?]
        }
        Layout::Binary(width) => {
            let data = match end {
                0 => Need::Bytes(0),
                _ => Need::LastOffset { offsets: *width, index: end },
            };
            vec![validity, offsets(*width)?, data]
        }
        Layout::BinaryView => {
            let mut needs = vec![validity, bytes(end, 16)?];
            needs.resize(buffers.max(2), Need::Variadic);
            needs
        }
        Layout::Union { is_dense: true, .. } => vec![Need::Bytes(end), bytes(end, 4)?],
        Layout::Union { is_dense: false, .. } => vec![Need::Bytes(end)],
    })
}

/// Returns the number of children of a type; `None` for any number.
pub(crate) fn children(layout: &Layout) -> Option<usize> {
    match layout {
        Layout::Null | Layout::Fixed { .. } | Layout::Binary(_) | Layout::BinaryView => Some(0),
        Layout::List(_) | Layout::ListView(_) | Layout::FixedSizeList(_) | Layout::Map => Some(1),
        Layout::RunEndEncoded => Some(2),
        Layout::Union { ids, .. } => Some(*ids),
        Layout::Struct => None,
    }
}

/// Checks a column whose own numbers are good against its type, and its children against it.
pub(crate) fn check(
    of: &str,
    path: &Path<'_>,
    column: Child<'_>,
    children: &[Child<'_>],
    has_dictionary: bool,
) -> Result<(), ColumnError> {
    let Child { format, rows, .. } = column;
    let layout = format.layout();
    if has_dictionary && !format.is_integer() {
        let problem = format!("is there, but indices of the type {format} are no integers");
        return Err(path.invalid(of, "dictionary", problem));
    }
    let has_no_validity = matches!(layout, Layout::Union { .. } | Layout::RunEndEncoded);
    if let Some(count @ 1..) = rows.null_count.filter(|_| has_no_validity) {
        let problem = format!("is {count}: it must be 0, because the type {format} has no nulls");
        return Err(path.invalid(of, "null_count", problem));
    }
    let least = match layout {
        Layout::Struct | Layout::Union { is_dense: false, .. } => Some(rows.end()),
        Layout::FixedSizeList(size) => {
            Some(rows.end().checked_mul(*size).ok_or_else(|| {
                path.invalid(of, "length", "is too large for the size of the lists")
            })?)
        }
        _ => None,
    };
    for (index, child) in children.iter().enumerate() {
        let at = Path::Child { of: path, index };
        let length = child.rows.length;
        if let Some(least) = least.filter(|least| length < *least) {
            let problem = format!("is {length}: it must be {least} or more, for its parent's rows");
            return Err(at.invalid(of, "length", problem));
        }
    }
    match (layout, children) {
        (Layout::Map, [entries]) => {
            let is_pair = *entries.format.layout() == Layout::Struct && entries.children == 2;
            if !is_pair || entries.rows.null_count.is_some_and(|count| count > 0) {
                let problem = "must be a struct of a key and a value, without nulls, for a map";
                return Err(path.invalid(of, "children[0]", problem));
            }
        }
        (Layout::RunEndEncoded, [ends, values]) => {
            if !ends.format.is_run_end() || ends.rows.null_count.is_some_and(|count| count > 0) {
                let problem = "must be of the type s, i or l, without nulls, for the ends of runs";
                return Err(path.invalid(of, "children[0]", problem));
            }
            let is_short = ends.rows.length == 0 && rows.length > 0;
            if values.rows.length < ends.rows.length || is_short {
                let problem = "must have a value for each run, and a run for the rows";
                return Err(path.invalid(of, "children[1]", problem));
            }
        }
        _ => {}
    }
    Ok(())
}
