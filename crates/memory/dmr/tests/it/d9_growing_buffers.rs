//! D9: a buffer grows in place where its resource can do that, and by a recorded copy elsewhere,
//! through every layer. A growth that fails changes nothing.

#![cfg(all(
    feature = "async",
    feature = "budget",
    feature = "debug-guard",
    feature = "direct",
    feature = "logging",
    feature = "pool",
    feature = "statistics"
))]

use std::sync::Arc;

use dmr::DeviceRuntimeBuilder;
use dmr::dmr_adaptors::logging::{InMemorySink, NullSink};
use dmr::dmr_buffer::BufferError;
use dmr::dmr_core::error::StreamProblem;
use dmr::dmr_core::record::RecordAction;
use dmr::prelude::*;
use dmr_testkit::Rig;

const KIB: usize = 1 << 10;
const TAG: AllocTag = AllocTag::new("rows");

struct Stack {
    name: &'static str,
    choose: fn(DeviceRuntimeBuilder) -> DeviceRuntimeBuilder,
    grows_in_place: bool,
}

fn over_pages(builder: DeviceRuntimeBuilder) -> DeviceRuntimeBuilder {
    let builder = builder.backend(Backend::Pool).without_observer();
    builder.pool_config(PoolConfig::fast().with_page_size(2 << 20))
}

const STACKS: [Stack; 8] = [
    Stack { name: "direct", choose: |it| it.backend(Backend::Direct), grows_in_place: false },
    Stack {
        name: "direct-tracked",
        choose: |it| it.backend(Backend::DirectTracked),
        grows_in_place: false,
    },
    Stack { name: "async", choose: |it| it.backend(Backend::Async), grows_in_place: false },
    Stack {
        name: "pool over blocks",
        choose: |it| {
            let config = PoolConfig::fast().with_page_size(0).with_growth(16 << 20);
            it.backend(Backend::Pool).without_observer().pool_config(config)
        },
        grows_in_place: true,
    },
    Stack { name: "pool over pages", choose: over_pages, grows_in_place: true },
    Stack {
        name: "pool over pages in layers",
        choose: |it| over_pages(it).statistics().log_to(Arc::new(NullSink)),
        grows_in_place: true,
    },
    Stack {
        name: "pool over pages under a budget",
        choose: |it| over_pages(it).budget_on(&Budget::new(1 << 30)),
        grows_in_place: true,
    },
    Stack {
        name: "pool in a debug guard",
        choose: |it| over_pages(it).debug_guard(),
        grows_in_place: false,
    },
];

fn on_every_stack(test: impl Fn(&Stack, &DeviceRuntime, &StreamLease)) {
    for stack in &STACKS {
        let rig = Rig::new();
        let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
        let runtime = (stack.choose)(builder).build().unwrap();
        let home = runtime.streams().acquire().unwrap();
        test(stack, &runtime, &home);
        drop(home);
        runtime.resource().reap_pending().unwrap();
        assert_eq!(runtime.resource().bytes_outstanding(), 0, "{}", stack.name);
        drop(runtime);
        rig.assert_clean();
    }
}

fn address(buffer: &DeviceBuffer<u8>) -> u64 {
    buffer.block().map_or(0, DeviceBlock::ptr)
}

fn is_window_conflict(error: &BufferError) -> bool {
    matches!(error, BufferError::Resource(ResourceError::WindowConflict { .. }))
}

/// A resource that tracks no uses refuses those on another stream than the home stream.
#[track_caller]
fn assert_not_tracked(stack: &Stack, outcome: Result<(), BufferError>) {
    let refused = outcome.unwrap_err();
    let BufferError::Resource(ResourceError::StreamMisuse { problem, .. }) = refused else {
        panic!("{}: {refused}", stack.name);
    };
    assert_eq!(problem, StreamProblem::NotTracked, "{}", stack.name);
}

#[test]
fn the_elements_stay_and_the_block_where_it_can() {
    on_every_stack(|stack, runtime, home| {
        let mut buffer =
            DeviceBuffer::from_host_tagged(runtime, home, &[7u8; 4 * KIB], TAG).unwrap();
        assert_eq!(buffer.capacity(), 4 * KIB);
        let at = address(&buffer);
        buffer.reserve(60 * KIB, home).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (4 * KIB, 64 * KIB), "{}", stack.name);
        assert_eq!(address(&buffer) == at, stack.grows_in_place, "{}", stack.name);
        assert!(buffer.try_grow(64 * KIB).unwrap(), "there is room");
        assert_eq!(buffer.view().len(), 64 * KIB);
        buffer.slice_mut(4 * KIB..).unwrap().fill_bytes(9, home).unwrap();
        let host = buffer.to_host(home).unwrap();
        assert!(host[..4 * KIB].iter().all(|byte| *byte == 7), "{}", stack.name);
        assert!(host[4 * KIB..].iter().all(|byte| *byte == 9), "{}", stack.name);
        let block = buffer.block().unwrap();
        assert_eq!((block.tag(), block.alloc_stream()), (TAG, home.id()), "{}", stack.name);
        assert_eq!(runtime.resource().usage().live, 64 << 10, "{}", stack.name);
    });
}

#[test]
fn try_grow_grows_in_place_or_changes_nothing() {
    on_every_stack(|stack, runtime, home| {
        let mut buffer = DeviceBuffer::from_host(runtime, home, &[7u8; KIB]).unwrap();
        let at = address(&buffer);
        assert_eq!(buffer.try_grow(64 * KIB).unwrap(), stack.grows_in_place, "{}", stack.name);
        let len = if stack.grows_in_place { 64 * KIB } else { KIB };
        assert_eq!((buffer.len(), buffer.capacity()), (len, len), "{}", stack.name);
        assert_eq!(address(&buffer), at);
        assert!(buffer.try_grow(1).unwrap(), "it is as long already");
        assert_eq!(buffer.len(), len);
        assert_eq!(buffer.slice(..KIB).unwrap().to_host(home).unwrap(), [7; KIB]);
        assert_eq!(runtime.resource().usage().live, len as u64, "{}", stack.name);
    });
}

#[test]
fn on_another_stream_it_comes_after_the_writes_and_before_the_free() {
    on_every_stack(|stack, runtime, home| {
        let [writer, grower] = [(); 2].map(|()| runtime.streams().acquire().unwrap());
        let mut buffer = DeviceBuffer::<u8>::zeroed(runtime, home, 4 * KIB).unwrap();
        if !runtime.resource().supports_block_use_tracking() {
            assert_not_tracked(stack, buffer.reserve(4 * KIB, &grower));
            assert_eq!(buffer.to_host(home).unwrap(), [0; 4 * KIB], "{}", stack.name);
            return;
        }
        let slow = DeviceBuffer::from_host(runtime, &writer, &[5u8; 4 * KIB]).unwrap();
        let ops = PatternOps::new(Arc::clone(runtime.streams())).unwrap();
        ops.delay(writer.id(), 5_000_000).unwrap();
        buffer.copy_from(&slow, &writer).unwrap();
        buffer.reserve(4 * KIB, &grower).unwrap();
        assert_eq!(buffer.block().unwrap().alloc_stream(), home.id(), "{}", stack.name);
        // What lay behind, or the old block: another owner writes it now.
        let mut other = DeviceBuffer::<u8>::uninit(runtime, home, 4 * KIB).unwrap();
        other.fill_bytes(0xee, home).unwrap();
        let host = buffer.to_host(&grower).unwrap();
        assert!(host.iter().all(|byte| *byte == 5), "{}", stack.name);
    });
}

#[test]
fn where_the_home_stream_was_returned_or_retired_the_new_block_is_at_home_on_the_given_stream() {
    type Grow = fn(&mut DeviceBuffer<u8>, &StreamLease) -> Result<(), BufferError>;
    let ways: [Grow; 3] = [
        |buffer, stream| buffer.reserve(KIB, stream),
        |buffer, stream| buffer.extend_from_host(&[7; KIB], stream),
        |buffer, stream| {
            let more = DeviceBuffer::from_host(buffer.context(), stream, &[7; KIB])?;
            buffer.extend_from(&more, stream)
        },
    ];
    for (grow, retires) in ways.into_iter().flat_map(|grow| [(grow, false), (grow, true)]) {
        on_every_stack(|stack, runtime, home| {
            let streams = runtime.streams();
            let lease = match retires {
                false => streams.acquire().unwrap(),
                true => streams.adopt(runtime.device().context().new_stream().unwrap()).unwrap(),
            };
            let mut buffer =
                DeviceBuffer::from_host_tagged(runtime, &lease, &[7u8; KIB], TAG).unwrap();
            if retires {
                streams.retire_stream(&lease).unwrap();
            }
            drop(lease);
            let before = format!("{buffer:?}");
            assert!(!buffer.try_grow(2 * KIB).unwrap(), "{}: in place without a home", stack.name);
            assert_eq!(format!("{buffer:?}"), before, "{}", stack.name);
            let grown = grow(&mut buffer, home);
            if runtime.resource().supports_block_use_tracking() {
                grown.unwrap();
                let block = buffer.block().unwrap();
                assert_eq!((block.tag(), block.alloc_stream()), (TAG, home.id()), "{}", stack.name);
                assert!(buffer.capacity() >= 2 * KIB, "{}", stack.name);
                let host = buffer.to_host(home).unwrap();
                assert!(host.iter().all(|byte| *byte == 7), "{}", stack.name);
            } else {
                assert_not_tracked(stack, grown);
                assert_eq!(format!("{buffer:?}"), before, "{}", stack.name);
            }
        });
    }
}

#[test]
fn a_buffer_without_elements_grows_with_its_tag() {
    on_every_stack(|stack, runtime, home| {
        let mut column = DeviceBuffer::<u32>::uninit_tagged(runtime, home, 0, TAG).unwrap();
        assert_eq!((column.capacity(), column.try_grow(1).unwrap()), (0, false));
        column.reserve(3, home).unwrap();
        assert!(column.is_empty() && column.capacity() >= 3, "{}", stack.name);
        assert_eq!(column.block().unwrap().tag(), TAG);
        let at = column.block().unwrap().ptr();
        column.extend_from_host(&[1, 2], home).unwrap();
        column.extend_from_host(&[3], home).unwrap();
        assert_eq!(column.block().unwrap().ptr(), at, "there was room");
        let more = DeviceBuffer::from_host(runtime, home, &[4u32; 1000]).unwrap();
        column.extend_from(&more, home).unwrap();
        let host = column.to_host(home).unwrap();
        assert_eq!((&host[..4], host.len()), (&[1, 2, 3, 4][..], 1003), "{}", stack.name);
        column.truncate(2);
        assert_eq!(column.to_host(home).unwrap(), [1, 2]);
        column.extend_from_host(&[9], home).unwrap();
        assert_eq!(column.to_host(home).unwrap(), [1, 2, 9]);
    });
}

#[test]
fn beyond_a_budget_nothing_changes() {
    for (choose, room) in [
        // In place, what is more is charged; a copy needs both blocks.
        (over_pages as fn(DeviceRuntimeBuilder) -> DeviceRuntimeBuilder, 1 << 20),
        (|it| it.backend(Backend::Async), 768 << 10),
    ] {
        let rig = Rig::new();
        let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
        let runtime = choose(builder).build().unwrap();
        let budget = Budget::new(1 << 20);
        let tenant = runtime.tenant(|shared| BudgetLayer::on(&budget).layer(shared)).unwrap();
        let home = tenant.streams().acquire().unwrap();
        let mut buffer = DeviceBuffer::from_host(&tenant, &home, &[3u8; 256 * KIB]).unwrap();
        let before = format!("{buffer:?}");
        for _ in 0..2 {
            assert!(!buffer.try_grow((1 << 20) + 1).unwrap());
            let refused = buffer.reserve(1 << 20, &home).unwrap_err();
            assert!(
                matches!(refused, BufferError::Resource(ResourceError::OutOfBudget { .. })),
                "{refused}"
            );
            assert_eq!(
                (format!("{buffer:?}"), budget.reserved_bytes()),
                (before.clone(), 256 << 10)
            );
        }
        buffer.reserve(room - 256 * KIB, &home).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (256 * KIB, room));
        tenant.resource().reap_pending().unwrap();
        rig.device().synchronize().unwrap();
        tenant.resource().reap_pending().unwrap();
        assert_eq!(budget.reserved_bytes(), room as u64);
        assert!(buffer.to_host(&home).unwrap().iter().all(|byte| *byte == 3));
        drop((buffer, home));
        tenant.resource().reap_pending().unwrap();
        assert_eq!(budget.reserved_bytes(), 0);
        drop((tenant, runtime));
        rig.assert_clean();
    }
}

#[test]
fn a_buffer_that_a_launch_elsewhere_writes_does_not_grow() {
    on_every_stack(|stack, runtime, home| {
        let other = runtime.streams().acquire().unwrap();
        let mut buffer = DeviceBuffer::from_host(runtime, home, &[7u8; KIB]).unwrap();
        let mut recorder = LaunchRecorder::new_strict(other.id());
        recorder.write(&mut buffer);
        let prepared = recorder.prepare(runtime);
        if !runtime.resource().supports_block_use_tracking() {
            prepared.unwrap_err();
            buffer.reserve(KIB, home).unwrap();
            return;
        }
        let launch = prepared.unwrap();
        let before = format!("{buffer:?}");
        let refused = buffer.reserve(KIB, home).unwrap_err();
        assert!(is_window_conflict(&refused), "{}: {refused}", stack.name);
        assert_eq!(format!("{buffer:?}"), before, "{}", stack.name);
        if stack.grows_in_place {
            assert!(is_window_conflict(&buffer.try_grow(2 * KIB).unwrap_err()), "{}", stack.name);
        }
        let refused = buffer.extend_from_host(&[1; KIB], home).unwrap_err();
        assert!(is_window_conflict(&refused), "{}: {refused}", stack.name);
        assert_eq!(format!("{buffer:?}"), before, "{}", stack.name);
        launch.cancel().unwrap();
        buffer.extend_from_host(&[1; KIB], home).unwrap();
        assert_eq!(buffer.to_host(home).unwrap(), [[7; KIB], [1; KIB]].concat());
    });
}

#[test]
fn every_layer_counts_what_a_buffer_grows_by() {
    let rig = Rig::new();
    let sink = Arc::new(InMemorySink::new());
    let budget = Budget::new(1 << 20);
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    let runtime = over_pages(builder).statistics().log_to(sink.clone()).build().unwrap();
    let tenant = runtime.tenant(|shared| BudgetLayer::on(&budget).layer(shared)).unwrap();
    let home = tenant.streams().acquire().unwrap();
    let mut buffer = DeviceBuffer::<u8>::uninit_tagged(&tenant, &home, 4 * KIB, TAG).unwrap();
    buffer.reserve(12 * KIB, &home).unwrap();
    assert!(buffer.try_grow(64 * KIB).unwrap());
    assert_eq!(budget.reserved_bytes(), 64 << 10);
    assert_eq!(runtime.resource().usage().live, 64 << 10);
    let rows = sink.records();
    let actions: Vec<_> = rows.iter().map(|row| (row.action, row.bytes)).collect();
    let grow = RecordAction::Grow;
    assert_eq!(actions, [(RecordAction::Allocate, 4 << 10), (grow, 16 << 10), (grow, 64 << 10)]);
    let snapshot = runtime.statistics().unwrap().snapshot();
    assert_eq!(snapshot.bytes.current, 64 << 10);
    drop((buffer, home, tenant, runtime));
    assert_eq!(budget.reserved_bytes(), 0);
    rig.assert_clean();
}

#[test]
fn what_is_too_long_is_refused_and_changes_nothing() {
    on_every_stack(|stack, runtime, home| {
        let mut buffer = DeviceBuffer::from_host(runtime, home, &[7u32; KIB]).unwrap();
        let before = format!("{buffer:?}");
        for refused in [
            buffer.try_grow(usize::MAX).unwrap_err(),
            buffer.reserve(usize::MAX, home).unwrap_err(),
            buffer.reserve(usize::MAX / 2, home).unwrap_err(),
        ] {
            assert!(matches!(refused, BufferError::TooLong { .. }), "{}: {refused}", stack.name);
        }
        let too_large = buffer.reserve(1 << 50, home).unwrap_err();
        assert!(
            matches!(too_large, BufferError::Resource(ResourceError::InvalidSize { .. })),
            "{}: {too_large}",
            stack.name
        );
        assert_eq!(format!("{buffer:?}"), before, "{}", stack.name);
        let mut nothing = DeviceBuffer::<()>::uninit(runtime, home, usize::MAX).unwrap();
        assert!(matches!(nothing.reserve(1, home), Err(BufferError::TooLong { .. })));
        nothing.truncate(1);
        nothing.extend_from_host(&[()], home).unwrap();
        assert_eq!(nothing.len(), 2);
    });
}
