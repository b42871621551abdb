//! Parses the fields of a row, and names the problem of a row that cannot be read.

use dmr_core::AllocTag;
use dmr_core::record::{AllocationRecord, Failure, RESULT_OK, RecordAction};

use crate::header::{Column, Header};

/// The problem of a row that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowProblem {
    /// A quote is not closed. A quoted field never spans lines.
    #[error("a quote is not closed")]
    OpenQuote,
    /// A line break that is neither `\n` nor `\r\n` inside the row.
    #[error("a line break inside the row")]
    LineBreak,
    /// More or fewer fields than the header has.
    #[error("the header has {expected} columns, this row does not")]
    #[non_exhaustive]
    FieldCount {
        /// The number of columns of the header.
        expected: usize,
    },
    /// A field that should hold a number does not.
    #[error("{column} is {text:?}, not a number in range")]
    #[non_exhaustive]
    Number {
        /// The column.
        column: &'static str,
        /// The start of the field.
        text: String,
    },
    /// A field that should hold a time does not.
    #[error("the time is {text:?}, neither nanoseconds nor hours:minutes:seconds")]
    #[non_exhaustive]
    Time {
        /// The start of the field.
        text: String,
    },
    /// Not an action that a trace has.
    #[error("the action is {text:?}, neither allocate, free, grow nor reap")]
    #[non_exhaustive]
    Action {
        /// The start of the field.
        text: String,
    },
    /// A text is not UTF-8.
    #[error("{column} is not UTF-8")]
    #[non_exhaustive]
    NotUtf8 {
        /// The column.
        column: &'static str,
    },
}

/// The fields of one row.
pub(crate) struct Fields<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) ends: &'a [usize],
}

impl<'a> Fields<'a> {
    /// Returns a field without the blanks around it.
    pub(crate) fn get(&self, index: usize) -> &'a [u8] {
        self.raw(index).trim_ascii()
    }

    /// Returns a field with its blanks.
    pub(crate) fn raw(&self, index: usize) -> &'a [u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }
}

/// Parses rows into records, and keeps the state that the next row of the same trace needs.
#[derive(Debug, Default)]
pub(crate) struct RowParser {
    rows: u64,
    clock: DayClock,
    last_tag: Option<AllocTag>,
}

impl RowParser {
    pub(crate) fn parse(
        &mut self,
        header: &Header,
        fields: &Fields<'_>,
    ) -> Result<AllocationRecord, RowProblem> {
        let field = |column| header.index(column).map_or(&b""[..], |index| fields.get(index));
        let number = |column| or_zero(field(column), column);
        let ActionField { action, failed } = action(field(Column::Action))?;
        let failure = match (failed, text(field(Column::Result), Column::Result)?) {
            (false, "" | RESULT_OK) => None,
            (_, kind) => {
                let message = text(field(Column::Message), Column::Message)?;
                Some(Box::new(Failure::new(kind, message)))
            }
        };
        // A call that failed, or a reap, has no block: its fields are ignored.
        let has_block = failure.is_none() && action != RecordAction::Reap;
        let ptr = match field(Column::Ptr) {
            // RMM prints null pointers so, and the default stream.
            b"(nil)" => 0,
            ptr if has_block => parse_number(ptr).ok_or_else(|| bad(Column::Ptr, ptr))?,
            ptr => parse_number(ptr).unwrap_or(0),
        };
        let bytes = match field(Column::Bytes) {
            // The bytes of a free are known from its allocation, and may be left empty.
            bytes if has_block && action != RecordAction::Deallocate => {
                parse_number(bytes).ok_or_else(|| bad(Column::Bytes, bytes))?
            }
            bytes => or_zero(bytes, Column::Bytes)?,
        };
        let device = field(Column::Device);
        let record = AllocationRecord {
            order: match header.index(Column::Order) {
                Some(_) => number(Column::Order)?,
                None => self.rows,
            },
            time_ns: self.clock.nanoseconds(field(Column::Time))?,
            thread: number(Column::Thread)?,
            action,
            ptr,
            bytes,
            stream: match field(Column::Stream) {
                b"(nil)" => 0,
                stream => or_zero(stream, Column::Stream)?,
            },
            device: u32::try_from(number(Column::Device)?)
                .map_err(|_| bad(Column::Device, device))?,
            tag: self.tag(text(header.raw(fields, Column::Tag), Column::Tag)?),
            query_id: number(Column::QueryId)?,
            generation: number(Column::Generation)?,
            failure,
        };
        self.rows += 1;
        Ok(record)
    }

    /// Interns a tag, unless it is that of the row before: interning takes a lock.
    fn tag(&mut self, name: &str) -> AllocTag {
        match self.last_tag {
            Some(tag) if tag.name() == name => tag,
            _ => *self.last_tag.insert(AllocTag::intern(name)),
        }
    }
}

struct ActionField {
    action: RecordAction,
    /// RMM logs an allocation that failed as an action of its own.
    failed: bool,
}

fn action(field: &[u8]) -> Result<ActionField, RowProblem> {
    let is = |name: &str| field.eq_ignore_ascii_case(name.as_bytes());
    let failed = is("allocate failure");
    let action = match () {
        () if failed || is("allocate") || is("alloc") => RecordAction::Allocate,
        () if is("free") || is("deallocate") => RecordAction::Deallocate,
        () if is("grow") => RecordAction::Grow,
        () if is("reap") => RecordAction::Reap,
        () => return Err(RowProblem::Action { text: shown(field) }),
    };
    Ok(ActionField { action, failed })
}

fn or_zero(field: &[u8], column: Column) -> Result<u64, RowProblem> {
    if field.is_empty() { Ok(0) } else { parse_number(field).ok_or_else(|| bad(column, field)) }
}

/// Parses a decimal number, or a hexadecimal one with `0x`.
fn parse_number(field: &[u8]) -> Option<u64> {
    let (digits, radix) = match field {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        digits => (digits, 10),
    };
    // `from_str_radix` would accept a sign too.
    if !digits.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(str::from_utf8(digits).ok()?, radix).ok()
}

fn text(field: &[u8], column: Column) -> Result<&str, RowProblem> {
    str::from_utf8(field).map_err(|_| RowProblem::NotUtf8 { column: column.name() })
}

fn bad(column: Column, field: &[u8]) -> RowProblem {
    RowProblem::Number { column: column.name(), text: shown(field) }
}

/// Returns the start of a field, for a message.
pub(crate) fn shown(field: &[u8]) -> String {
    const SHOWN: usize = 40;
    let start = &field[..field.len().min(SHOWN)];
    let more = if start.len() < field.len() { "…" } else { "" };
    String::from_utf8_lossy(start).into_owned() + more
}

/// Converts RMM's time of day to nanoseconds that go on after midnight.
#[derive(Debug, Default)]
struct DayClock {
    days: u64,
    last: u64,
}

impl DayClock {
    const DAY_NS: u64 = 86_400_000_000_000;

    fn nanoseconds(&mut self, field: &[u8]) -> Result<u64, RowProblem> {
        if !field.contains(&b':') {
            return or_zero(field, Column::Time)
                .map_err(|_| RowProblem::Time { text: shown(field) });
        }
        let of_day = time_of_day(field).ok_or_else(|| RowProblem::Time { text: shown(field) })?;
        // Threads log slightly out of order; half a day backwards is midnight.
        if of_day + Self::DAY_NS / 2 < self.last {
            self.days += 1;
        }
        self.last = of_day;
        Ok(self.days.saturating_mul(Self::DAY_NS).saturating_add(of_day))
    }
}

/// Parses `hours:minutes:seconds`, with a fraction or without.
fn time_of_day(field: &[u8]) -> Option<u64> {
    let mut parts = str::from_utf8(field).ok()?.splitn(3, ':');
    let mut below = |limit: u64| {
        let part = parts.next()?.as_bytes();
        let (whole, fraction) = match part.iter().position(|&b| b == b'.') {
            Some(dot) if limit == 61 => (&part[..dot], &part[dot + 1..]),
            _ => (part, &b""[..]),
        };
        let decimal = |digits: &[u8]| {
            digits.iter().all(u8::is_ascii_digit).then(|| parse_number(digits)).flatten()
        };
        let whole = decimal(whole).filter(|&n| n < limit)?;
        let nanoseconds = match fraction {
            b"" => 0,
            digits if digits.len() <= 9 => decimal(digits)? * 10_u64.pow(9 - digits.len() as u32),
            _ => return None,
        };
        Some((whole, nanoseconds))
    };
    let (hours, _) = below(24)?;
    let (minutes, _) = below(60)?;
    let (seconds, fraction) = below(61)?;
    Some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal_and_nothing_else() {
        for (text, number) in
            [("0", 0), ("18446744073709551615", u64::MAX), ("0xFf", 255), ("0X10", 16)]
        {
            assert_eq!(parse_number(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", "0x", "+1", "-1", "0x+1", "1 2", "1e3", "18446744073709551616", "é"] {
            assert_eq!(parse_number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_time_of_day_goes_on_after_midnight() {
        let mut clock = DayClock::default();
        let mut at = |text: &str| clock.nanoseconds(text.as_bytes());
        assert_eq!(at("00:00:01.000002"), Ok(1_000_002_000));
        assert_eq!(at("23:59:59.999999"), Ok(86_399_999_999_000));
        assert_eq!(at("00:00:00.5"), Ok(86_400_500_000_000));
        for text in ["24:00:00", "1:60:00", "1:00", "::", "1:2:3.x", "1.5:0:0", "1:2:3.1234567890"]
        {
            assert!(at(text).is_err(), "{text}");
        }
    }
}
