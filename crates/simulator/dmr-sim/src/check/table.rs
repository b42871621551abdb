//! Findings as a table, which `dmr report` shows: CSV, a row for each operation of a finding.

use std::fmt::Write;

use crate::access::Site;
use crate::check::{Report, Verdict};

/// The columns of the table.
const COLUMNS: &str = "finding,kind,race,message,device,address,bytes,tag,side,operation,stream,\
                       number,place,label,calls\n";

impl Verdict {
    /// Returns the findings as CSV, which the command `dmr report` makes a page of: a row for each
    /// operation of a finding, the earlier one first. Findings that were only
    /// [counted](Self::dropped) are left out.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = COLUMNS.to_owned();
        for (at, report) in self.reports.iter().enumerate() {
            let only = if report.first.is_some() { "second" } else { "only" };
            let first = report.first.iter().map(|site| ("first", site));
            for (side, site) in first.chain([(only, &report.second)]) {
                write_row(&mut text, at + 1, report, side, site);
            }
        }
        text
    }
}

fn write_row(text: &mut String, number: usize, report: &Report, side: &str, site: &Site) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{number},{},{},", report.kind.name(), yes_or_no(report.kind.is_race()));
    quote(text, &report.message());
    let device = report.device.map_or_else(String::new, |device| device.to_string());
    let _ = write!(text, ",{device},{:#x},{},", report.address, report.bytes);
    quote(text, report.tag.as_deref().unwrap_or_default());
    let _ = write!(text, ",{side},");
    let node = site.node.map(|node| format!(" (node {} of a graph)", node.number));
    quote(text, &format!("{}{}", site.operation, node.unwrap_or_default()));
    let stream = site.stream.map_or_else(String::new, |stream| stream.to_string());
    let _ = write!(text, ",{stream},{},", site.op);
    let place = site.place.map(|place| place.to_string());
    let source = site.source.as_ref().map(|source| format!(" ({source})"));
    quote(text, &format!("{}{}", place.unwrap_or_default(), source.unwrap_or_default()));
    text.push(',');
    quote(text, site.label.as_deref().unwrap_or_default());
    text.push(',');
    quote(text, &site.call_stack().join("\n"));
    text.push('\n');
}

const fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Writes a text with quotes around it, so that it may have commas, quotes and line breaks.
fn quote(text: &mut String, value: &str) {
    text.push('"');
    text.push_str(&value.replace('"', "\"\""));
    text.push('"');
}
