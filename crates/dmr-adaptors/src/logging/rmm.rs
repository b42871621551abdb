//! Rows as RMM's logging adaptor writes them.

use std::fmt;

use super::{LogAction, LogRecord};

pub(super) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Writes the row of a record, if the format has one for it.
///
/// Pointers and streams are hexadecimal. A pointer that is null is `(nil)`; a stream that is null
/// is `0`, because RMM's reader takes a number there and nothing else.
pub(super) fn write_row(to: &mut impl fmt::Write, record: &LogRecord) -> fmt::Result {
    let action = match (record.action, &record.result) {
        (LogAction::Allocate, Ok(())) => "allocate",
        (LogAction::Allocate, Err(_)) => "allocate failure",
        (LogAction::Deallocate, Ok(())) => "free",
        _ => return Ok(()),
    };
    write!(to, "{},{},{action},", record.thread, TimeOfDay(record.time_ns))?;
    match record.ptr {
        0 => to.write_str("(nil)")?,
        ptr => write!(to, "{ptr:#x}")?,
    }
    match record.stream.slot() {
        0 => writeln!(to, ",{},0", record.bytes),
        slot => writeln!(to, ",{},{slot:#x}", record.bytes),
    }
}

/// `hours:minutes:seconds.microseconds` of the day, in UTC.
struct TimeOfDay(u64);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1000;
        let seconds = micros / 1_000_000;
        let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
        write!(f, "{hours:02}:{minutes:02}:{:02}.{:06}", seconds % 60, micros % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_day_to_the_microsecond() {
        let day = 86_400_000_000_000;
        assert_eq!(TimeOfDay(20_000 * day).to_string(), "00:00:00.000000");
        assert_eq!(TimeOfDay(20_001 * day - 1).to_string(), "23:59:59.999999");
        assert_eq!(TimeOfDay(day + 3_661_000_042_000).to_string(), "01:01:01.000042");
    }
}
