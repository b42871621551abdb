//! The result of a replay.

use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::table::counted;
use crate::{BadRow, Noted};

/// The result of a replay: its calls, how long they took, and what failed.
///
/// Serialises to one flat object. Times are nanoseconds, sizes bytes. Lines count from 1.
/// `Display` writes the table; [`details`](Self::details) returns the lines that name each failure.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The name of the trace: the path of a file.
    pub trace: String,
    /// The driver it ran on. Set by the caller.
    pub driver: String,
    /// `true` for the simulated driver, where times are host cost only. Set by the caller.
    pub simulated: bool,
    /// The resource, as one line. Set by the caller.
    pub stack: String,
    /// [`ReplayOptions::strict`](crate::ReplayOptions::strict).
    pub strict: bool,
    /// `true` if blocks were filled and checked.
    pub verified: bool,

    /// Rows of the trace, without the header, bad ones included.
    pub rows: u64,
    /// Calls that succeeded.
    pub ops: u64,
    /// Allocations that succeeded.
    pub allocs: u64,
    /// Frees that succeeded; without those of blocks that the trace never frees.
    pub frees: u64,
    /// Growths in place that succeeded.
    pub grows: u64,
    /// Growths of the trace that the resource did not make in place: each was replayed as an
    /// allocation and a free.
    pub moved_blocks: u64,
    /// Streams that the replay used.
    pub streams: u64,
    /// Distinct streams of the trace (counted up to 65,536).
    pub trace_streams: u64,
    /// Streams of the trace that had to share a stream with another.
    pub folded_streams: u64,
    /// Distinct devices of the trace (counted up to 64). All are replayed on one.
    pub trace_devices: u64,

    /// The sum of the times of all calls.
    pub total_ns: u64,
    /// The mean time of a call.
    pub ns_per_op: f64,
    /// The time of a call. Each includes about `clock_ns`, which is not subtracted.
    #[serde(flatten)]
    pub latency: Latency,
    /// The time of an allocation.
    #[serde(flatten, serialize_with = "Latency::serialize_alloc")]
    pub alloc_latency: Latency,
    /// The time of a free.
    #[serde(flatten, serialize_with = "Latency::serialize_free")]
    pub free_latency: Latency,
    /// The time of a pair of clock readings.
    pub clock_ns: u64,
    /// The whole replay, parsing and checking included.
    pub wall_ns: u64,

    /// The most requested bytes that were live at once.
    pub peak_live_bytes: u64,
    /// The tags that held these bytes, the largest first.
    pub peak_tags: Vec<TagPeak>,
    /// The most bytes that the resource had reserved after an allocation.
    pub peak_reserved_bytes: u64,

    /// Allocations that failed.
    pub failed_allocs: u64,
    /// Frees that failed. The blocks were freed at the end.
    pub failed_frees: u64,
    /// Growths that failed. The blocks stayed as they were.
    pub failed_grows: u64,
    /// All failures: of calls, fills and checks.
    pub failures: Noted<CallFailure>,
    /// Live blocks that share a byte with another live block.
    pub overlaps: Noted<Overlap>,
    /// Blocks that did not hold their pattern when they were freed.
    pub corrupt_blocks: Noted<Corrupt>,
    /// The findings of a memory checker below the resource; `None` without a checker. Set by the
    /// caller.
    pub checker: Option<CheckerFindings>,

    /// Rows that could not be read.
    pub bad_rows: Noted<BadRow>,
    /// Rows of frees of blocks that are not live.
    pub unmatched_frees: Noted<u64>,
    /// Blocks whose name the trace gives to another before it frees them.
    pub reallocated: Noted<Unfreed>,
    /// Rows of blocks that the trace never frees. They were freed at the end.
    pub left_over: Noted<u64>,
    /// Bytes of those blocks.
    pub left_over_bytes: u64,

    /// Rows of calls that failed when the trace was recorded: skipped.
    pub failed_rows: u64,
    /// Rows of zero bytes: skipped.
    pub zero_byte_rows: u64,
    /// Rows that neither allocate, free nor grow a block: skipped.
    pub other_rows: u64,
    /// Frees skipped because the allocation had failed in the replay.
    pub skipped_frees: u64,
    /// Growths skipped because the replay does not hold the block.
    pub skipped_grows: u64,
    /// Frees that name another stream than the allocation did. They are replayed on that of the
    /// allocation.
    pub cross_stream_frees: u64,
}

impl Summary {
    /// Returns whether nothing failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.verdict().is_empty()
    }

    /// Returns what failed, in a few words each. Flaws of the trace count only if the replay was
    /// [strict](crate::ReplayOptions::strict).
    #[must_use]
    pub fn verdict(&self) -> Vec<String> {
        let checker = |f: fn(&CheckerFindings) -> u64| self.checker.as_ref().map_or(0, f);
        let of_the_replay = [
            (self.overlaps.count, "overlap"),
            (self.corrupt_blocks.count, "corrupt block"),
            (checker(|findings| findings.races.count), "race"),
            (checker(|findings| findings.others.count), "other finding"),
            (self.failures.count, "failure"),
        ];
        let of_the_trace = [
            (self.bad_rows.count, "bad row"),
            (self.unmatched_frees.count, "free without an allocation"),
            (self.left_over.count, "left over"),
        ];
        let of_the_trace = if self.strict { &of_the_trace[..] } else { &[] };
        let wrong = of_the_replay.iter().chain(of_the_trace).filter(|(count, _)| *count > 0);
        wrong.map(|&(count, what)| counted(count, what)).collect()
    }

    /// Returns the lines that name each failure, of each kind the first [`Noted::KEPT`].
    #[must_use]
    pub fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(findings) = &self.checker {
            list(&mut lines, "race", &findings.races, |text| text.clone());
            list(&mut lines, "finding", &findings.others, |text| text.clone());
        }
        list(&mut lines, "overlap", &self.overlaps, ToString::to_string);
        list(&mut lines, "corrupt", &self.corrupt_blocks, ToString::to_string);
        list(&mut lines, "failure", &self.failures, ToString::to_string);
        list(&mut lines, "bad row", &self.bad_rows, ToString::to_string);
        list(&mut lines, "unpaired", &self.unmatched_frees, |line| {
            format!("line {line}: a free without an allocation")
        });
        list(&mut lines, "again", &self.reallocated, ToString::to_string);
        if self.strict {
            list(&mut lines, "unfreed", &self.left_over, |line| {
                format!("line {line}: the trace never frees it")
            });
        }
        lines
    }
}

fn list<T>(lines: &mut Vec<String>, label: &str, noted: &Noted<T>, show: impl Fn(&T) -> String) {
    lines.extend(noted.first.iter().map(|item| format!("{label:<9}{}", show(item))));
    let more = noted.count - noted.first.len() as u64;
    if more > 0 {
        lines.push(format!("{label:<9}and {more} more"));
    }
}

/// The live bytes of a tag at the peak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TagPeak {
    /// The tag; empty for blocks without one.
    pub tag: String,
    /// Their bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The latencies of calls, in nanoseconds. Percentiles are exact to three digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The number of calls.
    pub n: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Latency {
    fn serialize_alloc<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.serialize_prefixed("alloc_", serializer)
    }

    fn serialize_free<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.serialize_prefixed("free_", serializer)
    }

    fn serialize_prefixed<S: Serializer>(
        &self,
        prefix: &str,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(&format!("{prefix}n"), &self.n)?;
        map.serialize_entry(&format!("{prefix}mean"), &self.mean)?;
        for (name, value) in [
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p999", self.p999),
            ("max", self.max),
        ] {
            map.serialize_entry(&format!("{prefix}{name}"), &value)?;
        }
        map.end()
    }
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallFailure {
    /// The row of the call; `None` if it was made for no single row.
    pub line: Option<u64>,
    /// The error.
    pub message: String,
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => write!(f, "at the end: {}", self.message),
        }
    }
}

/// Two live blocks that share a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The row that allocated the later one.
    pub line: u64,
    /// The row that allocated the earlier one, which is still live.
    pub other_line: u64,
    /// The address of the later one.
    pub ptr: u64,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, other_line, ptr } = self;
        write!(
            f,
            "line {line}: the block at {ptr:#x} shares memory with that of line {other_line}"
        )?;
        f.write_str(", which is live")
    }
}

/// A block whose pattern had changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Corrupt {
    /// The row that allocated it.
    pub line: u64,
    /// The row that freed it; `None` if the trace never does.
    pub free_line: Option<u64>,
    /// The first wrong byte, from the block's start.
    pub offset: u64,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, free_line, offset } = self;
        write!(f, "line {line}: the block does not hold its pattern at byte {offset} ")?;
        match free_line {
            Some(free_line) => write!(f, "when line {free_line} frees it"),
            None => f.write_str("at the end of the trace"),
        }
    }
}

/// A block whose name the trace gave to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unfreed {
    /// The row that allocated it.
    pub line: u64,
    /// The row that allocated another under the same name.
    pub again_line: u64,
}

impl fmt::Display for Unfreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, again_line } = self;
        write!(f, "line {again_line}: allocated again; the block of line {line} was never freed")
    }
}

/// The findings of a memory checker below the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckerFindings {
    /// Accesses without an order between them.
    pub races: Noted<String>,
    /// Other findings: leaks, reads of memory that was never written, accesses out of bounds.
    pub others: Noted<String>,
}

pub(crate) fn as_text<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
