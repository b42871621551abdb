//! Exports: PyTorch's viewer gets the events that were read, Perfetto counters and flows.

use dmr_recording::{Block, Event, SpanChange, StreamNumber};
use dmr_report::analysis::peak::peak;
use dmr_report::export::{perfetto, pytorch};
use dmr_report::{Model, page};
use proptest::prelude::*;

use crate::support::{open, recording};

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
