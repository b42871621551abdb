//! The table of a replay.

use std::fmt;

use dmr_core::size::human_bytes;

use crate::summary::TagPeak;
use crate::{Noted, Summary};

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p999] = [self.latency.p50, self.latency.p99, self.latency.p999].map(grouped);
        let mean = grouped(self.latency.mean.round() as u64);
        let note = if self.simulated { " · times are host cost only" } else { "" };
        writeln!(f, "driver   {}{note}", self.driver)?;
        writeln!(f, "stack    {}", self.stack)?;
        writeln!(f, "replay   {}", Replayed(self))?;
        writeln!(f, "time     {mean} ns/op   p50 {p50}  p99 {p99}  p99.9 {p999}")?;
        writeln!(f, "memory   {}", Memory(self))?;
        writeln!(f, "checks   {}", Checks(self))?;
        match self.peak_tags.as_slice() {
            [] => Ok(()),
            tags => writeln!(f, "peak     {}", PeakTags(tags)),
        }
    }
}

/// `3.9 GiB fwd · 2 GiB bwd · 2 more tags`
struct PeakTags<'a>(&'a [TagPeak]);

impl fmt::Display for PeakTags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More would not fit into a line.
        const NAMED: usize = 5;
        let Self(tags) = self;
        let named = tags.iter().take(NAMED).map(|held| {
            let tag = if held.tag.is_empty() { "no tag" } else { &held.tag };
            format!("{} {tag}", human_bytes(held.bytes))
        });
        let mut parts: Vec<_> = named.collect();
        let more = tags.len().saturating_sub(NAMED) as u64;
        if more > 0 {
            parts.push(counted(more, "more tag"));
        }
        f.write_str(&parts.join(" · "))
    }
}

struct Replayed<'a>(&'a Summary);

impl fmt::Display for Replayed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BLOCKS: u64 = 10;
        let Self(s) = self;
        let plural = if s.streams == 1 { "" } else { "s" };
        write!(f, "{} operations  {} stream{plural}", grouped(s.ops), grouped(s.streams))?;
        if s.folded_streams > 0 {
            write!(f, " (for {} of the trace)", grouped(s.trace_streams))?;
        }
        let replayable = s.rows - s.failed_rows - s.other_rows - s.zero_byte_rows;
        let part = |of: u64| s.ops.saturating_mul(of).checked_div(replayable).unwrap_or(of);
        let done = part(BLOCKS) as usize;
        let bar = "█".repeat(done) + &"░".repeat((BLOCKS as usize).saturating_sub(done));
        write!(f, "  {bar} {} %", part(100))
    }
}

struct Memory<'a>(&'a Summary);

impl fmt::Display for Memory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.0.peak_live_bytes;
        let reserved = self.0.peak_reserved_bytes;
        write!(f, "live {} peak · reserved {} peak", size(live), size(reserved))?;
        if live > 0 {
            write!(f, " ({:.2}x)", reserved as f64 / live as f64)?;
        }
        Ok(())
    }
}

struct Checks<'a>(&'a Summary);

impl fmt::Display for Checks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(s) = self;
        let mut parts = vec![counted(s.overlaps.count, "overlap")];
        let mut part = |shown: bool, count: u64, what: &str| {
            if shown {
                parts.push(counted(count, what));
            }
        };
        part(s.verified, s.corrupt_blocks.count, "corrupt");
        if let Some(findings) = &s.checker {
            part(true, findings.races.count, "race");
            part(!findings.others.is_empty(), findings.others.count, "other finding");
        }
        part(true, s.failures.count, "failure");
        part(!s.bad_rows.is_empty(), s.bad_rows.count, "bad row");
        let unmatched = s.unmatched_frees.count;
        part(unmatched > 0, unmatched, "free without an allocation");
        part(true, s.left_over.count, "left over");
        write!(f, "{}{}", parts.join(" · "), LeftOver(&s.left_over))
    }
}

/// ` (never freed: lines 166, 167, 665)`, or nothing.
struct LeftOver<'a>(&'a Noted<u64>);

impl fmt::Display for LeftOver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More would not fit into a line.
        const NAMED: usize = 4;
        let Noted { count, first } = self.0;
        let named: Vec<_> = first.iter().take(NAMED).map(u64::to_string).collect();
        match named.len() {
            0 => Ok(()),
            1 if *count == 1 => write!(f, " (never freed: line {})", named[0]),
            shown if shown as u64 == *count => {
                write!(f, " (never freed: lines {})", named.join(", "))
            }
            _ => write!(f, " (never freed: lines {}, ...)", named.join(", ")),
        }
    }
}

/// Writes large sizes in mebibytes, so that live and reserved bytes are easy to compare.
fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes < 10 * MIB {
        human_bytes(bytes)
    } else {
        format!("{} MiB", grouped(bytes.saturating_add(MIB / 2) / MIB))
    }
}

/// Returns a count and its noun: `1 race`, `2 races`, `2 frees without an allocation`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    const UNCHANGED: [&str; 2] = ["corrupt", "left over"];
    let number = grouped(count);
    match what.split_once(' ') {
        _ if count == 1 || UNCHANGED.contains(&what) => format!("{number} {what}"),
        Some((noun, "without an allocation")) => format!("{number} {noun}s without an allocation"),
        _ => format!("{number} {what}s"),
    }
}

/// Writes `21039` as `21,039`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{CheckerFindings, Latency};

    #[test]
    fn the_table_has_six_lines_that_people_can_read() {
        let latency = Latency { mean: 41.4, p50: 38, p99: 71, p999: 1190, ..Latency::default() };
        let mut summary = Summary {
            driver: "simulated (no libcuda found)".into(),
            simulated: true,
            stack: "Direct(device 0)".into(),
            rows: 21_039,
            ops: 21_039,
            streams: 1,
            latency,
            peak_live_bytes: 7324 << 20,
            peak_reserved_bytes: 7530 << 20,
            checker: Some(CheckerFindings::default()),
            ..Summary::default()
        };
        summary.left_over.extend([1, 2, 3]);
        assert_eq!(
            summary.to_string(),
            "driver   simulated (no libcuda found) · times are host cost only\n\
             stack    Direct(device 0)\n\
             replay   21,039 operations  1 stream  ██████████ 100 %\n\
             time     41 ns/op   p50 38  p99 71  p99.9 1,190\n\
             memory   live 7,324 MiB peak · reserved 7,530 MiB peak (1.03x)\n\
             checks   0 overlaps · 0 races · 0 failures · 3 left over (never freed: lines 1, 2, 3)\n"
        );
    }

    #[test]
    fn the_table_ends_with_the_peak_by_tag() {
        let held = |tag: usize| TagPeak { tag: format!("t{tag}"), bytes: 1 << 20, blocks: 1 };
        let mut summary = Summary { peak_tags: (0..7).map(held).collect(), ..Summary::default() };
        summary.peak_tags[0].tag.clear();
        let text = summary.to_string();
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "peak     1 MiB no tag · 1 MiB t1 · 1 MiB t2 · 1 MiB t3 · 1 MiB t4 · 2 more tags"
        );
    }

    #[test]
    fn one_is_not_many() {
        let shown = [(1, "race"), (0, "race"), (2, "corrupt"), (2, "free without an allocation")]
            .map(|(count, what)| counted(count, what));
        assert_eq!(shown, ["1 race", "0 races", "2 corrupt", "2 frees without an allocation"]);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let shown = [0, 999, 1000, 12_345, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
