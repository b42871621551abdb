//! E4: an allocation that is refused is in the recording once, whichever limit and resource has
//! refused it.

#![cfg(all(feature = "budget", feature = "pool", feature = "shared", feature = "spill"))]

use std::sync::Arc;

use dmr::DeviceRuntimeBuilder;
use dmr::dmr_adaptors::budget::BudgetLayer;
use dmr::dmr_core::{Access, BlockUse};
use dmr::dmr_recorder::{RecorderConfig, start, stream_number};
use dmr::dmr_shared_limit::SharedLimitConfig;
use dmr::dmr_streams::Tracked;
use dmr::prelude::*;
use dmr_recording::{Event, StreamNumber};
use dmr_testkit::{HeldStream, Rig};

use crate::recordings::{Read, Recording};

const MIB: usize = 1 << 20;
const CACHE: AllocTag = AllocTag::new("cache");
const OUT_OF_MEMORY: i32 = 2;

/// The refusal of a request for the tag `cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    stream: StreamNumber,
    limit: String,
    limit_bytes: u64,
}

/// Returns all refusals since the recorder was started.
fn refusals() -> Vec<Seen> {
    let read = Read::now();
    let seen = read.records.iter().filter_map(|record| match record.event {
        Event::Refused(refused) => {
            assert_eq!(read.text(refused.tag), "cache");
            Some(Seen {
                bytes: refused.bytes,
                stream: refused.stream,
                limit: read.text(refused.limit).to_owned(),
                limit_bytes: refused.limit_bytes,
            })
        }
        _ => None,
    });
    seen.collect()
}

/// Requests more than there is, and asserts that the limit's refusal is recorded once.
fn refuse(resource: &dyn DeviceMemoryResource, bytes: usize, stream: StreamId, limit: &str) {
    let before = refusals().len();
    let error = resource.allocate(bytes, stream, CACHE).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let seen = refusals();
    assert_eq!(seen.len(), before + 1, "{limit}: {seen:?}");
    let last = &seen[before];
    assert_eq!((last.bytes, last.stream), (bytes as u64, stream_number(stream)), "{last:?}");
    assert_eq!(last.limit, limit);
}

fn runtime(rig: &Rig, backend: Backend) -> DeviceRuntimeBuilder {
    DeviceRuntime::builder(rig.ordinal()).backend(backend).with_streams(Arc::clone(rig.streams()))
}

#[test]
fn what_the_device_refuses_each_backend_is_recorded_once_also_under_the_debug_guard() {
    const ALL: [Backend; 4] =
        [Backend::Async, Backend::Direct, Backend::DirectTracked, Backend::Pool];
    for backend in ALL {
        for is_guarded in [false, true] {
            let _recording = Recording::begin();
            let rig = Rig::small();
            let builder = runtime(&rig, backend).flight_recorder(RecorderConfig::new());
            let builder = if is_guarded { builder.debug_guard() } else { builder };
            let gpu = builder.build().unwrap();
            let stream = gpu.streams().acquire().unwrap();
            let total = gpu.device().total_memory() as usize;
            let held = gpu.resource().allocate(2 * MIB, stream.id(), CACHE).unwrap();
            let bytes = total - MIB;
            match is_guarded {
                true => refuse_with_red_zones(&gpu, bytes, &stream),
                false => refuse(gpu.resource(), bytes, stream.id(), "device memory"),
            }
            // A pool keeps the pages that it got, and the guard may need memory of the driver.
            gpu.resource().trim_to(0).unwrap();
            gpu.resource().deallocate(held).unwrap();
            drop((stream, gpu));
            rig.assert_clean();
        }
    }
}

/// As [`refuse`], under the guard, which requests more.
fn refuse_with_red_zones(gpu: &DeviceRuntime, bytes: usize, stream: &StreamLease) {
    let error = gpu.resource().allocate(bytes, stream.id(), CACHE).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let [seen] = &refusals()[..] else { panic!("one refusal: {:?}", refusals()) };
    assert_eq!(seen.limit, "device memory");
    assert!(seen.bytes > bytes as u64);
}

#[test]
fn what_the_device_refuses_a_resource_of_its_own_is_recorded_once() {
    let _recording = Recording::begin();
    let rig = Rig::small();
    start(RecorderConfig::new()).unwrap();
    let streams = || Arc::clone(rig.streams());
    let stream = rig.stream();
    let total = rig.device().total_memory() as usize;
    let config = VirtualConfig::default();
    let pages = VirtualCudaResource::new(streams(), config).unwrap();
    let held = pages.allocate(2 * MIB, stream.id(), CACHE).unwrap();
    refuse(&pages, total, stream.id(), "device memory");
    pages.deallocate(held).unwrap();
    pages.reap_pending().unwrap();
    drop((pages, stream));
    rig.assert_clean();
}

#[test]
fn what_a_limit_of_a_resource_refuses_is_recorded_once_with_its_name() {
    // The driver may round the limit of its pool up to 32 MiB.
    const BYTES: usize = 64 * MIB;
    let _recording = Recording::begin();
    let rig = Rig::new();
    start(RecorderConfig::new()).unwrap();
    let streams = || Arc::clone(rig.streams());
    let stream = rig.stream();
    let config = AsyncConfig::default().with_max_bytes(4 * MIB);
    let limited = AsyncCudaResource::new(streams(), config).unwrap();
    refuse(&limited, BYTES, stream.id(), "AsyncConfig::max_bytes");
    // It asks its upstream, whose refusals are the pool's.
    let pool = PoolResource::new(limited, streams(), PoolConfig::fast()).unwrap();
    refuse(&pool, BYTES, stream.id(), "AsyncConfig::max_bytes");
    let config = PoolConfig::fast().with_maximum_size(4 << 20);
    let unlimited = AsyncCudaResource::new(streams(), AsyncConfig::default()).unwrap();
    let small = PoolResource::new(unlimited, streams(), config).unwrap();
    refuse(&small, BYTES, stream.id(), "PoolConfig::maximum_size");
    drop((small, pool, stream));
    rig.assert_clean();
}

/// A resource that is refused, and asks again after it has freed what it can.
#[test]
fn a_request_that_a_resource_makes_again_is_recorded_once() {
    let _recording = Recording::begin();
    let rig = Rig::small();
    start(RecorderConfig::new()).unwrap();
    let [home, reader] = [(); 2].map(|()| rig.stream());
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let budget = Budget::new(3 << 20);
    let bounded = BudgetLayer::on(&budget).layer(direct);
    let tracked = Tracked::new(bounded, Arc::clone(rig.streams())).unwrap();
    let block = tracked.allocate(2 * MIB, home.id(), CACHE).unwrap();
    let held = HeldStream::hold(rig.streams(), &reader);
    let uses = [BlockUse::new(block.id(), Access::Read)];
    let open = tracked.prepare_uses(&uses, reader.id()).unwrap();
    tracked.finish_uses(open).unwrap();
    tracked.deallocate(block).unwrap();
    refuse(&tracked, 2 * MIB, home.id(), "budget");
    drop(held);
    tracked.reap_pending().unwrap();
    drop((tracked, home, reader));
    rig.assert_clean();
}

#[test]
fn budgets_and_shared_limits_record_what_they_refuse_above_and_below_a_pool() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for is_shared in [false, true] {
        for backend in [Backend::Pool, Backend::Async, Backend::DirectTracked] {
            let _recording = Recording::begin();
            let rig = Rig::new();
            let uuid = rig.device().uuid().unwrap();
            let config = SharedLimitConfig::new(uuid, 64 << 20).with_directory(folder.path());
            let budget = match is_shared {
                true => Budget::shared(&config).unwrap(),
                false => Budget::new(64 << 20).named(AllocTag::new("tenant")),
            };
            let builder = runtime(&rig, backend).flight_recorder(RecorderConfig::new());
            let gpu = builder.budget_on(&budget).build().unwrap();
            let stream = gpu.streams().acquire().unwrap();
            let limit = if is_shared { "shared limit" } else { "budget tenant" };
            refuse(gpu.resource(), 80 * MIB, stream.id(), limit);
            let above = Budget::new(MIB as u64).named(AllocTag::new("above"));
            let above = BudgetLayer::on(&above).layer(Arc::clone(gpu.resource()));
            refuse(&above, 2 * MIB, stream.id(), "budget above");
            drop((above, stream, gpu));
            rig.assert_clean();
        }
    }
}

#[test]
fn sim_refusals_of_pinned_memory_are_recorded_by_its_budget_and_by_the_host() {
    let _recording = Recording::begin();
    let rig = Rig::simulated();
    let builder = runtime(&rig, Backend::Pool).pinned_budget(8 << 20);
    let gpu = builder.flight_recorder(RecorderConfig::new()).build().unwrap();
    let stream = gpu.streams().acquire().unwrap();
    let buffer = PinnedBuffer::from_slice_tagged(&gpu, &stream, &vec![0_u8; 16 * MIB], CACHE);
    assert!(buffer.is_err());
    let [seen] = &refusals()[..] else { panic!("{:?}", refusals()) };
    assert_eq!((seen.bytes, seen.limit.as_str()), (16 << 20, "budget pinned memory"));
    assert_eq!(seen.limit_bytes, 8 << 20);
    let pinned = PinnedResource::new(Arc::clone(rig.streams()), PinnedKind::Cached);
    for nth in 1..=2 {
        rig.universe().fail_nth("cuMemHostAlloc", nth, OUT_OF_MEMORY);
    }
    refuse(&pinned, 3 * MIB, stream.id(), "page-locked host memory");
    drop((pinned, stream, gpu));
    rig.assert_clean();
}
