//! E4, E8: waits of streams and of the host are in the recording, and for those that are measured
//! how long they have held up their streams.

#![cfg(all(feature = "budget", feature = "pool", feature = "spill"))]
#![allow(unsafe_code, reason = "captures")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use dmr::DeviceRuntimeBuilder;
use dmr::dmr_core::{Access, BlockUse};
use dmr::dmr_recorder::{RecorderConfig, stream_number};
use dmr::prelude::*;
use dmr_recording::{Event, Record, StreamChange, StreamNumber};
use dmr_testkit::{HeldStream, Rig};

use crate::recordings::{Read, Recording};

const MIB: usize = 1 << 20;
const WEIGHTS: AllocTag = AllocTag::new("weights");
/// Nanoseconds for which a rig delays a stream.
const DELAY: u64 = 20_000_000;

fn on_rig(rig: &Rig, recorder: RecorderConfig) -> DeviceRuntimeBuilder {
    let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::Pool);
    builder.with_streams(Arc::clone(rig.streams())).flight_recorder(recorder)
}

fn each_wait() -> RecorderConfig {
    RecorderConfig::new().time_waits(NonZeroU32::MIN)
}

/// Makes `reader` wait for a block of another stream.
fn read_on(gpu: &DeviceRuntime, block: &DeviceBlock, reader: &StreamLease) {
    use_on(gpu, block, Access::Read, reader);
}

fn use_on(gpu: &DeviceRuntime, block: &DeviceBlock, access: Access, stream: &StreamLease) {
    let uses = [BlockUse::new(block.id(), access)];
    let open = gpu.resource().prepare_uses(&uses, stream.id()).unwrap();
    gpu.resource().finish_uses(open).unwrap();
}

/// A length of a recording.
struct Length {
    awaited: StreamNumber,
    block: u64,
    launch: u64,
    work: u64,
    length_ns: u64,
    age_ns: u64,
    record: Record,
}

/// Returns the measured waits of a stream.
fn lengths_on(read: &Read, on: StreamId) -> Vec<Length> {
    let of = |record: &Record| match record.event {
        Event::WaitLength { stream, awaited, block, launch, work, length_ns, age_ns }
            if stream == stream_number(on) =>
        {
            Some(Length { awaited, block, launch, work, length_ns, age_ns, record: *record })
        }
        _ => None,
    };
    read.records.iter().filter_map(of).collect()
}

/// Returns the host waits for a stream.
fn host_waits_for(read: &Read, awaited: StreamNumber) -> Vec<u64> {
    let of = |record: &Record| match record.event {
        Event::HostWait { stream, length_ns } if stream == awaited => Some(length_ns),
        _ => None,
    };
    read.records.iter().filter_map(of).collect()
}

#[test]
fn the_length_of_a_wait_is_that_of_the_awaited_work_and_names_the_wait() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let gpu = on_rig(&rig, each_wait()).build().unwrap();
    let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
    rig.delay(&writer);
    let held = HeldStream::hold(gpu.streams(), &writer);
    use_on(&gpu, weights.block().unwrap(), Access::Write, &writer);
    {
        let _decode = gpu.label("decode");
        let _query = dmr::dmr_recorder::query::QueryScope::enter(9);
        read_on(&gpu, weights.block().unwrap(), &reader);
    }
    assert_eq!(lengths_on(&Read::now(), reader.id()).len(), 0, "nothing waits for the device");
    drop(held);
    rig.device().synchronize().unwrap();
    let read = Read::now();
    let [length] = &lengths_on(&read, reader.id())[..] else { panic!("one wait") };
    assert_eq!(length.awaited, stream_number(writer.id()));
    assert_eq!(length.block, weights.block().unwrap().generation().get());
    assert!((DELAY / 2..500 * DELAY).contains(&length.length_ns), "{} ns", length.length_ns);
    assert!(length.age_ns < 600_000_000_000, "{} ns", length.age_ns);
    assert_eq!((read.text(length.record.label.name), length.record.query), ("decode", 9));
    let waits = read.count(|_, record| match record.event {
        Event::Wait { stream, awaited, work, launch, .. } => {
            let is_queued_before = record.time_ns <= length.record.time_ns;
            stream == stream_number(reader.id())
                && awaited == length.awaited
                && (work, launch) == (length.work, length.launch)
                && is_queued_before
        }
        _ => false,
    });
    assert_eq!(waits, 1, "the length names its wait");
    drop((weights, writer, reader, gpu));
    rig.assert_clean();
}

#[test]
fn a_wait_for_work_that_is_done_has_about_no_length_and_without_the_setting_none_is_measured() {
    for is_measured in [true, false] {
        let _recording = Recording::begin();
        let rig = Rig::new();
        let recorder = if is_measured { each_wait() } else { RecorderConfig::new() };
        let gpu = on_rig(&rig, recorder).build().unwrap();
        let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
        let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
        // Not known to be done, and done long before the reader's own work.
        rig.delay(&reader);
        read_on(&gpu, weights.block().unwrap(), &reader);
        rig.device().synchronize().unwrap();
        let lengths = lengths_on(&Read::now(), reader.id());
        assert_eq!(lengths.len(), usize::from(is_measured));
        assert!(lengths.iter().all(|it| it.length_ns < DELAY / 2), "{} ns", lengths[0].length_ns);
        drop((weights, writer, reader, gpu));
        rig.assert_clean();
    }
}

/// More waits than measurements that may be running at a time: those in excess are not measured,
/// and the events of those that are done serve again.
#[test]
fn measurements_are_bounded_and_their_events_are_used_again() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let gpu = on_rig(&rig, each_wait()).build().unwrap();
    let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
    for round in 1..=4 {
        let held = HeldStream::hold(gpu.streams(), &reader);
        for _ in 0..100 {
            use_on(&gpu, weights.block().unwrap(), Access::Write, &writer);
            read_on(&gpu, weights.block().unwrap(), &reader);
        }
        drop(held);
        rig.device().synchronize().unwrap();
        let read = Read::now();
        // The writer waits for the reader, too.
        let measured = [&reader, &writer].map(|on| lengths_on(&read, on.id()).len());
        let measured = measured.iter().sum::<usize>();
        // The first wait of a round may be over before the next begins.
        assert!((64 * round..64 * round + round).contains(&measured), "{measured} in {round}");
    }
    if let Some(universe) = rig.simulator() {
        let created = universe.calls().count("cuEventCreate");
        // 128 of these measure, and the others are of the uses.
        assert!(created < 700, "{created} events");
    }
    drop((weights, writer, reader, gpu));
    rig.assert_clean();
}

#[test]
fn a_measurement_survives_the_stream_that_it_is_on() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let gpu = on_rig(&rig, each_wait()).build().unwrap();
    let writer = gpu.streams().acquire().unwrap();
    let foreign = rig.device().context().new_stream().unwrap();
    let reader = gpu.streams().adopt(Arc::clone(&foreign)).unwrap();
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
    let held = HeldStream::hold(gpu.streams(), &writer);
    use_on(&gpu, weights.block().unwrap(), Access::Write, &writer);
    read_on(&gpu, weights.block().unwrap(), &reader);
    let id = reader.id();
    gpu.streams().retire_stream(&reader).unwrap();
    drop((reader, foreign));
    drop(held);
    rig.device().synchronize().unwrap();
    assert_eq!(lengths_on(&Read::now(), id).len(), 1);
    drop((weights, writer, gpu));
    rig.assert_clean();
}

#[test]
fn a_wait_between_streams_of_two_pools_is_recorded_with_both_and_measured() {
    let _recording = Recording::begin();
    let [rig, other] = Rig::pair();
    let gpu = on_rig(&rig, each_wait()).build().unwrap();
    let home = gpu.streams().acquire().unwrap();
    let worker = other.streams().acquire().unwrap();
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &home, MIB, WEIGHTS).unwrap();
    rig.delay(&home);
    let home_guard = gpu.streams().enter(home.id()).unwrap();
    let worker_guard = other.streams().enter(worker.id()).unwrap();
    let uses = [BlockUse::new(weights.block().unwrap().id(), Access::Read)];
    let mut tokens = dmr::dmr_streams::LaunchTokens::new(home.id());
    tokens.prepare_for(&worker_guard, &home_guard, gpu.resource(), &uses).unwrap();
    tokens.finish_for(&worker_guard, &home_guard, gpu.resource()).unwrap();
    drop((home_guard, worker_guard));
    for rig in [&rig, &other] {
        rig.device().synchronize().unwrap();
    }
    let read = Read::now();
    let generation = weights.block().unwrap().generation().get();
    let waits = |stream: StreamId, awaited: StreamId| {
        read.count(|_, record| match record.event {
            Event::Wait { stream: on, awaited: of, .. } => {
                [on, of] == [stream, awaited].map(stream_number)
            }
            _ => false,
        })
    };
    assert_eq!(waits(worker.id(), home.id()), 1);
    assert_eq!(waits(home.id(), worker.id()), 1);
    let because = read.count(|_, record| match record.event {
        Event::Wait { stream, block, .. } => {
            stream == stream_number(worker.id())
                && block == generation
                && usize::from(record.device) == other.ordinal()
        }
        _ => false,
    });
    assert_eq!(because, 1, "the wait names the block, and the device of the stream that waits");
    let [length] = &lengths_on(&read, worker.id())[..] else { panic!("one measured wait") };
    assert!(length.length_ns >= DELAY / 2, "{} ns", length.length_ns);
    drop((weights, home, worker, gpu));
    Rig::assert_all_clean([rig, other]);
}

#[test]
fn a_wait_of_a_thread_is_recorded_with_its_stream_its_begin_and_its_length() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    // Loads the kernel, for which the rig waits.
    rig.delay(StreamId::DEFAULT);
    rig.device().synchronize().unwrap();
    let gpu = on_rig(&rig, RecorderConfig::new()).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    rig.delay(&stream);
    let began = Instant::now();
    gpu.streams().synchronize(&stream).unwrap();
    let waited = began.elapsed().as_nanos() as u64;
    rig.delay(&stream);
    gpu.device().synchronize().unwrap();
    let read = Read::now();
    let [for_stream] = host_waits_for(&read, stream_number(stream.id()))[..] else {
        panic!("one wait: {:?}", read.records)
    };
    assert!(for_stream <= waited, "{for_stream} of {waited} ns");
    if rig.simulator().is_none() {
        assert!(for_stream >= DELAY / 2, "{for_stream} ns");
    }
    assert_eq!(host_waits_for(&read, StreamNumber(0)).len(), 1, "for the whole device");
    let of_device = read.count(|_, record| match record.event {
        Event::HostWait { stream: StreamNumber(0), .. } => {
            usize::from(record.device) == rig.ordinal() && record.thread > 0
        }
        _ => false,
    });
    assert_eq!(of_device, 1);
    drop((stream, gpu));
    rig.assert_clean();
}

/// A wait of the library for memory: the block is used on another stream when it is freed.
#[test]
fn waits_of_the_librarys_own_streams_are_recorded_and_the_streams_have_names() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let builder = DeviceRuntime::builder(rig.ordinal()).backend(Backend::Async);
    let builder = builder.with_streams(Arc::clone(rig.streams()));
    let gpu = builder.flight_recorder(RecorderConfig::new()).build().unwrap();
    let [home, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &home, MIB, WEIGHTS).unwrap();
    let block = weights.block().unwrap().id();
    rig.delay(&reader);
    read_on(&gpu, weights.block().unwrap(), &reader);
    drop(weights);
    gpu.resource().reap_pending().unwrap();
    let read = Read::now();
    let named = |stream: StreamNumber| {
        read.records.iter().find_map(|record| match record.event {
            Event::Stream { change: StreamChange::Named, stream: named, name }
                if named == stream =>
            {
                Some(read.text(name))
            }
            _ => None,
        })
    };
    let reclaimed = read.count(|_, record| match record.event {
        Event::Wait { stream, awaited, .. } => {
            awaited == stream_number(reader.id()) && named(stream) == Some("reclaim")
        }
        _ => false,
    });
    assert_eq!(reclaimed, 1, "of {block:?}: {:?}", read.records);
    drop((home, reader, gpu));
    rig.assert_clean();
}

#[test]
fn a_capture_is_left_alone_and_later_waits_are_measured() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let gpu = on_rig(&rig, each_wait()).build().unwrap();
    let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    rig.delay(&writer);
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
    read_on(&gpu, weights.block().unwrap(), &reader);
    let options = dmr::dmr_graphs::CaptureOptions::new().with_tag(WEIGHTS);
    // The measurement of the wait is running, and a recording is written within the capture.
    let work = |capture: &mut Capture<'_>| {
        let allocated = capture.allocate(MIB).map(drop);
        Read::now();
        allocated
    };
    // SAFETY: nothing else is captured.
    let graph = unsafe { Graph::capture(&gpu, &reader, options, work) }.unwrap();
    graph.launch(&reader).unwrap();
    rig.device().synchronize().unwrap();
    assert!(!lengths_on(&Read::now(), reader.id()).is_empty());
    drop((graph, weights, writer, reader, gpu));
    rig.assert_clean();
}

#[test]
fn measurements_that_run_when_the_recorder_stops_are_discarded_and_it_starts_again() {
    let _recording = Recording::begin();
    let rig = Rig::new();
    let gpu = on_rig(&rig, each_wait()).build().unwrap();
    let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
    let held = HeldStream::hold(gpu.streams(), &writer);
    let read_after_write = || {
        use_on(&gpu, weights.block().unwrap(), Access::Write, &writer);
        read_on(&gpu, weights.block().unwrap(), &reader);
    };
    read_after_write();
    dmr::dmr_recorder::stop();
    dmr::dmr_recorder::start(each_wait()).unwrap();
    read_after_write();
    drop(held);
    rig.device().synchronize().unwrap();
    assert_eq!(lengths_on(&Read::now(), reader.id()).len(), 1, "that of the second run");
    drop((weights, writer, reader, gpu));
    rig.assert_clean();
}

/// The call of a measurement that fails, and how many of the calls.
const CALLS: [(&str, u64); 4] =
    [("cuEventCreate", 2), ("cuEventRecord", 2), ("cuEventQuery", 2), ("cuEventElapsedTime", 1)];

#[test]
fn sim_a_wait_is_made_and_recorded_whatever_call_of_its_measurement_fails() {
    const UNKNOWN_SYMBOL: i32 = 500;
    for (call, calls) in CALLS {
        for nth in 1..=calls {
            let _recording = Recording::begin();
            let rig = Rig::simulated();
            let gpu = on_rig(&rig, each_wait()).build().unwrap();
            let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
            let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
            let block = weights.block().unwrap();
            let uses = [BlockUse::new(block.id(), Access::Read)];
            rig.universe().fail_nth(call, nth, UNKNOWN_SYMBOL);
            let is_of_a_look = call == "cuEventQuery" || call == "cuEventElapsedTime";
            let open = gpu.resource().prepare_uses(&uses, reader.id()).unwrap();
            if !is_of_a_look {
                rig.universe().clear_faults();
            }
            gpu.resource().finish_uses(open).unwrap();
            rig.device().synchronize().unwrap();
            let read = Read::now();
            rig.universe().clear_faults();
            let waits = read.count(|_, record| match record.event {
                Event::Wait { stream, .. } => stream == stream_number(reader.id()),
                _ => false,
            });
            assert_eq!(waits, 1, "{call} {nth}");
            assert_eq!(lengths_on(&read, reader.id()).len(), 0, "{call} {nth}");
            // The next one is measured.
            use_on(&gpu, block, Access::Write, &writer);
            read_on(&gpu, block, &reader);
            rig.device().synchronize().unwrap();
            assert_eq!(lengths_on(&Read::now(), reader.id()).len(), 1, "{call} {nth}");
            drop((weights, writer, reader, gpu));
            rig.assert_clean();
        }
    }
}

#[test]
fn sim_measurements_of_a_lost_device_are_dropped_with_it() {
    let _recording = Recording::begin();
    let rig = Rig::simulated();
    let gpu = on_rig(&rig, each_wait()).build().unwrap();
    let [writer, reader] = [(); 2].map(|()| gpu.streams().acquire().unwrap());
    let weights = DeviceBuffer::<u8>::zeroed_tagged(&gpu, &writer, MIB, WEIGHTS).unwrap();
    rig.delay(&writer);
    read_on(&gpu, weights.block().unwrap(), &reader);
    rig.universe().lose_device(0, 700);
    assert!(gpu.device().synchronize().is_err());
    let read = Read::now();
    assert_eq!(lengths_on(&read, reader.id()).len(), 0);
    drop((weights, writer, reader, gpu));
}
