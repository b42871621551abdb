//! A6: cold buffers move to the host when memory runs out, and come back with their bytes.

use crate::context::{ALL, BYTES, Below, Context, LEN, assert_all};
use dmr_buffer::DeviceBuffer;
use dmr_core::DeviceMemoryResource;
use dmr_pinned::PinnedPool;
use dmr_spill::{Amount, Spill, SpillError};
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

fn amount(buffers: u64) -> Amount {
    Amount { bytes: buffers * BYTES, buffers }
}

#[test]
fn an_allocation_that_a_budget_refuses_spills_the_coldest_buffers() {
    for below in ALL {
        let rig = Rig::new();
        let ctx = Context::new(&rig, below, 4);
        let stream = rig.stream();
        let cold: Vec<_> = (0..4).map(|value| ctx.spillable(&stream, value)).collect();
        // The first becomes the warmest.
        drop(cold[0].on_device(&stream).unwrap());

        let more = [ctx.buffer(&stream, 10), ctx.buffer(&stream, 11)];
        let places: Vec<_> = cold.iter().map(dmr_spill::Spillable::is_spilled).collect();
        assert_eq!(places, [false, true, true, false], "{below:?}");
        let stats = ctx.spill.stats();
        assert_eq!((stats.cold, stats.on_host, stats.in_use), (amount(2), amount(2), amount(0)));
        assert_eq!((stats.spilled, stats.restored), (amount(2), amount(0)));

        drop(more);
        for (buffer, value) in cold.iter().zip(0..) {
            assert_all(&buffer.on_device(&stream).unwrap(), value, &stream);
        }
        assert_eq!(ctx.spill.stats().restored.buffers, 2, "{below:?}");
        drop((cold, stream));
        ctx.assert_clean(rig);
    }
}

#[test]
fn an_allocation_spills_a_sixteenth_of_what_is_cold_at_least() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Async, 48);
    let stream = rig.stream();
    let cold: Vec<_> = (0..48).map(|value| ctx.spillable(&stream, value)).collect();
    let small = DeviceBuffer::<u32>::uninit(&ctx, &stream, 1).unwrap();
    assert_eq!(ctx.spill.stats().on_host, amount(3));
    drop((small, cold, stream));
    ctx.assert_clean(rig);
}

#[test]
fn a_restore_spills_others_and_what_was_written_before_comes_back() {
    for below in ALL {
        let rig = Rig::new();
        let ctx = Context::new(&rig, below, 2);
        let stream = rig.stream();
        let other = rig.stream();
        let mut buffers: Vec<_> = (0..6).map(|value| ctx.spillable(&stream, value)).collect();
        assert_eq!(ctx.spill.stats().on_host, amount(4));
        for (buffer, value) in buffers.iter_mut().zip(100..) {
            let mut guard = buffer.on_device_mut(&other).unwrap();
            guard.fill(value, &stream).unwrap();
        }
        for (buffer, value) in buffers.iter().zip(100..) {
            assert_all(&buffer.on_device(&stream).unwrap(), value, &other);
        }
        assert!(ctx.spill.stats().spilled.buffers >= 10, "{:?}", ctx.spill.stats());
        drop((buffers, stream, other));
        ctx.assert_clean(rig);
    }
}

#[test]
fn a_guard_keeps_its_buffer_on_the_device_and_a_refusal_says_what_guards_hold() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Async, 2);
    let stream = rig.stream();
    let [mut a, b, c] = [0, 1, 2].map(|value| ctx.spillable(&stream, value));
    assert!(a.is_spilled());
    let held = b.on_device(&stream).unwrap();
    let also = c.on_device(&stream).unwrap();
    let Err(refused) = a.on_device(&stream) else { panic!("there is no room") };
    let message = refused.to_string();
    assert!(matches!(refused, SpillError::NoRoom { bytes: BYTES, .. }), "{message}");
    assert!(message.contains("0 B in 0 cold buffers can be spilled, 2 MiB in 2"), "{message}");
    assert!(message.contains("2 MiB held by \"cold\""), "{message}");
    assert!(a.on_device_mut(&stream).is_err());
    assert!(DeviceBuffer::<u32>::uninit(&ctx, &stream, LEN).is_err());

    let freed = ctx.spill.free(BYTES).unwrap_err();
    let SpillError::NotEnough { requested: BYTES, spilled: 0, stats, problem: None, .. } = freed
    else {
        panic!("{freed}");
    };
    assert_eq!((stats.in_use, stats.on_host), (amount(2), amount(1)));
    drop(also);
    assert_all(&a.on_device(&stream).unwrap(), 0, &stream);
    assert!(c.is_spilled());
    assert_all(&held, 1, &stream);
    drop(held);
    drop((a, b, c, stream));
    ctx.assert_clean(rig);
}

#[test]
fn free_spills_no_more_than_it_needs() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Pool, 8);
    let stream = rig.stream();
    let buffers = [(); 4].map(|()| ctx.spillable(&stream, 7));
    assert_eq!(ctx.spill.free(0).unwrap(), 0);
    assert_eq!(ctx.spill.free(BYTES + 1).unwrap(), 2 * BYTES);
    assert_eq!(ctx.spill.free(1).unwrap(), BYTES);
    let Err(SpillError::NotEnough { spilled: BYTES, .. }) = ctx.spill.free(2 * BYTES) else {
        panic!("one is left");
    };
    ctx.resource().reap_pending().unwrap();
    assert_eq!(ctx.budget.reserved_bytes(), 0);
    drop((buffers, stream));
    ctx.assert_clean(rig);
}

#[test]
fn a_buffer_of_other_streams_or_without_tracking_is_refused_and_returned() {
    let rig = Rig::new();
    let other = Rig::new();
    let ctx = Context::new(&rig, Below::Tracked, 2);
    let stream = rig.stream();
    let away = other.stream();
    let elsewhere = Context::new(&other, Below::Async, 2);
    let refused = ctx.spill.insert(elsewhere.buffer(&away, 3)).unwrap_err();
    assert_eq!(refused.error, SpillError::OtherPool);
    assert_all(&refused.buffer, 3, &away);
    drop(refused);

    let direct = dmr_cuda_direct::DirectCudaResource::new(rig.streams().clone());
    let untracked = Plain(std::sync::Arc::new(direct), rig.streams().clone());
    let buffer = DeviceBuffer::from_host(&untracked, &stream, &[1_u8, 2]).unwrap();
    let refused = ctx.spill.insert(buffer).unwrap_err();
    assert_eq!(refused.error, SpillError::Untracked);
    assert_eq!(refused.buffer.to_host(&stream).unwrap(), [1, 2]);
    drop((refused, stream, away));
    untracked.0.reap_pending().unwrap();
    drop(untracked);
    elsewhere.assert_clean(other);
    ctx.assert_clean(rig);
}

struct Plain(std::sync::Arc<dyn DeviceMemoryResource>, std::sync::Arc<dmr_streams::StreamPool>);

impl DeviceContext for Plain {
    fn resource(&self) -> &std::sync::Arc<dyn DeviceMemoryResource> {
        &self.0
    }

    fn streams(&self) -> &std::sync::Arc<dmr_streams::StreamPool> {
        &self.1
    }
}

#[test]
fn a_leaked_guard_is_an_error_and_not_a_wait_for_ever() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Tracked, 2);
    let stream = rig.stream();
    let mut shared = ctx.spillable(&stream, 1);
    std::mem::forget(shared.on_device(&stream).unwrap());
    assert_eq!(shared.on_device_mut(&stream).unwrap_err(), SpillError::Unavailable);
    assert_all(&shared.on_device(&stream).unwrap(), 1, &stream);
    assert!(ctx.spill.free(1).is_err());
    drop((shared, stream));
    // The leaked guard keeps the buffer, which keeps its memory.
    assert_eq!(ctx.resource().usage().live, BYTES);
}

#[test]
fn buffers_registries_and_contexts_are_dropped_in_any_order() {
    for order in 0..6 {
        let rig = Rig::new();
        let ctx = Context::new(&rig, Below::Pool, 2);
        let stream = rig.stream();
        let buffers: Vec<_> = (0..4).map(|value| ctx.spillable(&stream, value)).collect();
        let resource = std::sync::Arc::clone(ctx.resource());
        match order {
            0 => drop((ctx, buffers, stream)),
            1 => drop((buffers, ctx, stream)),
            2 => drop((stream, ctx, buffers)),
            3 => drop((stream, buffers, ctx)),
            4 => {
                drop(ctx);
                // The registry of the buffers spills for the restore.
                assert_all(&buffers[0].on_device(&stream).unwrap(), 0, &stream);
                drop((stream, buffers));
            }
            _ => {
                let spill: Spill = ctx.spill.clone();
                drop((buffers, ctx, stream));
                assert_eq!(spill.stats().cold, amount(0));
                assert!(spill.free(1).is_err());
            }
        }
        resource.reap_pending().unwrap();
        PinnedPool::of(rig.streams()).reap_pending().unwrap();
        assert_eq!(resource.bytes_outstanding(), 0);
        drop(resource);
        rig.assert_clean();
    }
}

#[test]
fn an_empty_buffer_is_never_spilled() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Tracked, 2);
    let stream = rig.stream();
    let empty = DeviceBuffer::<u32>::uninit(&ctx, &stream, 0).unwrap();
    let empty = ctx.spill.insert(empty).unwrap();
    assert!(ctx.spill.free(1).is_err());
    assert!(!empty.is_spilled() && empty.on_device(&stream).unwrap().is_empty());
    drop((empty, stream));
    ctx.assert_clean(rig);
}

#[test]
fn a_buffer_that_was_exchanged_through_its_guard_is_restored_as_it_is_then() {
    let rig = Rig::new();
    let ctx = Context::new(&rig, Below::Tracked, 4);
    let stream = rig.stream();
    let mut first = ctx.spillable(&stream, 1);
    let small = DeviceBuffer::from_host(&ctx, &stream, &[5_u32; 10]).unwrap();
    let taken = std::mem::replace(&mut *first.on_device_mut(&stream).unwrap(), small);
    assert_all(&taken, 1, &stream);
    assert_eq!(ctx.spill.free(1).unwrap(), 40);
    assert_eq!(first.on_device(&stream).unwrap().to_host(&stream).unwrap(), [5; 10]);
    drop((first, taken, stream));
    ctx.assert_clean(rig);
}
