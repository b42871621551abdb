//! U7, U9: what `Tracked` keeps is deallocated upstream before memory is refused and when
//! `Tracked` is dropped, ordered after every use.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError, StreamId,
    UseTokens, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_sim::{Policy, Universe};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

/// Streams that run as late as they may, on a device with 64 MiB.
fn universe() -> Universe {
    Universe::builder().policy(Policy::Lazy).capacity(64 << 20).build().unwrap()
}

/// Upstream queues its free on the home stream, where a free that is not ordered after a
/// use is a race.
fn over_async(rig: &Rig) -> Tracked<AsyncCudaResource> {
    let inner = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    Tracked::new(inner, Arc::clone(rig.streams())).unwrap()
}

fn allocate(resource: &dyn DeviceMemoryResource, bytes: usize, home: StreamId) -> DeviceBlock {
    resource.allocate(bytes, home, AllocTag::UNTAGGED).unwrap()
}

/// Writes the block on this stream, and leaves the window open.
fn write(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    block: &DeviceBlock,
    on: StreamId,
) -> UseTokens {
    let window = resource.prepare_block_use(block.id(), on, Access::Write).unwrap();
    rig.ops().fill_pattern(block, 0..block.bytes(), 7, on).unwrap();
    window
}

/// The time at which a window closes, relative to the deallocation of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closes {
    Before,
    After,
    Never,
}

/// Deallocates a block that another stream, or its home stream, was writing.
fn retire(rig: &Rig, resource: &dyn DeviceMemoryResource, on: [StreamId; 2], closes: Closes) {
    let [home, user] = on;
    let block = allocate(resource, MIB, home);
    let window = write(rig, resource, &block, user);
    if closes == Closes::Before {
        resource.finish_uses(window).unwrap();
        resource.deallocate(block).unwrap();
        return;
    }
    resource.deallocate(block).unwrap();
    if closes == Closes::After {
        resource.finish_uses(window).unwrap();
    }
}

#[test]
fn dropped_or_taken_apart_it_frees_what_it_keeps_after_every_use() {
    for taken_apart in [false, true] {
        for at_home in [false, true] {
            for closes in [Closes::Before, Closes::After] {
                let rig = Rig::in_universe(&universe());
                let resource = over_async(&rig);
                let [home, other] = [rig.stream(), rig.stream()];
                let user = if at_home { &home } else { &other };
                retire(&rig, &resource, [home.id(), user.id()], closes);
                if taken_apart {
                    let inner = resource.into_upstream();
                    assert_eq!(inner.usage().live, 0, "{user:?} {closes:?}");
                } else {
                    drop(resource);
                }
                drop((home, other));
                rig.assert_clean();
            }
        }
    }
}

#[test]
fn a_reap_returns_the_bytes_of_every_block_that_it_frees() {
    let reaps: [fn(&Tracked<AsyncCudaResource>) -> _; 2] =
        [|resource| resource.try_reap(), |resource| resource.reap_pending()];
    for reap in reaps {
        let rig = Rig::in_universe(&universe());
        let resource = over_async(&rig);
        let [home, other] = [rig.stream(), rig.stream()];
        let blocks = [MIB, 2 * MIB, 4 * MIB].map(|bytes| allocate(&resource, bytes, home.id()));
        for block in blocks {
            let window = write(&rig, &resource, &block, other.id());
            resource.finish_uses(window).unwrap();
            resource.deallocate(block).unwrap();
        }
        rig.device().synchronize().unwrap();
        assert_eq!(reap(&resource), Ok(7 << 20));
        assert_eq!((reap(&resource), resource.bytes_outstanding()), (Ok(0), 0));
        drop((resource, home, other));
        rig.assert_clean();
    }
}

#[test]
fn a_block_that_upstream_refuses_stays_retired_until_upstream_frees_it() {
    let rig = Rig::in_universe(&universe());
    let resource = over_async(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    retire(&rig, &resource, [home.id(), other.id()], Closes::Before);
    rig.device().synchronize().unwrap();
    rig.universe().fail_nth("cuMemFreeAsync", 1, 999);
    let error = resource.try_reap().unwrap_err();
    assert!(matches!(error, ResourceError::Driver { call: "cuMemFreeAsync", .. }), "{error}");
    assert_eq!((resource.usage().live, resource.usage().retired), (0, MIB as u64));
    assert_eq!(resource.try_reap(), Ok(MIB as u64));
    assert_eq!(resource.bytes_outstanding(), 0);
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn a_block_with_an_open_window_is_leaked_when_it_is_dropped() {
    let rig = Rig::in_universe(&universe());
    let resource = over_async(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    retire(&rig, &resource, [home.id(), other.id()], Closes::Never);
    let inner = resource.into_upstream();
    assert_eq!((inner.usage().live, inner.usage().retired), (MIB as u64, 0));
    // No free was queued under the work.
    assert_eq!(rig.verdict(), Ok(()));
}

/// The oldest retired block cannot go, so a look at the oldest is not enough.
#[test]
fn memory_is_not_refused_while_a_retired_block_is_done_with() {
    let rig = Rig::in_universe(&universe());
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let resource = Tracked::new(direct, Arc::clone(rig.streams())).unwrap();
    let [home, other] = [rig.stream(), rig.stream()];
    let in_use = allocate(&resource, MIB, home.id());
    let window = write(&rig, &resource, &in_use, other.id());
    resource.deallocate(in_use).unwrap();
    let large = allocate(&resource, 40 * MIB, home.id());
    let write = write(&rig, &resource, &large, other.id());
    resource.finish_uses(write).unwrap();
    resource.deallocate(large).unwrap();
    rig.device().synchronize().unwrap();
    let again = allocate(&resource, 40 * MIB, home.id());
    assert_eq!((resource.usage().live, resource.usage().retired), (40 << 20, 1 << 20));
    // What is refused is in use.
    let refused = resource.allocate(40 * MIB, home.id(), AllocTag::UNTAGGED);
    assert!(matches!(refused, Err(ResourceError::OutOfMemory { .. })), "{refused:?}");
    resource.finish_uses(window).unwrap();
    resource.reap_pending().unwrap();
    // With nothing retired there is nothing to try again for.
    rig.universe().reset_calls();
    resource.allocate(40 * MIB, home.id(), AllocTag::UNTAGGED).unwrap_err();
    assert_eq!(rig.universe().calls().count("cuMemAlloc_v2"), 1);
    resource.deallocate(again).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.bytes_outstanding(), 0);
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn it_is_on_the_device_of_its_inner_resource() {
    // Devices of other tests come and go. Of two at once, one has another ordinal than 0.
    let [first, second] = [(); 2].map(|()| Rig::in_universe(&universe()));
    let rig = if first.ordinal() > 0 { first } else { second };
    let tracked = over_async(&rig);
    assert!(rig.ordinal() > 0);
    assert_eq!(tracked.device_ordinal(), rig.ordinal());
}
