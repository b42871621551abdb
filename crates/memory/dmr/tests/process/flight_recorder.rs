//! F: what a runtime does is in its recording. The recorder is the process's, so one test at a time
//! has it, and looks at the events of its own streams.

#![cfg(all(feature = "budget", feature = "pool", feature = "spill"))]
#![allow(unsafe_code, reason = "captures")]

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier, Mutex};

use dmr::dmr_adaptors::budget::Budget;
use dmr::dmr_core::{Access, BlockUse};
use dmr::dmr_graphs::CaptureOptions;
use dmr::dmr_recorder::{RecorderConfig, stream_number};
use dmr::prelude::*;
use dmr::report::WhyStranded;
use dmr::{DeviceRuntimeBuilder, Error};
use dmr_recording::{Block, Event, RegionState, SpanChange, SpillDirection};
use dmr_testkit::Rig;

use crate::recordings::{Read, Recording};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const WEIGHTS: AllocTag = AllocTag::new("weights");
const CACHE: AllocTag = AllocTag::new("cache");

fn builder(rig: &Rig) -> DeviceRuntimeBuilder {
    DeviceRuntime::builder(rig.ordinal()).backend(Backend::Pool)
}

/// On the streams of the rig, which it can delay.
fn on_rig(rig: &Rig) -> DeviceRuntimeBuilder {
    builder(rig).with_streams(Arc::clone(rig.streams())).flight_recorder(RecorderConfig::new())
}

#[test]
fn blocks_spans_streams_labels_and_queries_are_recorded_over_pages_and_blocks() {
    for page_size in [2 << 20, 0] {
        let _recording = Recording::begin();
        let rig = Rig::new();
        let config = PoolConfig::fast().with_page_size(page_size);
        let builder = builder(&rig).flight_recorder(RecorderConfig::new()).pool_config(config);
        let gpu = builder.build().unwrap();
        let stream = gpu.streams().acquire().unwrap();
        let bytes = 3 * MIB;
        let buffer = {
            let _decode = gpu.label("decode");
            let _query = dmr::dmr_recorder::query::QueryScope::enter(9);
            DeviceBuffer::<u8>::uninit_tagged(&gpu, &stream, bytes, WEIGHTS).unwrap()
        };
        let block = buffer.block().unwrap();
        let expected = |read: &Read, block_of: &Block| {
            block_of.address == block.ptr()
                && block_of.bytes == bytes as u64
                && block_of.generation == block.generation().get()
                && block_of.stream == stream_number(stream.id())
                && read.text(block_of.tag) == "weights"
        };
        let read = Read::now();
        let allocated = read.count(|read, record| match &record.event {
            Event::Allocate(block) => {
                let is_labelled = read.text(record.label.name) == "decode"
                    && read.text(record.label.site).contains("flight_recorder.rs:")
                    && record.query == 9;
                expected(read, block) && is_labelled && usize::from(record.device) == rig.ordinal()
            }
            _ => false,
        });
        assert_eq!(allocated, 1, "page size {page_size}");
        let [region] = read.regions(WEIGHTS)[..] else { panic!("one region") };
        assert_eq!((region.address, region.state), (block.ptr(), RegionState::InUse));
        let reserved = read.count(|_, record| {
            let is_it = |change| matches!(change, SpanChange::Reserve);
            matches!(record.event, Event::Span { change, .. } if is_it(change))
        });
        let holds = |address: u64, bytes: u64| (address..address + bytes).contains(&block.ptr());
        let mapped = read.count(|_, record| match record.event {
            Event::Span { change: SpanChange::Map, address, bytes, .. } => holds(address, bytes),
            _ => false,
        });
        assert!(reserved > 0 && mapped == 1, "{reserved} reserved, {mapped} mapped");
        let generation = block.generation().get();
        drop(buffer);
        let read = Read::now();
        let freed = read.count(|_, record| match record.event {
            Event::Free(block) | Event::Retire(block) => block.generation == generation,
            _ => false,
        });
        assert_eq!(freed, 1);
        let no_segments = read.count(|read, record| match record.event {
            Event::Allocate(block) => read.text(block.tag) == "pool" || block.bytes > 4 << 20,
            _ => false,
        });
        assert_eq!(no_segments, 0, "segments of the pool are no blocks of the program");
        drop((stream, gpu));
        rig.assert_clean();
    }
}

#[test]
fn a_wait_names_both_streams_and_the_block_because_of_which_it_is() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let gpu = on_rig(&rig).build().unwrap();
    let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
    let cache = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &reader, MIB, CACHE).unwrap();
    rig.ops();
    let ids = [&cache, &weights].map(|buffer| buffer.block().unwrap().id());
    rig.delay(&writer);
    let uses = ids.map(|id| BlockUse::new(id, Access::Read));
    let open = gpu.resource().prepare_uses(&uses, reader.id()).unwrap();
    gpu.resource().finish_uses(open).unwrap();
    let read = Read::now();
    let generation = ids[1].generation().get();
    let waits = read.count(|_, record| match record.event {
        Event::Wait { stream, awaited, block, .. } => {
            let streams = [stream, awaited] == [reader.id(), writer.id()].map(stream_number);
            streams && block == generation
        }
        _ => false,
    });
    assert_eq!(waits, 1, "{:?}", read.records);
    let described = read.count(|read, record| match record.event {
        Event::Describe(block) => {
            block.generation == generation
                && block.address == ids[1].ptr()
                && read.text(block.tag) == "weights"
        }
        _ => false,
    });
    assert_eq!(described, 1);
    drop((weights, cache, writer, reader, gpu));
    rig.assert_clean();
}

#[test]
fn an_out_of_budget_that_reaches_the_program_is_written_with_the_heap() {
    let _recording = Recording::begin();
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::new();
    let budget = Budget::new(64 * MIB as u64).named(AllocTag::new("tenant a"));
    let recorder = RecorderConfig::new().with_folder(folder.path());
    let builder = builder(&rig).flight_recorder(recorder).budget_on(&budget);
    let gpu = builder.on_out_of_memory(|_| Response::Decline).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let held = DeviceBuffer::<u8>::uninit_tagged(&gpu, &stream, 40 * MIB, WEIGHTS).unwrap();
    let refused = DeviceBuffer::<u8>::uninit_tagged(&gpu, &stream, 48 * MIB, CACHE);
    assert!(Error::from(refused.unwrap_err()).is_out_of_memory());
    let [read] = &Read::in_folder(folder.path(), "out-of-memory")[..] else { panic!("one file") };
    let refusals = read.count(|read, record| match record.event {
        Event::Refused(refusal) => {
            refusal.bytes == 48 * MIB as u64
                && read.text(refusal.tag) == "cache"
                && read.text(refusal.limit) == "budget tenant a"
                && refusal.limit_bytes == 64 * MIB as u64
                && refusal.largest_free < refusal.bytes
        }
        _ => false,
    });
    assert!(refusals > 0);
    let heaps: Vec<_> = read
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::SnapshotBegin { why, .. } => Some(read.text(why)),
            _ => None,
        })
        .collect();
    assert!(heaps.contains(&"before memory was made free"), "{heaps:?}");
    assert_eq!(heaps.last(), Some(&"out of memory"));
    assert!(read.regions(WEIGHTS).len() >= 2, "the holder is in both");
    let peaks = read.count(|read, record| match record.event {
        Event::BudgetPeak { budget, bytes, limit } => {
            read.text(budget) == "tenant a" && bytes >= 40 << 20 && limit == 64 << 20
        }
        _ => false,
    });
    assert!(peaks > 0);
    drop((held, stream, gpu));
    rig.assert_clean();
}

#[test]
fn spills_and_replays_of_graphs_are_recorded() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let budget = Budget::new(64 * MIB as u64);
    let builder = builder(&rig).flight_recorder(RecorderConfig::new()).budget_on(&budget);
    let gpu = builder.spill().build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let spill = gpu.spill().unwrap();
    let make = || DeviceBuffer::<u8>::zeroed_tagged(&gpu, &stream, 24 * MIB, CACHE).unwrap();
    let buffers: Vec<_> = (0..3).map(|_| spill.insert(make()).unwrap()).collect();
    drop(buffers[0].on_device(&stream).unwrap());
    let options = CaptureOptions::new().with_tag(WEIGHTS);
    let work = |capture: &mut Capture<'_>| capture.allocate(MIB).map(drop);
    // SAFETY: nothing is captured.
    let graph = unsafe { Graph::capture(&gpu, &stream, options, work) }.unwrap();
    graph.launch(&stream).unwrap();
    let read = Read::now();
    let spilled = |way| {
        read.count(|read, record| match record.event {
            Event::Spill { direction, block } => {
                direction == way && block.bytes == 24 << 20 && read.text(block.tag) == "cache"
            }
            _ => false,
        })
    };
    assert!(spilled(SpillDirection::Out) >= 1);
    assert!(spilled(SpillDirection::In) >= 1);
    let launches = read.count(|read, record| match record.event {
        Event::GraphLaunch { stream: on, tag, .. } => {
            on == stream_number(stream.id()) && read.text(tag) == "weights"
        }
        _ => false,
    });
    assert_eq!(launches, 1);
    drop((graph, buffers, stream));
    gpu.shutdown().unwrap();
    drop(gpu);
    rig.assert_clean();
}

/// Four threads on the pool's fast path, each on a stream of its own, which free each other's
/// blocks.
#[test]
fn no_two_blocks_of_a_recording_overlap_and_what_is_live_is_what_the_pool_counts() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let recorder = RecorderConfig::new().with_events_per_thread(1 << 16);
    let builder = builder(&rig).flight_recorder(recorder).without_observer();
    let gpu = builder.build().unwrap();
    let passed = Mutex::new(Vec::<DeviceBlock>::new());
    let kept: Vec<DeviceBlock> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let gpu = &gpu;
                let passed = &passed;
                scope.spawn(move || {
                    let stream = gpu.streams().acquire().unwrap();
                    let mut rng = fastrand::Rng::with_seed(thread);
                    let mut held = Vec::new();
                    for _ in 0..3_000 {
                        let bytes = rng.usize(1..64 << 10);
                        held.push(gpu.resource().allocate(bytes, stream.id(), CACHE).unwrap());
                        let mut passed = passed.lock().unwrap();
                        if rng.u8(..4) == 0 {
                            passed.extend(held.pop());
                        }
                        let freed = if rng.u8(..4) == 0 { passed.pop() } else { None };
                        drop(passed);
                        let own = held.len() > 30;
                        let own = own.then(|| held.swap_remove(rng.usize(..held.len())));
                        for block in freed.into_iter().chain(own) {
                            gpu.resource().deallocate(block).unwrap();
                        }
                    }
                    held
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(live_bytes(&gpu), gpu.resource().usage().live);
    for block in kept.into_iter().chain(passed.into_inner().unwrap()) {
        gpu.resource().deallocate(block).unwrap();
    }
    drop(gpu);
    rig.assert_clean();
}

/// Returns the live bytes at the end of a recording, of whose blocks no two overlap.
fn live_bytes(gpu: &DeviceRuntime) -> u64 {
    let read = Read::now();
    let pool = stream_number(gpu.streams().default_stream()).pool();
    let mut live = BTreeMap::<u64, Block>::new();
    let mut bytes = 0;
    for record in &read.records {
        match record.event {
            Event::Allocate(block) if block.stream.pool() == pool => {
                let end = block.address + block.bytes;
                let before = live.range(..end).next_back();
                let overlaps = before.is_some_and(|(at, other)| at + other.bytes > block.address);
                assert!(!overlaps, "{block:?} begins within {before:?}");
                bytes += block.bytes;
                live.insert(block.address, block);
            }
            Event::Free(block) | Event::Retire(block) if block.stream.pool() == pool => {
                let allocated = live.remove(&block.address);
                assert_eq!(allocated.map(|it| it.generation), Some(block.generation));
                bytes -= block.bytes;
            }
            _ => {}
        }
    }
    bytes
}

/// Blocks of one size on one stream: what one thread frees, another one has at once.
#[test]
fn memory_that_changes_threads_is_freed_before_it_is_allocated() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let recorder = RecorderConfig::new().with_events_per_thread(1 << 17);
    let gpu = builder(&rig).flight_recorder(recorder).without_observer().build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let block = gpu.resource().allocate(MIB, stream.id(), CACHE).unwrap();
                    gpu.resource().deallocate(block).unwrap();
                }
            });
        }
    });
    assert_eq!(live_bytes(&gpu), 0);
    drop((stream, gpu));
    rig.assert_clean();
}

/// Two threads that pass blocks to each other. The first has just read the clock for a burst of
/// events.
#[test]
fn a_block_that_changes_threads_in_a_burst_is_allocated_before_it_is_freed() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let recorder = RecorderConfig::new().with_events_per_thread(1 << 16);
    let gpu = builder(&rig).flight_recorder(recorder).without_observer().build().unwrap();
    let [of_first, of_second] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let allocate = |bytes, stream: &StreamLease| gpu.resource().allocate(bytes, stream.id(), CACHE);
    let free = |block| gpu.resource().deallocate(block).unwrap();
    let passed = Mutex::new(Vec::<DeviceBlock>::new());
    let turn = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                for _ in 0..20 {
                    free(allocate(KIB, &of_first).unwrap());
                }
                passed.lock().unwrap().push(allocate(MIB, &of_first).unwrap());
                turn.wait();
                turn.wait();
                // The second thread has freed the memory, and allocated another block.
                let reused = allocate(MIB, &of_first).unwrap();
                free(passed.lock().unwrap().pop().unwrap());
                free(reused);
                turn.wait();
            }
        });
        for _ in 0..300 {
            turn.wait();
            let mut passed = passed.lock().unwrap();
            free(passed.pop().unwrap());
            free(allocate(2 * MIB, &of_second).unwrap());
            passed.push(allocate(2 * MIB, &of_second).unwrap());
            drop(passed);
            turn.wait();
            turn.wait();
        }
    });
    assert_eq!(live_bytes(&gpu), 0);
    drop((of_first, of_second, gpu));
    rig.assert_clean();
}

#[test]
fn a_report_says_who_holds_what_what_is_stranded_and_who_held_the_peak() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let config = PoolConfig::fast().with_page_size(2 << 20);
    let gpu = on_rig(&rig).pool_config(config).without_observer().build().unwrap();
    let [home, other] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &home, 3 * MIB, WEIGHTS).unwrap();
    let cache = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &other, 8 * MIB, CACHE).unwrap();
    // The device still reads it on another stream when it is freed.
    let part = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &home, MIB, CACHE).unwrap();
    rig.delay(&other);
    let uses = [BlockUse::new(part.block().unwrap().id(), Access::Read)];
    let open = gpu.resource().prepare_uses(&uses, other.id()).unwrap();
    gpu.resource().finish_uses(open).unwrap();
    drop(part);
    let report = gpu.report().unwrap();
    let pending = report.stranded.iter().find(|it| it.why == WhyStranded::Pending);
    assert_eq!(pending.map(|it| it.bytes), Some(MIB as u64), "{report:?}");
    gpu.resource().reap_pending().unwrap();
    drop(cache);
    gpu.resource().reap_pending().unwrap();
    let report = gpu.report().unwrap();
    assert_eq!(report.by_tag.len(), 1, "{report:?}");
    assert_eq!((report.by_tag[0].tag, report.by_tag[0].bytes), (WEIGHTS, 3 << 20));
    let of_other = report.by_stream.iter().find(|of| of.stream.slot() == other.id().slot());
    assert!(of_other.unwrap().largest_free >= 8 << 20, "{report:?}");
    let largest = report.by_stream.iter().map(|of| of.largest_free).max();
    assert_eq!(largest, Some(report.largest_free));
    let expected = 1.0 - report.largest_free as f64 / report.free as f64;
    assert!((report.fragmentation - expected).abs() < 1e-9);
    // A block of 3 MiB leaves a part of a page.
    let beside = report.stranded.iter().find(|it| it.why == WhyStranded::BesideBlocks);
    assert!(beside.is_some_and(|it| it.bytes > 0 && it.bytes < 2 << 20), "{report:?}");
    let peak = report.peak.unwrap();
    assert_eq!(peak.bytes, 12 << 20, "{peak:?}");
    let held: Vec<_> = peak.by_tag.iter().map(|held| (held.tag, held.bytes, held.blocks)).collect();
    assert_eq!(held, [(CACHE, 9 << 20, 2), (WEIGHTS, 3 << 20, 1)]);
    drop((weights, home, other, gpu));
    rig.assert_clean();
}

#[test]
fn sim_a_device_that_a_call_finds_lost_is_written_with_the_call() {
    let _recording = Recording::begin();
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::simulated();
    let recorder = RecorderConfig::new().with_folder(folder.path());
    let gpu = builder(&rig).flight_recorder(recorder).build().unwrap();
    rig.universe().lose_device(0, 700);
    assert!(gpu.device().synchronize().is_err());
    assert!(gpu.device().synchronize().is_err());
    let [read] = &Read::in_folder(folder.path(), "device-lost")[..] else { panic!("one file") };
    let lost = read.count(|read, record| match record.event {
        Event::DeviceLost { message } => read.text(message).contains("cuCtxSynchronize"),
        _ => false,
    });
    assert_eq!(lost, 1);
}
