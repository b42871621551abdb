//! The columns of a trace: found by name, in any order, in the project's format and in RMM's.

use dmr_core::record::COLUMNS;

use crate::error::HeaderProblem;
use crate::row::Fields;

/// A column that is read. The numbers are positions in [`COLUMNS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Order = 0,
    Time = 1,
    Thread = 2,
    Action = 3,
    Ptr = 4,
    Bytes = 5,
    Stream = 6,
    Device = 7,
    Tag = 8,
    QueryId = 9,
    Generation = 10,
    Result = 11,
    Message = 12,
}

impl Column {
    pub(crate) const fn name(self) -> &'static str {
        COLUMNS[self as usize]
    }
}

/// The columns of a trace.
#[derive(Debug)]
pub(crate) struct Header {
    fields: usize,
    index: [Option<usize>; COLUMNS.len()],
}

impl Header {
    /// The maximum number of columns.
    pub(crate) const MAX_FIELDS: usize = 256;

    /// Finds the columns in the first row.
    pub(crate) fn find(fields: &Fields<'_>) -> Result<Self, HeaderProblem> {
        let mut index = [None; COLUMNS.len()];
        for at in 0..fields.ends.len() {
            let name = fields.get(at).to_ascii_lowercase();
            // The first two names are RMM's.
            let name: &[u8] = match name.as_slice() {
                b"pointer" => b"ptr",
                b"size" => b"bytes",
                b"time" => b"time_ns",
                name => name,
            };
            if let Some(column) = COLUMNS.iter().position(|known| known.as_bytes() == name)
                && index[column].replace(at).is_some()
            {
                return Err(HeaderProblem::Twice(COLUMNS[column]));
            }
        }
        for needed in [Column::Action, Column::Ptr, Column::Bytes] {
            if index[needed as usize].is_none() {
                return Err(HeaderProblem::Missing(needed.name()));
            }
        }
        Ok(Self { fields: fields.ends.len(), index })
    }

    /// Returns how many fields a row has.
    pub(crate) const fn fields(&self) -> usize {
        self.fields
    }

    pub(crate) const fn index(&self, column: Column) -> Option<usize> {
        self.index[column as usize]
    }

    /// Returns a field with its blanks.
    pub(crate) fn raw<'a>(&self, fields: &Fields<'a>, column: Column) -> &'a [u8] {
        self.index(column).map_or(b"", |index| fields.raw(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_the_name_of_its_position() {
        use Column as C;
        let columns = [
            (C::Order, "order"),
            (C::Time, "time_ns"),
            (C::Thread, "thread"),
            (C::Action, "action"),
            (C::Ptr, "ptr"),
            (C::Bytes, "bytes"),
            (C::Stream, "stream"),
            (C::Device, "device"),
            (C::Tag, "tag"),
            (C::QueryId, "query_id"),
            (C::Generation, "generation"),
            (C::Result, "result"),
            (C::Message, "message"),
        ];
        for (column, name) in columns {
            assert_eq!(column.name(), name);
        }
        assert_eq!(columns.len(), COLUMNS.len());
    }
}
