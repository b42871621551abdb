//! Exports: PyTorch's viewer gets the events that were read, Perfetto counters and flows.

use dmr_recording::{Block, Event, LabelId, Record, Refusal, SpanChange, StreamNumber};
use dmr_report::analysis::peak::peak;
use dmr_report::export::{perfetto, pytorch};
use dmr_report::{Model, page};
use proptest::prelude::*;

use crate::support::{Recorder, open, recording};
use crate::viewer::{follow, unpickle};

const BASE: u64 = 0x7000_0000_0000;

fn exported(model: &Model) -> Model {
    let mut bytes = Vec::new();
    pytorch::write(model, &mut bytes).unwrap();
    open(&bytes)
}

proptest! {
    #[test]
    fn a_snapshot_that_was_written_is_read_as_the_same_events(
        choices in proptest::collection::vec((0_u8..4, 1_u64..5000, any::<prop::sample::Index>()), 1..80),
    ) {
        let bytes = recording(|to| {
            let span = Event::Span {
                change: SpanChange::Reserve,
                address: BASE,
                bytes: 1 << 20,
                stream: StreamNumber::new(1, 0),
            };
            to.at(0, span);
            let mut live = Vec::new();
            for (at, (what, size, which)) in choices.iter().enumerate() {
                let time = (at as u64 + 1) * 1000;
                if *what < 2 || live.is_empty() {
                    let block = to.block(at as u64 + 1, BASE + at as u64 * 8192, *size, "tag");
                    to.at(time, Event::Allocate(block));
                    live.push(block);
                    continue;
                }
                let block: Block = live.swap_remove(which.index(live.len()));
                if *what == 2 {
                    to.at(time, Event::Free(block));
                } else {
                    to.at(time, Event::Retire(block));
                    let Block { address, bytes, stream, .. } = block;
                    to.at(time + 1, Event::Ready { address, bytes, stream });
                }
            }
        });
        let model = open(&bytes);
        let again = exported(&model);
        prop_assert_eq!(&again.blocks.bytes, &model.blocks.bytes);
        prop_assert_eq!(&again.blocks.address, &model.blocks.address);
        prop_assert_eq!(peak(&again).bytes, peak(&model).bytes);
        prop_assert_eq!(again.spans.len(), 1);
        let tag = again.names.get(again.blocks.tag[0]);
        prop_assert_eq!(tag, "tag");
    }
}

#[test]
fn a_trace_of_ids_gets_addresses_that_do_not_overlap() {
    let rows =
        b"action,ptr,bytes\nallocate,0x1,100\nallocate,0x2,100\nfree,0x1,\nallocate,0x3,50\n";
    let again = exported(&open(rows));
    assert!(again.source.has_addresses);
    assert_eq!(again.blocks.address[2], again.blocks.address[0], "the gap is used again");
}

const PAGE: u64 = 1 << 16;
const SLOT: u64 = PAGE / 4;
const PAGES: u64 = 8;

/// A step of a program with pages, and with blocks outside of them.
#[derive(Clone, Debug)]
enum Step {
    Map { page: u64, pages: u64 },
    Unmap { page: u64, pages: u64 },
    Allocate { slot: u64, slots: u64 },
    AllocateAlone { bytes: u64 },
    Free { which: prop::sample::Index },
    Retire { which: prop::sample::Index },
    Ready { which: prop::sample::Index },
    Refuse,
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        3 => (0..PAGES, 1..4_u64).prop_map(|(page, pages)| Step::Map { page, pages }),
        2 => (0..PAGES, 1..4_u64).prop_map(|(page, pages)| Step::Unmap { page, pages }),
        6 => (0..4 * PAGES, 1..7_u64).prop_map(|(slot, slots)| Step::Allocate { slot, slots }),
        1 => (1..PAGE).prop_map(|bytes| Step::AllocateAlone { bytes }),
        2 => which().prop_map(|which| Step::Free { which }),
        2 => which().prop_map(|which| Step::Retire { which }),
        2 => which().prop_map(|which| Step::Ready { which }),
        1 => Just(Step::Refuse),
    ]
}

/// Writes the steps that are possible. Returns the bytes that are in use at most.
fn run(to: &mut Recorder, steps: &[Step]) -> u64 {
    let stream = StreamNumber::new(1, 0);
    let mut mapped = [false; PAGES as usize];
    let mut live: Vec<Block> = Vec::new();
    let mut retired: Vec<Block> = Vec::new();
    let mut most = 0;
    for (at, step) in steps.iter().enumerate() {
        let at = at as u64;
        let is_free = |start: u64, end: u64| {
            let blocks = live.iter().chain(&retired);
            blocks.clone().all(|it| it.address >= end || it.address + it.bytes <= start)
        };
        let span = |change, page, pages| {
            let [address, bytes] = [BASE + page * PAGE, pages * PAGE];
            Event::Span { change, address, bytes, stream }
        };
        match step {
            Step::Map { page, pages } => {
                let pages = (*pages).min(PAGES - page);
                let range = *page as usize..(page + pages) as usize;
                if mapped[range.clone()].iter().all(|it| !*it) {
                    mapped[range].fill(true);
                    to.at(at * 1000, span(SpanChange::Map, *page, pages));
                }
            }
            Step::Unmap { page, pages } => {
                let pages = (*pages).min(PAGES - page);
                let range = *page as usize..(page + pages) as usize;
                let start = BASE + page * PAGE;
                if mapped[range.clone()].iter().all(|it| *it)
                    && is_free(start, start + pages * PAGE)
                {
                    mapped[range].fill(false);
                    to.at(at * 1000, span(SpanChange::Unmap, *page, pages));
                }
            }
            Step::Allocate { slot, slots } => {
                let slots = (*slots).min(4 * PAGES - slot);
                let [start, end] = [BASE + slot * SLOT, BASE + (slot + slots) * SLOT];
                let pages = (slot / 4) as usize..(slot + slots).div_ceil(4) as usize;
                if mapped[pages].iter().all(|it| *it) && is_free(start, end) {
                    let block = to.block(at + 1, start, slots * SLOT - 100, "tag");
                    to.at(at * 1000, Event::Allocate(block));
                    live.push(block);
                }
            }
            Step::AllocateAlone { bytes } => {
                let block = to.block(at + 1, 2 * BASE + at * PAGE, *bytes, "alone");
                to.at(at * 1000, Event::Allocate(block));
                live.push(block);
            }
            Step::Free { which } if !live.is_empty() => {
                let block = live.swap_remove(which.index(live.len()));
                to.at(at * 1000, Event::Free(block));
            }
            Step::Retire { which } if !live.is_empty() => {
                let block = live.swap_remove(which.index(live.len()));
                to.at(at * 1000, Event::Retire(block));
                retired.push(block);
            }
            Step::Ready { which } if !retired.is_empty() => {
                let block = retired.swap_remove(which.index(retired.len()));
                let Block { address, bytes, stream, .. } = block;
                to.at(at * 1000, Event::Ready { address, bytes, stream });
            }
            Step::Refuse => {
                let tag = to.writer.intern("large");
                let limit = to.writer.intern("budget");
                let refusal = Refusal {
                    bytes: 1 << 40,
                    stream,
                    tag,
                    limit,
                    limit_bytes: 1,
                    used: 1,
                    free: 0,
                    largest_free: 0,
                };
                to.at(at * 1000, Event::Refused(refusal));
            }
            _ => {}
        }
        most = most.max(live.iter().chain(&retired).map(|block| block.bytes).sum());
    }
    most
}

proptest! {
    #[test]
    fn at_each_event_of_an_export_each_block_is_within_a_segment(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut most = 0;
        let recorded = recording(|to| most = run(to, &steps));
        let mut bytes = Vec::new();
        pytorch::write(&open(&recorded), &mut bytes).unwrap();
        prop_assert_eq!(follow(&unpickle(&bytes), 0), most as i64);
    }
}

#[test]
fn an_export_has_the_frames_that_pytorch_has_recorded() {
    let file = include_bytes!("../files/snapshot.pickle");
    let mut bytes = Vec::new();
    pytorch::write(&open(file), &mut bytes).unwrap();
    let snapshot = unpickle(&bytes);
    let trace = snapshot.get("device_traces").list()[0].list();
    let alloc = trace.iter().find(|event| event.text("action") == "alloc").unwrap();
    let frames = alloc.get("frames").list();
    assert!(frames.iter().any(|frame| {
        let place = [frame.text("filename"), frame.text("name")];
        place[0].ends_with("/train.py") && place[1] == "step" && frame.number("line") == 41
    }));
    assert!(frames.iter().all(|frame| frame.text("filename") != "tag"), "the tag is a frame");
    let failed = trace.iter().find(|event| event.text("action") == "oom").unwrap();
    assert_eq!(failed.number("device_free"), 8 << 20);
    let model = open(file);
    let again = open(&bytes);
    for block in 0..model.blocks.len() {
        let site = |model: &Model| model.names.get(model.blocks.site[block]).to_owned();
        let tag = |model: &Model| model.names.get(model.blocks.tag[block]).to_owned();
        assert_eq!([site(&again), tag(&again)], [site(&model), tag(&model)]);
    }
}

#[test]
fn an_export_has_tag_label_and_call_site_as_frames() {
    let recorded = recording(|to| {
        let block = to.block(1, BASE, 100, "kv cache");
        let name = to.writer.intern("decode");
        let site = to.writer.intern("src/serve.rs:118:21");
        let label = LabelId { name, site };
        let event = Record { time_ns: 5, label, ..Record::new(Event::Allocate(block)) };
        to.writer.write(&event).unwrap();
    });
    let mut bytes = Vec::new();
    pytorch::write(&open(&recorded), &mut bytes).unwrap();
    let snapshot = unpickle(&bytes);
    let frames = snapshot.get("device_traces").list()[0].list()[0].get("frames").list();
    let frames: Vec<_> = frames
        .iter()
        .map(|it| format!("{}:{}:{}", it.text("filename"), it.number("line"), it.text("name")))
        .collect();
    assert_eq!(frames, ["tag:0:kv cache", "label:0:decode", "src/serve.rs:118:"]);
    let again = open(&bytes);
    let names = [again.blocks.tag[0], again.blocks.label[0], again.blocks.site[0]];
    let names = names.map(|name| again.names.get(name));
    assert_eq!(names, ["kv cache", "decode", "src/serve.rs:118"]);
}

#[test]
fn the_events_of_a_device_are_at_its_ordinal_and_long_lists_are_appended_in_parts() {
    let mut rows = String::from("action,ptr,bytes,device\n");
    for at in 0..70_000_u64 {
        rows += &format!("allocate,{:#x},16,3\n", BASE + at * 16);
    }
    let mut bytes = Vec::new();
    pytorch::write(&open(rows.as_bytes()), &mut bytes).unwrap();
    let snapshot = unpickle(&bytes);
    let traces = snapshot.get("device_traces").list();
    let lengths: Vec<_> = traces.iter().map(|trace| trace.list().len()).collect();
    assert_eq!(lengths, [0, 0, 0, 70_000]);
    assert_eq!(snapshot.get("segments").list()[0].number("device"), 3);
}

#[test]
fn a_page_has_no_reference_to_a_network_and_no_end_of_a_script_in_its_data() {
    let model = open(b"action,ptr,bytes,tag\nallocate,0x1000,1,</script><b>\n");
    let mut page = Vec::new();
    page::write(&model, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("\\u003c/script>\\u003cb>"));
    assert!(!page.contains("</script><b>"));
    for reference in ["src=\"http", "href=\"http", "@import", "fetch("] {
        assert!(!page.contains(reference), "{reference}");
    }
}

/// The fields of a message: number and value, as text for what has a length.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    let mut fields = Vec::new();
    let varint = |bytes: &mut &[u8]| {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    };
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => fields.push((key >> 3, Vec::new(), varint(&mut bytes))),
            1 => {
                fields.push((
                    key >> 3,
                    Vec::new(),
                    u64::from_le_bytes(bytes[..8].try_into().unwrap()),
                ));
                bytes = &bytes[8..];
            }
            _ => {
                let length = varint(&mut bytes) as usize;
                fields.push((key >> 3, bytes[..length].to_vec(), 0));
                bytes = &bytes[length..];
            }
        }
    }
    fields
}

#[test]
fn perfetto_gets_counters_by_tag_and_flows_of_waits() {
    let model = open(&recording(|to| {
        let block = to.block(1, BASE, 100, "batch");
        to.at(5, Event::Allocate(block));
        let other = StreamNumber::new(1, 1);
        to.at(
            6,
            Event::Wait { stream: other, awaited: block.stream, block: 1, launch: 1, work: 1 },
        );
        to.at(9, Event::Free(block));
    }));
    let mut trace = Vec::new();
    perfetto::write(&model, &mut trace).unwrap();
    let packets: Vec<_> =
        fields(&trace).into_iter().map(|(_, packet, _)| fields(&packet)).collect();
    let events: Vec<_> = packets.iter().flatten().filter(|field| field.0 == 11).collect();
    let events: Vec<_> = events.iter().map(|field| fields(&field.1)).collect();
    let counters: Vec<_> =
        events.iter().flatten().filter(|field| field.0 == 30).map(|it| it.2).collect();
    assert_eq!(counters, [100, 0]);
    let flows = events.iter().flatten().filter(|field| field.0 == 47).count();
    assert_eq!(flows, 2);
    let names: Vec<_> = events.iter().flatten().filter(|field| field.0 == 23).collect();
    let names: Vec<_> = names.iter().map(|it| String::from_utf8_lossy(&it.1)).collect();
    assert_eq!(
        names,
        ["stream 1 waits for this because of batch", "waits for stream 0 because of batch"]
    );
    let times: Vec<_> =
        packets.iter().flatten().filter(|field| field.0 == 8).map(|it| it.2).collect();
    assert_eq!(times, [5, 6, 6, 9]);
}
