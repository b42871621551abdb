//! Events of many threads, which end and are followed by others, with labels and queries.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use dmr_core::{AllocTag, StreamId, StreamPoolId};
use dmr_recorder::hooks::{self, RecordedBlock, RecordedSpan, RecordedWait};
use dmr_recorder::peak::by_tag;
use dmr_recorder::query::with_query;
use dmr_recorder::{
    Heap, HeapPart, HeapState, RecorderConfig, StartError, Unrecorded, label, name_stream, peak,
    register_stream_pool, start, stream_number, write_recording_to,
};
use dmr_recording::{Event, StreamChange};

use crate::support::{Read, Recording, allocate};

#[test]
fn the_last_events_of_each_thread_are_kept_with_thread_label_place_and_query() {
    let _recording = Recording::begin(RecorderConfig::new().with_events_per_thread(64));
    let all = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let all = &all;
            scope.spawn(move || {
                // A thread that has ended leaves its ring to the next one.
                all.wait();
                let _step = label(&format!("rings::step {thread}"));
                with_query(thread + 1, || {
                    for nth in 0..1_000 {
                        allocate(1 + thread * 10_000 + nth, &format!("rings::{thread}"));
                    }
                });
                all.wait();
            });
        }
    });
    let read = Read::now();
    let mut threads = std::collections::HashSet::new();
    for thread in 0..4_u64 {
        let events = read.allocated(&format!("rings::{thread}"));
        // One place is the writer's, and the end of the label is the last event.
        assert!((50..=62).contains(&events.len()), "{} events", events.len());
        let (_, last) = events.last().unwrap();
        assert_eq!(last.bytes, thread * 10_000 + 1_000);
        assert!(events.is_sorted_by(|(a, _), (b, _)| a.time_ns <= b.time_ns));
        for (record, block) in &events {
            assert_eq!(block.address, block.bytes << 8);
            assert_eq!(record.query, thread + 1);
            assert_eq!(read.text(record.label.name), format!("rings::step {thread}"));
            let site = read.text(record.label.site);
            assert!(site.contains("rings.rs:"), "{site}");
        }
        threads.insert(events[0].0.thread);
    }
    assert_eq!(threads.len(), 4, "threads have numbers of their own");
    let lost = read.summary.unwrap().lost;
    assert!(lost >= 4 * (1_000 - 63), "{lost} are lost");
}

#[test]
fn a_ring_is_continued_by_the_next_thread_and_its_events_keep_their_thread() {
    let _recording = Recording::begin(RecorderConfig::new().with_events_per_thread(1 << 12));
    for thread in 0..200 {
        std::thread::spawn(move || allocate(thread + 1, "reused")).join().unwrap();
    }
    let read = Read::now();
    let events = read.allocated("reused");
    assert_eq!(events.len(), 200);
    let threads: std::collections::HashSet<_> =
        events.iter().map(|(record, _)| record.thread).collect();
    assert_eq!(threads.len(), 200);
}

#[test]
fn more_threads_than_there_may_be_rings_are_counted_as_lost() {
    let mut config = RecorderConfig::new().with_events_per_thread(64);
    // Rings of the tests before are used first.
    config.max_threads = 1;
    let _recording = Recording::begin(config);
    let before = Read::now().summary.unwrap().lost;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..300 {
            scope.spawn(|| {
                allocate(1, "crowd");
                while !stop.load(Ordering::Relaxed) {
                    std::thread::park_timeout(std::time::Duration::from_millis(1));
                }
            });
        }
        let found = || {
            let read = Read::now();
            read.allocated("crowd").len() as u64 + read.summary.unwrap().lost - before
        };
        while found() < 300 {
            std::thread::yield_now();
        }
        let kept = Read::now().allocated("crowd").len();
        stop.store(true, Ordering::Relaxed);
        assert!(kept < 300, "{kept} threads had rings");
    });
}

#[test]
fn a_recording_that_is_written_while_threads_go_on_has_whole_events_only() {
    let _recording = Recording::begin(RecorderConfig::new().with_events_per_thread(64));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let stop = &stop;
            scope.spawn(move || {
                let tags = [AllocTag::intern("whole::a"), AllocTag::intern("whole::longer")];
                let pool = StreamPoolId::next().unwrap();
                let mut bytes = 1;
                while !stop.load(Ordering::Relaxed) {
                    let tag = tags[bytes as usize % 2];
                    let stream = StreamId::from_parts(pool, (bytes % 100) as usize, 1).unwrap();
                    hooks::allocated(|| hooks::RecordedBlock {
                        address: bytes << 8,
                        bytes,
                        generation: bytes + thread,
                        stream,
                        tag,
                    });
                    bytes += 1;
                }
            });
        }
        let mut read = 0;
        while read < 5_000 {
            let recording = Read::now();
            for (_, block) in recording.allocated("whole") {
                assert_eq!(block.address, block.bytes << 8);
                assert_eq!(u64::from(block.stream.slot()), block.bytes % 100);
                assert!(block.generation - block.bytes < 2);
                let tag = if block.bytes % 2 == 0 { "whole::a" } else { "whole::longer" };
                assert_eq!(recording.text(block.tag), tag);
                read += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The memory of one address goes from thread to thread: each event is recorded before the next
/// thread can have it.
#[test]
fn a_recording_that_is_written_while_memory_changes_hands_has_no_block_twice() {
    let memory = std::sync::Mutex::new(());
    let stream = StreamId::from_parts(StreamPoolId::next().unwrap(), 3, 1).unwrap();
    let tag = AllocTag::intern("hands");
    let block = || hooks::RecordedBlock { address: 256, bytes: 1, generation: 1, stream, tag };
    for _ in 0..40 {
        let _recording = Recording::begin(RecorderConfig::new().with_events_per_thread(1 << 16));
        let before = Read::now().summary.unwrap().lost;
        let uses = || {
            for _ in 0..4_000 {
                let _held = memory.lock().unwrap();
                // Waits for the lock: otherwise the processor may read its counter before.
                let _now = std::time::Instant::now();
                hooks::allocated(block);
                hooks::freed(false, block);
            }
        };
        let mut most = 0;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(uses)).collect();
            while !threads.iter().all(|thread| thread.is_finished()) {
                let read = Read::now();
                assert_eq!(read.summary.unwrap().lost, before, "the rings have room for all");
                let change = |record: &dmr_recording::Record| match record.event {
                    Event::Allocate(block) if read.text(block.tag) == "hands" => 1,
                    Event::Free(block) if read.text(block.tag) == "hands" => -1,
                    _ => 0,
                };
                let mut live = 0;
                for record in &read.records {
                    live += change(record);
                    most = live.max(most);
                }
            }
        });
        assert!(most <= 1, "{most} live blocks at one address");
    }
}

#[test]
fn blocks_of_absurd_sizes_have_a_peak() {
    let _recording = Recording::begin(RecorderConfig::new());
    let pool = StreamPoolId::next().unwrap();
    register_stream_pool(pool, 7);
    let stream = StreamId::from_parts(pool, 1, 1).unwrap();
    let tag = AllocTag::intern("absurd");
    let block = || hooks::RecordedBlock { address: 1, bytes: u64::MAX, generation: 1, stream, tag };
    hooks::allocated(block);
    hooks::freed(false, block);
    hooks::freed(false, block);
    let part = HeapPart {
        address: 0,
        bytes: u64::MAX,
        state: HeapState::InUse,
        stream,
        tag,
        is_first: true,
    };
    let heap = Heap { device: 7, reserved: u64::MAX, parts: vec![part, part] };
    assert_eq!(peak(&heap).map(|peak| peak.bytes), Some(u64::MAX));
    assert_eq!(by_tag(&heap).first().map(|held| held.blocks), Some(2));
}

#[test]
fn waits_spans_and_streams_come_back_with_their_device() {
    let _recording = Recording::begin(RecorderConfig::new());
    let pool = StreamPoolId::next().unwrap();
    register_stream_pool(pool, 5);
    let stream = StreamId::from_parts(pool, 1, 1).unwrap();
    let awaited = StreamId::from_parts(pool, 2, 0).unwrap();
    name_stream(awaited, "the copies");
    hooks::stream_created(stream);
    hooks::waited(&RecordedWait { stream, awaited, block: 77, launch: 8, work: u64::MAX });
    assert_eq!(hooks::take_awaited_blocks().collect::<Vec<_>>(), [77]);
    assert_eq!(hooks::take_awaited_blocks().count(), 0);
    hooks::moved(RecordedSpan { address: 4096, bytes: 512, stream }, 8192);
    {
        let _unrecorded = Unrecorded::enter();
        hooks::reserved(1, stream);
    }
    let read = Read::now();
    let own = |record: &&dmr_recording::Record| record.device == 5;
    let events: Vec<_> = read.records.iter().filter(own).map(|record| record.event).collect();
    let is_name = |event: &Event| match event {
        Event::Stream { change: StreamChange::Named, stream, name } => {
            *stream == stream_number(awaited) && read.text(*name) == "the copies"
        }
        _ => false,
    };
    assert!(events.iter().any(is_name), "{events:?}");
    let wait = Event::Wait {
        stream: stream_number(stream),
        awaited: stream_number(awaited),
        block: 77,
        launch: 8,
        work: u64::MAX,
    };
    assert!(events.contains(&wait), "{events:?}");
    let change = dmr_recording::SpanChange::Move { from: 8192 };
    let stream = stream_number(stream);
    let moved = Event::Span { change, address: 4096, bytes: 512, stream };
    assert!(events.contains(&moved), "{events:?}");
    let is_reserve = |event: &Event| {
        matches!(event, Event::Span { change: dmr_recording::SpanChange::Reserve, .. })
    };
    assert!(!events.iter().any(is_reserve), "it was in a scope that records nothing");
}

/// The scope is about blocks, whose owner records them; also where events share a reading of the
/// clock.
#[test]
fn a_scope_that_records_no_blocks_records_waits_and_goes_on() {
    let _recording = Recording::begin(RecorderConfig::new());
    let pool = StreamPoolId::next().unwrap();
    register_stream_pool(pool, 6);
    let stream = StreamId::from_parts(pool, 1, 1).unwrap();
    let awaited = StreamId::from_parts(pool, 2, 0).unwrap();
    let wait = |work| RecordedWait { stream, awaited, block: 0, launch: 0, work };
    let tag = AllocTag::intern("scope::muted");
    let muted = RecordedBlock { address: 256, bytes: 0, generation: 1, stream, tag };
    {
        let _unrecorded = Unrecorded::enter();
        for work in 0..100 {
            hooks::waited(&wait(work));
            drop(hooks::HostWait::for_stream(stream));
            // Its time may be that of the wait.
            hooks::allocated_coarse(|| RecordedBlock { bytes: work, ..muted });
        }
    }
    allocate(1, "scope::after");
    let read = Read::now();
    let count = |is_it: fn(&Event) -> bool| {
        read.records.iter().filter(|record| record.device == 6 && is_it(&record.event)).count()
    };
    assert_eq!(count(|event| matches!(event, Event::Wait { .. })), 100);
    assert_eq!(count(|event| matches!(event, Event::HostWait { .. })), 100);
    assert_eq!(read.allocated("scope::muted").len(), 0);
    assert_eq!(read.allocated("scope::after").len(), 1);
}

#[test]
fn there_is_one_recorder_and_none_before_it_is_started() {
    let recording = Recording::begin(RecorderConfig::new());
    assert!(matches!(start(RecorderConfig::new()), Err(StartError::AlreadyStarted)));
    drop(recording);
    let _held = Recording::begin(RecorderConfig::new());
    dmr_recorder::stop();
    let refused = write_recording_to(Vec::new()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::NotConnected);
    assert!(!dmr_recorder::is_on());
    let without_folder = start(RecorderConfig::new().on_panic()).unwrap_err().to_string();
    assert!(without_folder.contains("with_folder"), "{without_folder}");
}
