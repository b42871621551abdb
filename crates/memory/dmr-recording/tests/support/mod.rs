//! Random records.

use dmr_recording::{
    Block, Event, LabelId, Record, Refusal, Region, RegionState, SpanChange, SpillDirection, Start,
    StreamChange, StreamNumber, StringId,
};
use fastrand::Rng;

/// The texts that a test defines first, as the ids 3 to 10.
pub(crate) const TEXTS: [&str; 8] =
    ["kv-cache", "weights", "decode", "src/decode.rs:88:13", "é", "limit", "a stream", "x"];

pub(crate) fn start() -> Start {
    Start {
        epoch_ns: 1_764_000_000_000_000_000,
        process: 4242,
        clock_error_ppb: 120,
        clock_step_ns: 40,
        ..Start::default()
    }
}

/// Returns a record of any kind but a start, with numbers of any size.
pub(crate) fn record(rng: &mut Rng) -> Record {
    let event = event(rng);
    let label = match rng.bool() {
        true => LabelId { name: text(rng), site: text(rng) },
        false => LabelId::default(),
    };
    Record {
        time_ns: number(rng),
        thread: number(rng) as u32,
        device: number(rng) as u16,
        query: number(rng),
        label,
        event,
    }
}

fn event(rng: &mut Rng) -> Event {
    let address = number(rng);
    let bytes = number(rng);
    let stream = stream(rng);
    let tag = text(rng);
    let block = Block { address, bytes, generation: number(rng), stream, tag };
    match rng.u8(0..21) {
        0 => Event::Allocate(block),
        1 => Event::Free(block),
        2 => Event::Retire(block),
        3 => Event::Ready { address, bytes, stream },
        4 => Event::Grow(block),
        5 => Event::Span { change: span_change(rng), address, bytes, stream },
        6 => {
            let awaited = StreamNumber::new(1, rng.u32(..));
            Event::Wait { stream, awaited, block: address, launch: bytes, work: number(rng) }
        }
        7 => Event::Describe(block),
        8 => Event::Spill {
            direction: [SpillDirection::Out, SpillDirection::In][rng.usize(..2)],
            block,
        },
        9 => Event::Refused(Refusal {
            bytes,
            stream,
            tag,
            limit: text(rng),
            limit_bytes: number(rng),
            used: number(rng),
            free: number(rng),
            largest_free: number(rng),
        }),
        10 => Event::GraphLaunch { stream, graph: number(rng), tag },
        11 => Event::BudgetPeak { budget: tag, bytes, limit: number(rng) },
        12 => {
            let changes = [StreamChange::Created, StreamChange::Retired, StreamChange::Named];
            Event::Stream { change: changes[rng.usize(..3)], stream, name: tag }
        }
        13 => Event::LabelBegin,
        14 => Event::LabelEnd,
        15 => Event::DeviceLost { message: tag },
        16 => Event::SnapshotBegin { why: tag, reserved: bytes },
        17 => {
            let states = [RegionState::InUse, RegionState::Free, RegionState::Pending];
            let state = states[rng.usize(..3)];
            Event::Region(Region { address, bytes, state, stream, tag })
        }
        18 => Event::WaitLength {
            stream,
            awaited: StreamNumber::new(2, rng.u32(..)),
            block: address,
            launch: bytes,
            work: number(rng),
            length_ns: number(rng),
            age_ns: number(rng),
        },
        19 => Event::HostWait { stream, length_ns: number(rng) },
        _ => Event::SnapshotEnd,
    }
}

fn span_change(rng: &mut Rng) -> SpanChange {
    match rng.u8(0..5) {
        0 => SpanChange::Reserve,
        1 => SpanChange::Release,
        2 => SpanChange::Map,
        3 => SpanChange::Unmap,
        _ => SpanChange::Move { from: number(rng) },
    }
}

/// Returns a number of 0 to 64 bits.
fn number(rng: &mut Rng) -> u64 {
    rng.u64(..).checked_shr(rng.u32(0..=64)).unwrap_or(0)
}

fn stream(rng: &mut Rng) -> StreamNumber {
    StreamNumber::new(rng.u32(0..3), rng.u32(0..40))
}

fn text(rng: &mut Rng) -> StringId {
    match rng.usize(..TEXTS.len() + 1) {
        0 => StringId::EMPTY,
        nth => StringId(nth as u32 + 2),
    }
}
