//! D10: copies between two devices are ordered on both, and other uses of a block of another device
//! are refused. On two GPUs, or on two simulated devices.

use crate::context::Context;
use dmr_buffer::{BufferError, DeviceBuffer};
use dmr_core::ResourceError;
use dmr_core::error::StreamProblem;
use dmr_streams::{StreamPool, StreamPoolConfig};
use dmr_testkit::Rig;

const LEN: usize = 1 << 20;

/// Each device has blocks whose uses are tracked, or not; without tracking all work is on the home
/// streams.
const CONTEXTS: [fn(&Rig) -> Context; 2] = [Context::tracked, Context::direct];

fn two_contexts(rigs: &[Rig; 2], make: fn(&Rig) -> Context) -> [Context; 2] {
    [make(&rigs[0]), make(&rigs[1])]
}

fn assert_clean(contexts: [Context; 2], rigs: [Rig; 2]) {
    for context in contexts {
        context.assert_empty();
    }
    Rig::assert_all_clean(rigs);
}

#[test]
fn a_copy_comes_after_a_slow_producer_and_before_the_consumer() {
    let rigs = Rig::pair();
    for make in CONTEXTS {
        let [here, there] = &two_contexts(&rigs, make);
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let mut source = DeviceBuffer::<u8>::zeroed(here, &a, LEN).unwrap();
        let mut target = DeviceBuffer::<u8>::zeroed(there, &b, LEN).unwrap();
        rigs[0].delay(&a);
        source.fill_bytes(7, &a).unwrap();
        target.copy_from_peer(&source, &a, &b).unwrap();
        assert_eq!(target.to_host(&b).unwrap(), [7; LEN]);
    }
    Rig::assert_all_clean(rigs);
}

#[test]
fn streams_of_either_device_that_the_copy_does_not_name_wait_for_it_too() {
    let rigs = Rig::pair();
    let contexts = two_contexts(&rigs, Context::tracked);
    let [here, there] = &contexts;
    let a = rigs[0].stream();
    let a2 = rigs[0].stream();
    let b = rigs[1].stream();
    let b2 = rigs[1].stream();
    let mut source = DeviceBuffer::from_host(here, &a2, &vec![1u8; LEN]).unwrap();
    let mut target = DeviceBuffer::<u8>::zeroed(there, &b2, LEN).unwrap();
    // The last writer of the source is slow, and on a stream that the copy does not name.
    rigs[0].delay(&a2);
    source.fill_bytes(2, &a2).unwrap();
    // The target is still read.
    rigs[1].delay(&b2);
    let mut earlier = DeviceBuffer::<u8>::uninit(there, &b2, LEN).unwrap();
    earlier.copy_from(&target, &b2).unwrap();
    target.copy_from_peer(&source, &a, &b).unwrap();
    // Overwritten behind the copy, on another stream.
    source.fill_bytes(3, &a2).unwrap();
    assert_eq!(target.to_host(&b2).unwrap(), [2; LEN]);
    assert_eq!(earlier.to_host(&b2).unwrap(), [0; LEN]);
    assert_eq!(source.to_host(&a).unwrap(), [3; LEN]);
    drop((source, target, earlier, a, a2, b, b2));
    assert_clean(contexts, rigs);
}

#[test]
fn a_source_that_is_freed_behind_the_copy_is_not_overwritten_before_it() {
    let rigs = Rig::pair();
    for make in CONTEXTS {
        let contexts = two_contexts(&rigs, make);
        let [here, there] = &contexts;
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let source = DeviceBuffer::from_host(here, &a, &vec![5u8; LEN]).unwrap();
        let mut target = DeviceBuffer::<u8>::zeroed(there, &b, LEN).unwrap();
        rigs[1].delay(&b);
        target.copy_from_peer(&source, &a, &b).unwrap();
        drop(source);
        let mut next = DeviceBuffer::<u8>::uninit(here, &a, LEN).unwrap();
        next.fill_bytes(9, &a).unwrap();
        assert_eq!(target.to_host(&b).unwrap(), [5; LEN]);
        drop((next, target));
        contexts.into_iter().for_each(Context::assert_empty);
    }
    Rig::assert_all_clean(rigs);
}

#[test]
fn copies_in_both_directions_at_once_from_many_threads_are_right() {
    const ROUNDS: u8 = 20;
    let rigs = Rig::pair();
    let contexts = two_contexts(&rigs, Context::tracked);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let rigs = &rigs;
            let contexts = &contexts;
            let from = usize::from(thread % 2);
            let to = usize::from(1 - thread % 2);
            scope.spawn(move || {
                let a = rigs[from].stream();
                let b = rigs[to].stream();
                let mut there = DeviceBuffer::<u8>::zeroed(&contexts[to], &b, 4096).unwrap();
                let mut back = DeviceBuffer::<u8>::zeroed(&contexts[from], &a, 4096).unwrap();
                for round in 0..ROUNDS {
                    let byte = thread * ROUNDS + round;
                    let mut source = DeviceBuffer::<u8>::uninit(&contexts[from], &a, 4096).unwrap();
                    source.fill_bytes(byte, &a).unwrap();
                    there.copy_from_peer(&source, &a, &b).unwrap();
                    drop(source);
                    back.copy_from_peer(&there, &b, &a).unwrap();
                    assert_eq!(back.to_host(&a).unwrap(), [byte; 4096]);
                }
            });
        }
    });
    assert_clean(contexts, rigs);
}

#[test]
fn a_part_is_copied_to_a_part_and_nothing_is_copied_for_no_bytes() {
    let rigs = Rig::pair();
    let contexts = two_contexts(&rigs, Context::tracked);
    let [here, there] = &contexts;
    let a = rigs[0].stream();
    let b = rigs[1].stream();
    let source = DeviceBuffer::from_host(here, &a, &[1u32, 2, 3, 4]).unwrap();
    let mut target = DeviceBuffer::<u32>::zeroed(there, &b, 4).unwrap();
    let part = source.view().slice(1..3).unwrap();
    target.view_mut().slice_mut(2..4).unwrap().copy_from_peer(part, &a, &b).unwrap();
    assert_eq!(target.to_host(&b).unwrap(), [0, 0, 2, 3]);
    let refused = target.copy_from_peer(part, &a, &b).unwrap_err();
    assert!(matches!(refused, BufferError::LengthMismatch { .. }), "{refused}");

    let none = source.view().slice(0..0).unwrap();
    let mut to_none = target.view_mut();
    let mut to_none = to_none.slice_mut(0..0).unwrap();
    to_none.copy_from_peer(none, &a, &b).unwrap();
    let refused = to_none.copy_from_peer(none, &b, &b).unwrap_err();
    assert!(refused.to_string().contains("cannot be used here"), "{refused}");
    drop((source, target, a, b));
    assert_clean(contexts, rigs);
}

#[test]
fn two_stream_pools_of_one_device_and_two_streams_of_one_pool_copy_in_the_same_way() {
    let rigs = Rig::pair();
    let rig = &rigs[0];
    let pool = StreamPool::new(rig.device().clone(), StreamPoolConfig::new()).unwrap();
    let contexts = [Context::tracked(rig), Context::tracked_on(&pool)];
    for (from, to) in [(0, 1), (1, 0), (0, 0)] {
        let here = &contexts[from];
        let there = &contexts[to];
        let [a, b] = [here, there].map(|context| context.lease());
        let mut source = DeviceBuffer::<u8>::zeroed(here, &a, LEN).unwrap();
        let mut target = DeviceBuffer::<u8>::zeroed(there, &b, LEN).unwrap();
        source.fill_bytes(4, &a).unwrap();
        target.copy_from_peer(&source, &a, &b).unwrap();
        source.fill_bytes(6, &a).unwrap();
        assert_eq!(target.to_host(&b).unwrap(), [4; LEN]);
    }
    contexts.into_iter().for_each(Context::assert_empty);
    drop(pool);
    Rig::assert_all_clean(rigs);
}

/// The errors name both devices and the block, and say what to do.
#[test]
fn every_other_use_of_a_block_of_another_device_is_refused_by_name() {
    let rigs = Rig::pair();
    for make in CONTEXTS {
        let contexts = two_contexts(&rigs, make);
        let [here, there] = &contexts;
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let mut mine = DeviceBuffer::from_host(here, &a, &[1u8; 4]).unwrap();
        let mut theirs = DeviceBuffer::from_host(there, &b, &[2u8; 4]).unwrap();
        let [first, second] = [0, 1].map(|rig: usize| rigs[rig].ordinal());
        let block = |buffer: &DeviceBuffer<u8>| buffer.block().unwrap().generation();
        let of_mine = block(&mine);
        let of_theirs = block(&theirs);
        let refusals = [
            (mine.copy_from(&theirs, &a), of_theirs, second, first),
            (mine.fill_bytes(0, &b), of_mine, first, second),
            (mine.to_host(&b).map(drop), of_mine, first, second),
            (theirs.copy_from_host(&[0; 4], &a), of_theirs, second, first),
            (theirs.copy_from_peer(&mine, &b, &b), of_mine, first, second),
            (theirs.copy_from_peer(&mine, &a, &a), of_theirs, second, first),
        ];
        for (refused, block, block_device, stream_device) in refusals {
            let BufferError::Resource(error) = refused.unwrap_err() else { panic!("no error") };
            let message = error.to_string();
            let ResourceError::OtherPool {
                generation,
                block_device: of_block,
                stream_device: of_stream,
                ..
            } = error
            else {
                panic!("{error:?}");
            };
            assert_eq!((generation, of_block, of_stream), (block, block_device, stream_device));
            for part in [
                format!(
                    "of device {stream_device} cannot use block {block} of device {block_device}"
                ),
                "copy it with `copy_from_peer`".to_owned(),
            ] {
                assert!(message.contains(&part), "{message}: not {part:?}");
            }
        }
        // Without a block only the devices are named.
        let refused = DeviceBuffer::<u8>::uninit(here, &b, 4).unwrap_err();
        let problem = StreamProblem::other_pool(Some(second), first);
        let expected = ResourceError::stream_misuse(b.id(), problem);
        assert_eq!(refused, BufferError::Resource(expected));
        assert_eq!(mine.to_host(&a).unwrap(), [1; 4]);
        assert_eq!(theirs.to_host(&b).unwrap(), [2; 4]);
        drop((mine, theirs));
        contexts.into_iter().for_each(Context::assert_empty);
    }
    Rig::assert_all_clean(rigs);
}

#[test]
fn buffers_contexts_and_pools_of_two_devices_are_dropped_in_any_order() {
    for first in 0..2 {
        let rigs = Rig::pair();
        let universe = rigs[0].simulator().cloned();
        let contexts = two_contexts(&rigs, Context::tracked);
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let source = DeviceBuffer::from_host(&contexts[0], &a, &vec![8u8; LEN]).unwrap();
        let mut target = DeviceBuffer::<u8>::zeroed(&contexts[1], &b, LEN).unwrap();
        rigs[1].delay(&b);
        target.copy_from_peer(&source, &a, &b).unwrap();
        let [here, there] = contexts;
        let [rig_here, rig_there] = rigs;
        if first == 0 {
            drop((here, rig_here, a, source));
            assert_eq!(target.to_host(&b).unwrap(), [8; LEN]);
            drop((target, there, rig_there, b));
        } else {
            drop((there, rig_there, target, b));
            assert_eq!(source.to_host(&a).unwrap(), [8; LEN]);
            drop((source, here, rig_here, a));
        }
        if let Some(universe) = universe {
            let verdict = universe.finish();
            assert!(verdict.is_clean(), "{verdict}");
        }
    }
}
