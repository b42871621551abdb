//! Every record comes back as it was written, and a million of them are small.

use dmr_recording::{
    Block, Event, MAX_TEXT, MAX_TEXTS, Reader, Record, StreamNumber, StringId, Summary, Writer,
};
use fastrand::Rng;

use crate::files::file;
use crate::support::{TEXTS, record, start};

#[test]
fn every_record_comes_back_as_it_was_written_whatever_its_numbers() {
    let mut rng = Rng::with_seed(1);
    for per_chunk in [1, 7, 100_000] {
        let written: Vec<_> = (0..20_000).map(|_| record(&mut rng)).collect();
        let file = file(&written, per_chunk);
        let mut reader = Reader::new(&file[..]).unwrap();
        let read = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
        let [Record { event: Event::Start(begun), .. }, records @ .., end] = &read[..] else {
            panic!("no start: {:?}", read.first());
        };
        assert_eq!(records, written);
        let summary = Summary { events: written.len() as u64, lost: 0 };
        assert_eq!(end.event, Event::Summary(summary));
        assert_eq!((begun.epoch_ns, begun.process), (start().epoch_ns, start().process));
        assert_eq!(reader.text(begun.clock), "test clock");
        assert_eq!(reader.text(begun.program), "program");
        for (nth, text) in TEXTS.into_iter().enumerate() {
            assert_eq!(reader.text(StringId(nth as u32 + 3)), text);
        }
        assert_eq!(reader.offset(), file.len() as u64);
    }
}

/// A program that allocates and frees blocks of many sizes and tags on four streams.
#[test]
fn a_million_events_take_less_than_thirty_megabytes() {
    let mut rng = Rng::with_seed(2);
    let mut writer = Writer::new(Vec::new(), &start()).unwrap();
    let tags: Vec<_> = (0..40).map(|tag| writer.intern(&format!("layer {tag}"))).collect();
    let mut live = Vec::new();
    let mut time_ns = 0;
    for generation in 0..1_000_000 {
        time_ns += rng.u64(20..3_000);
        let event = match live.len() > 2_000 || (!live.is_empty() && rng.bool()) {
            true => Event::Free(live.swap_remove(rng.usize(..live.len()))),
            false => {
                let block = Block {
                    address: 0x7f00_0000_0000 + rng.u64(..1 << 27) * 256,
                    bytes: rng.u64(1..1 << 24),
                    generation,
                    stream: StreamNumber::new(1, rng.u32(..4)),
                    tag: tags[rng.usize(..tags.len())],
                };
                live.push(block);
                Event::Allocate(block)
            }
        };
        let query = time_ns >> 20;
        let thread = rng.u32(1..4);
        writer.write(&Record { time_ns, query, thread, ..Record::new(event) }).unwrap();
    }
    let bytes = writer.finish().unwrap().len();
    assert!(bytes < 30_000_000, "{bytes} bytes");
    // The figure in the documentation.
    assert!(bytes < 26_000_000, "{bytes} bytes");
}

#[test]
fn a_text_is_cut_between_characters_and_more_texts_than_fit_are_other() {
    let mut writer = Writer::new(Vec::new(), &start()).unwrap();
    let long = writer.intern(&format!("x{}", "é".repeat(MAX_TEXT)));
    let mut last = long;
    for nth in 0..MAX_TEXTS as u32 + 10 {
        last = writer.intern(&nth.to_string());
    }
    assert_eq!(writer.intern("one more"), last);
    let file = writer.finish().unwrap();
    let mut reader = Reader::new(&file[..]).unwrap();
    assert!(reader.by_ref().all(|record| record.is_ok()));
    assert_eq!(reader.text(long).len(), MAX_TEXT - 1);
    assert_eq!(reader.text(last), "(other)");
    assert!(reader.texts() <= MAX_TEXTS);
}
