//! `dmr-recording` alone: a record is written and read.

use dmr_recording::{Block, Event, Reader, Record, Start, Writer};

fn main() {
    let mut writer = Writer::new(Vec::new(), &Start::default()).unwrap();
    let tag = writer.intern("alone");
    let block = Block { bytes: 4096, tag, ..Block::default() };
    writer.write(&Record::new(Event::Allocate(block))).unwrap();
    let file = writer.finish().unwrap();
    let mut reader = Reader::new(&file[..]).unwrap();
    let allocated = reader.by_ref().find_map(|record| match record.unwrap().event {
        Event::Allocate(block) => Some(block),
        _ => None,
    });
    assert_eq!(reader.text(allocated.unwrap().tag), "alone");
}
