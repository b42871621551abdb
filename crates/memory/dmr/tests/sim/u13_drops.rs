//! U13: which drops wait for the device, over every stack, on a machine that works as late as it
//! may.

#![cfg(all(feature = "async", feature = "budget", feature = "direct"))]
#![cfg(all(feature = "logging", feature = "pool"))]

use std::sync::Arc;

use dmr::DeviceRuntimeBuilder;
use dmr::dmr_adaptors::guard::{DebugGuardLayer, GuardChecks};
use dmr::dmr_buffer::pinned::reap_orphaned_pinned;
use dmr::dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr::dmr_pinned::PinnedPool;
use dmr::prelude::*;
use dmr_sim::{Policy, Universe};
use dmr_testkit::Rig;

const LEN: usize = 4096;

/// The driver's calls that may keep the host waiting for work of the device.
const WAITING: [&str; 12] = [
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemcpy",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD32_v2",
    "cuMemsetD8_v2",
    "cuModuleUnload",
    "cuStreamSynchronize",
];

struct Stack {
    name: &'static str,
    choose: fn(DeviceRuntimeBuilder, &Rig) -> DeviceRuntimeBuilder,
    /// Freeing a block waits, and so does dropping its buffer.
    frees_wait: bool,
    /// The host frees the memory, which must come after the work that uses it.
    drop_waits: bool,
}

const STACKS: [Stack; 9] = [
    Stack {
        name: "direct",
        choose: |builder, _| builder.backend(Backend::Direct),
        frees_wait: false,
        drop_waits: true,
    },
    Stack {
        name: "direct-tracked",
        choose: |builder, _| builder.backend(Backend::DirectTracked),
        frees_wait: false,
        drop_waits: true,
    },
    Stack {
        name: "virtual",
        choose: |builder, rig| {
            let streams = Arc::clone(rig.streams());
            let pages = VirtualCudaResource::new(streams, VirtualConfig::new()).unwrap();
            builder.with_resource(Arc::new(pages))
        },
        frees_wait: false,
        drop_waits: true,
    },
    Stack {
        name: "async",
        choose: |builder, _| builder.backend(Backend::Async),
        frees_wait: false,
        drop_waits: false,
    },
    Stack {
        name: "async in layers",
        choose: |builder, _| {
            let log = Arc::new(dmr::dmr_adaptors::logging::NullSink);
            let builder = builder.backend(Backend::Async).statistics().log_to(log);
            builder.budget_on(&Budget::new(15 << 30))
        },
        frees_wait: false,
        drop_waits: false,
    },
    Stack {
        name: "pool over pages",
        choose: |builder, _| builder.backend(Backend::Pool),
        frees_wait: false,
        drop_waits: true,
    },
    Stack {
        name: "pool over blocks",
        choose: |builder, _| {
            builder.backend(Backend::Pool).pool_config(PoolConfig::fast().with_page_size(0))
        },
        frees_wait: false,
        drop_waits: false,
    },
    Stack {
        name: "async in a debug guard",
        choose: |builder, _| builder.backend(Backend::Async).debug_guard(),
        frees_wait: true,
        drop_waits: true,
    },
    Stack {
        name: "async in a debug guard that checks later",
        choose: |builder, _| {
            let later = |layer: DebugGuardLayer| layer.with_checks(GuardChecks::Deferred);
            builder.backend(Backend::Async).debug_guard_with(later)
        },
        frees_wait: false,
        drop_waits: true,
    },
];

fn on_every_stack(test: impl Fn(&Stack, &Rig, DeviceRuntime)) {
    for stack in &STACKS {
        let rig = Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().unwrap());
        let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
        let runtime = (stack.choose)(builder, &rig).build().unwrap();
        test(stack, &rig, runtime);
        reap_orphaned_pinned().unwrap();
        rig.assert_clean();
    }
}

/// The calls since the last reset that may have waited.
fn waits(rig: &Rig) -> Vec<(&'static str, u64)> {
    let calls = rig.universe().calls();
    calls.iter().filter(|(call, _)| WAITING.contains(call)).collect()
}

/// The values of a program while its work is in flight on two streams.
struct Held {
    leases: [StreamLease; 2],
    buffers: [DeviceBuffer<u8>; 2],
    pinned: PinnedBuffer<u8>,
    launch: Option<dmr::dmr_launch::PreparedLaunch>,
}

fn hold(runtime: &DeviceRuntime) -> Held {
    let leases = [(); 2].map(|()| runtime.streams().acquire().unwrap());
    let mut buffers = [0, 1].map(|at| DeviceBuffer::zeroed(runtime, &leases[at], LEN).unwrap());
    let pinned = PinnedBuffer::from_slice(runtime, &leases[1], &[7u8; LEN]).unwrap();
    pinned.copy_to_device(&mut buffers[1], &leases[1]).unwrap();
    let mut recorder = LaunchRecorder::new_strict(leases[1].id());
    recorder.read(&buffers[0]);
    let launch = recorder.prepare(runtime).ok();
    assert_eq!(launch.is_some(), runtime.resource().supports_block_use_tracking());
    Held { leases, buffers, pinned, launch }
}

#[test]
fn dropping_buffers_pinned_memory_leases_and_launches_waits_for_nothing() {
    on_every_stack(|stack, rig, runtime| {
        // The first check of a debug guard waits for its own stream, which clears the results.
        drop(hold(&runtime));
        for memory_first in [true, false] {
            let Held { leases, buffers, pinned, launch } = hold(&runtime);
            rig.universe().reset_calls();
            match memory_first {
                true => drop((buffers, pinned, leases, launch)),
                false => drop((launch, leases, pinned, buffers)),
            }
            let waits = waits(rig);
            assert_eq!(!waits.is_empty(), stack.frees_wait, "{}: {waits:?}", stack.name);
        }
        runtime.resource().reap_pending().unwrap();
        PinnedPool::of(runtime.streams()).reap_pending().unwrap();
    });
}

#[test]
fn dropping_a_stack_waits_only_where_the_host_frees_the_memory() {
    on_every_stack(|stack, rig, runtime| {
        drop(hold(&runtime));
        rig.universe().reset_calls();
        drop(runtime);
        let waits = waits(rig);
        assert_eq!(!waits.is_empty(), stack.drop_waits, "{}: {waits:?}", stack.name);
    });
}

#[test]
fn dropping_a_stack_without_memory_does_not_wait_for_the_work_of_others() {
    on_every_stack(|stack, rig, runtime| {
        let lease = rig.stream();
        rig.delay(&lease);
        rig.universe().reset_calls();
        drop(runtime);
        assert_eq!(waits(rig), [], "{}", stack.name);
    });
}

/// The one drop of a user that waits: else the launch would be in no ledger.
#[test]
fn dropping_a_launch_whose_event_cannot_be_recorded_waits_for_its_stream() {
    on_every_stack(|stack, rig, runtime| {
        let Held { launch, leases, buffers, pinned } = hold(&runtime);
        rig.universe().reset_calls();
        // Where no uses are tracked there is no launch, and nothing to record.
        let waited = launch.as_ref().map(|_| {
            rig.universe().fail_nth("cuEventRecord", 1, 999);
            ("cuStreamSynchronize", 1)
        });
        drop(launch);
        assert_eq!(waits(rig), waited.as_slice(), "{}", stack.name);
        drop((leases, buffers, pinned));
    });
}
