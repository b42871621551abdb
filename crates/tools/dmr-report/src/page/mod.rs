//! The page: one file of HTML with the data in it, which needs no network.

mod columns;
mod meta;

use std::io::{self, Write};

use crate::analysis::layout::{Layout, layout, position};
use crate::analysis::stranded::Stranded;
use crate::model::Model;
use columns::{Packed, pack, pack_rising};

const HTML: &str = include_str!("../../page/page.html");
const STYLE: &str = include_str!("../../page/page.css");
const CHART: &str = include_str!("../../page/vendor/uPlot.min.js");
const CHART_STYLE: &str = include_str!("../../page/vendor/uPlot.min.css");

/// A module of the page's script.
struct Module {
    name: &'static str,
    source: &'static str,
}

macro_rules! modules {
    ($($name:literal),+) => {
        [$(Module {
            name: $name,
            source: include_str!(concat!("../../page/", $name, ".js")),
        }),+]
    };
}

/// The modules, each after those that it imports.
const MODULES: [Module; 13] = modules![
    "format", "ticks", "palette", "jobs", "data", "model", "curves", "rects", "heap", "chart",
    "streams", "findings", "main"
];

/// Writes the page of a model.
///
/// # Errors
///
/// Those of `out`.
pub fn write(model: &Model, mut out: impl Write) -> io::Result<()> {
    let layout = layout(model);
    let stranded = Stranded::of(model);
    let packed = pack_all(model, &layout, stranded.as_ref())?;
    let occupied_before = stranded.map(|stranded| stranded.occupied_before);
    let mut rest = HTML;
    while let Some((before, after)) = rest.split_once("{{") {
        out.write_all(before.as_bytes())?;
        let (name, after) = after.split_once("}}").unwrap_or(("", after));
        match name {
            "title" => out.write_all(escaped(title(model)).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "chart-style" => out.write_all(CHART_STYLE.as_bytes())?,
            "chart-script" => out.write_all(CHART.as_bytes())?,
            "script" => out.write_all(script().as_bytes())?,
            _ => write_data(model, &layout, &packed, occupied_before, &mut out)?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    out.flush()
}

fn title(model: &Model) -> &str {
    let name = model.source.name.as_str();
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Returns the modules as one script: each is a function that returns what it exports. A module
/// has each import and the name of each export on one line.
fn script() -> String {
    let mut script = String::new();
    for Module { name, source } in &MODULES {
        let mut exported = Vec::new();
        script += &format!("const module_{name} = (() => {{\n");
        for line in source.lines() {
            if let Some(import) = import(line) {
                script += &import;
            } else if let Some(declared) = line.strip_prefix("export ") {
                exported.push(declared_name(declared));
                script += declared;
            } else {
                script += line;
            }
            script.push('\n');
        }
        script += &format!("return {{ {} }};\n}})();\n", exported.join(", "));
    }
    script
}

/// Converts `import { a, b as c } from "./d.js";` to what takes them from that module's function.
fn import(line: &str) -> Option<String> {
    let (names, from) = line.strip_prefix("import ")?.split_once(" from \"./")?;
    let from = from.strip_suffix(".js\";")?;
    Some(format!("const {} = module_{from};", names.replace(" as ", ": ")))
}

/// Returns `name` of `async function* name(...) {`, `const name = ...` and `class name {`.
fn declared_name(declaration: &str) -> &str {
    let keywords = ["async", "function", "function*", "const", "class"];
    let words = declaration.split(' ').find(|word| !keywords.contains(word));
    let word = words.unwrap_or_default();
    word.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn write_data(
    model: &Model,
    layout: &Layout,
    packed: &[Packed],
    occupied_before: Option<u64>,
    out: &mut impl Write,
) -> io::Result<()> {
    let descriptions = packed.iter().map(|column| &column.description).collect();
    let meta = meta::Meta::new(model, layout, descriptions, occupied_before);
    let json = serde_json::to_string(&meta).map_err(io::Error::other)?;
    // A `<` could end the element: JSON has another way to write it.
    let json = json.replace('<', "\\u003c");
    writeln!(out, "<script type=\"application/json\" id=\"dmr-meta\">{json}</script>")?;
    for column in packed {
        let name = column.description.name;
        write!(out, "<script type=\"text/plain\" id=\"dmr-{name}\">")?;
        out.write_all(column.base64.as_bytes())?;
        writeln!(out, "</script>")?;
    }
    Ok(())
}

/// Packs all columns, on two threads.
fn pack_all(
    model: &Model,
    layout: &Layout,
    stranded: Option<&Stranded>,
) -> io::Result<Vec<Packed>> {
    let events = || -> io::Result<Vec<Packed>> {
        let events = &model.events;
        let first = events.time.first().copied().unwrap_or_default();
        let spans = &model.spans;
        let waits = &model.waits;
        let lengths = &model.wait_lengths;
        let hosts = &model.host_waits;
        let place = |address| match layout.segments.is_empty() {
            true => 0,
            false => position(&layout.segments, address),
        };
        let spans_at: Vec<u64> = spans.iter().map(|span| place(span.address)).collect();
        Ok(vec![
            pack_rising("time", events.time.iter().map(|time| time - first))?,
            pack("kind", events.kind.iter().map(|kind| *kind as u64))?,
            pack("subject", events.subject.iter().map(|row| u64::from(*row)))?,
            pack("span_position", spans_at.iter().copied())?,
            pack("span_bytes", spans.iter().map(|span| span.bytes))?,
            pack("span_reserved", spans.iter().map(|span| span.reserved.into()))?,
            pack("wait_waiting", waits.iter().map(|wait| wait.waiting.into()))?,
            pack("wait_awaited", waits.iter().map(|wait| wait.awaited.into()))?,
            pack("wait_block", waits.iter().map(|wait| wait.block.into()))?,
            pack("wait_reason", waits.iter().map(|wait| wait.reason.into()))?,
            pack("length_begin", lengths.iter().map(|it| it.begin.saturating_sub(first)))?,
            pack("length_ns", lengths.iter().map(|it| it.length))?,
            pack("length_waiting", lengths.iter().map(|it| it.waiting.into()))?,
            pack("length_awaited", lengths.iter().map(|it| it.awaited.into()))?,
            pack("length_block", lengths.iter().map(|it| it.block.into()))?,
            pack("host_begin", hosts.iter().map(|it| it.begin.saturating_sub(first)))?,
            pack("host_ns", hosts.iter().map(|it| it.length))?,
            pack("host_thread", hosts.iter().map(|it| it.thread.into()))?,
            pack("host_stream", hosts.iter().map(|it| it.stream.into()))?,
            pack("mark_text", model.marks.iter().map(|mark| mark.text.into()))?,
        ])
    };
    let blocks = || -> io::Result<Vec<Packed>> {
        let blocks = &model.blocks;
        let mut packed = vec![
            pack("position", layout.positions.iter().copied())?,
            pack("bytes", blocks.bytes.iter().copied())?,
            pack("tag", blocks.tag.iter().map(|id| u64::from(*id)))?,
            pack("stream", blocks.stream.iter().map(|id| u64::from(*id)))?,
            pack("query", blocks.query.iter().copied())?,
            pack("label", blocks.label.iter().map(|id| u64::from(*id)))?,
            pack("site", blocks.site.iter().map(|id| u64::from(*id)))?,
        ];
        if let Some(stranded) = stranded {
            packed.push(pack("occupied", stranded.occupied.iter().copied())?);
        }
        Ok(packed)
    };
    std::thread::scope(|scope| {
        let of_events = scope.spawn(events);
        let mut packed = blocks()?;
        let of_events = of_events.join().map_err(|_| io::Error::other("a thread panicked"))?;
        packed.extend(of_events?);
        Ok(packed)
    })
}
