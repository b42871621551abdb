//! A trace for Perfetto: a track for each stream, with its waits as flows, and counters by tag.
//!
//! The few messages of the format that this needs are encoded by hand: a message is a sequence of
//! fields, each a number with its wire type and a value.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

use crate::analysis::peak::Totals;
use crate::model::{EventKind, Model, NONE};
use crate::text::tag_name;

/// The writer of all packets: those of one sequence are in the order of their times.
const SEQUENCE: u64 = 1;
/// The tracks: the process, what is reserved and retired, then streams and tags.
const PROCESS: u64 = 1;
const RESERVED: u64 = 2;
const RETIRED: u64 = 3;
const FIRST_STREAM: u64 = 1 << 20;
const FIRST_TAG: u64 = 1 << 32;

/// The kinds of track events.
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// Writes the trace of a model.
///
/// # Errors
///
/// Those of `out`.
pub fn write(model: &Model, mut out: impl Write) -> io::Result<()> {
    descriptors(model, &mut out)?;
    let mut sums: FxHashMap<u32, u64> = FxHashMap::default();
    for block in (0..model.blocks.len()).filter(|block| model.blocks.allocated[*block] == NONE) {
        let sum: &mut u64 = sums.entry(model.blocks.tag[block]).or_default();
        *sum = sum.saturating_add(model.blocks.bytes[block]);
    }
    let mut totals = Totals::before(model);
    for event in 0..model.events.len() {
        totals.add(model, event);
        let time = model.events.time[event];
        let subject = model.events.subject[event] as usize;
        match model.events.kind[event] {
            kind @ (EventKind::Allocate | EventKind::Free | EventKind::Retire) => {
                let tag = model.blocks.tag[subject];
                let sum = sums.entry(tag).or_default();
                let bytes = model.blocks.bytes[subject];
                *sum = match kind {
                    EventKind::Allocate => sum.saturating_add(bytes),
                    _ => sum.saturating_sub(bytes),
                };
                counter(&mut out, time, FIRST_TAG + u64::from(tag), *sum)?;
                if kind == EventKind::Retire {
                    counter(&mut out, time, RETIRED, totals.retired)?;
                }
            }
            EventKind::Ready => counter(&mut out, time, RETIRED, totals.retired)?,
            EventKind::Reserve | EventKind::Release => {
                counter(&mut out, time, RESERVED, totals.reserved)?;
            }
            EventKind::Wait => wait(model, &mut out, time, subject)?,
            EventKind::Refuse => {
                let refusal = &model.refusals[subject];
                let tag = tag_name(model, refusal.tag);
                let name = format!("refused: {} bytes of {tag}", refusal.bytes);
                instant(&mut out, time, track(refusal.stream), &name, None)?;
            }
            EventKind::Mark => {
                let mark = &model.marks[subject];
                instant(&mut out, time, track(mark.stream), model.names.get(mark.text), None)?;
            }
        }
    }
    out.flush()
}

/// Returns the track of a stream; that of the process for none.
fn track(stream: u32) -> u64 {
    if stream == NONE { PROCESS } else { FIRST_STREAM + u64::from(stream) }
}

fn descriptors(model: &Model, out: &mut impl Write) -> io::Result<()> {
    let mut process = Message::default();
    process.number(1, 1);
    process.text(6, &model.source.name);
    let mut root = Message::default();
    root.number(1, PROCESS);
    root.message(3, &process);
    descriptor(out, &root)?;
    for (at, stream) in model.streams.iter().enumerate() {
        descriptor(out, &named(FIRST_STREAM + at as u64, &stream.to_string()))?;
    }
    let mut tags = model.blocks.tag.clone();
    tags.sort_unstable();
    tags.dedup();
    let of_tags = tags.iter().map(|tag| (FIRST_TAG + u64::from(*tag), tag_name(model, *tag)));
    for (id, name) in
        [(RESERVED, "reserved"), (RETIRED, "freed, still used")].into_iter().chain(of_tags)
    {
        let mut unit = Message::default();
        // The unit is bytes.
        unit.number(3, 3);
        let mut track = named(id, name);
        track.message(8, &unit);
        descriptor(out, &track)?;
    }
    Ok(())
}

/// Returns the description of a track below that of the process.
fn named(id: u64, name: &str) -> Message {
    let mut track = Message::default();
    track.number(1, id);
    track.text(2, name);
    track.number(5, PROCESS);
    track
}

fn descriptor(out: &mut impl Write, track: &Message) -> io::Result<()> {
    let mut packet = Message::default();
    packet.message(60, track);
    packet.number(10, SEQUENCE);
    write_packet(out, &packet)
}

/// Writes both ends of a wait: a flow leads from the stream that is waited for.
fn wait(model: &Model, out: &mut impl Write, time: u64, wait: usize) -> io::Result<()> {
    let of = &model.waits[wait];
    let tag = match of.block {
        NONE => "no block",
        block => tag_name(model, model.blocks.tag[block as usize]),
    };
    let flow = Some(wait as u64 + 1);
    let awaited = &model.streams[of.awaited as usize];
    let waiting = &model.streams[of.waiting as usize];
    let name = format!("{waiting} waits for this because of {tag}");
    instant(out, time, track(of.awaited), &name, flow)?;
    let name = format!("waits for {awaited} because of {tag}");
    instant(out, time, track(of.waiting), &name, flow)
}

fn counter(out: &mut impl Write, time: u64, track: u64, value: u64) -> io::Result<()> {
    let mut event = Message::default();
    event.number(9, COUNTER);
    event.number(11, track);
    event.number(30, value);
    write_event(out, time, &event)
}

fn instant(
    out: &mut impl Write,
    time: u64,
    track: u64,
    name: &str,
    flow: Option<u64>,
) -> io::Result<()> {
    let mut event = Message::default();
    event.number(9, INSTANT);
    event.number(11, track);
    event.text(23, name);
    if let Some(flow) = flow {
        event.fixed(47, flow);
    }
    write_event(out, time, &event)
}

fn write_event(out: &mut impl Write, time: u64, event: &Message) -> io::Result<()> {
    let mut packet = Message::default();
    packet.number(8, time);
    packet.message(11, event);
    packet.number(10, SEQUENCE);
    write_packet(out, &packet)
}

fn write_packet(out: &mut impl Write, packet: &Message) -> io::Result<()> {
    let mut trace = Message::default();
    trace.message(1, packet);
    out.write_all(&trace.bytes)
}

/// The fields of a message.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn fixed(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, field: u64, text: &str) {
        self.length_delimited(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.length_delimited(field, &message.bytes);
    }

    fn length_delimited(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_seven_bits_a_byte() {
        let mut message = Message::default();
        message.number(1, 150);
        message.text(2, "testing");
        message.fixed(47, 1);
        assert_eq!(message.bytes[..3], [0x08, 0x96, 0x01]);
        assert_eq!(message.bytes[3..12], *b"\x12\x07testing");
        assert_eq!(message.bytes[12..14], [0xf9, 0x02]);
    }
}
