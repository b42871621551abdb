//! The driver calls of each step, other than the query of the current context.

use crate::support::{TAG, resource};
use dmr_core::{DeviceMemoryResource, DeviceOps, StreamId};
use dmr_sim::{Policy, Universe};
use dmr_testkit::Rig;

/// Returns the calls since the last time, without those that query the context and set the capture
/// mode.
fn calls(universe: &Universe) -> Vec<(String, u64)> {
    let calls = universe.calls();
    universe.reset_calls();
    let names = [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressFree",
        "cuStreamIsCapturing",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
    ];
    let counts: Vec<_> = names
        .into_iter()
        .map(|name| (name.to_owned(), calls.count(name)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let known: u64 = counts.iter().map(|(_, count)| count).sum();
    let binding = ["cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode"].map(|c| calls.count(c));
    assert_eq!(known + binding.iter().sum::<u64>(), calls.total(), "{calls:?}");
    counts
}

fn expected(calls: &[(&str, u64)]) -> Vec<(String, u64)> {
    calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn a_block_is_one_call_of_each_kind_and_one_event_stands_for_all_that_a_stream_retired() {
    const BLOCKS: u64 = 10;
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let stream = rig.stream();
    let _lent = stream.stream().clone();
    rig.device().bind().unwrap();
    // The events of the stream are made once: one is recorded while another is held.
    for _ in 0..2 {
        let first = resource.allocate(1, stream.id(), TAG).unwrap();
        resource.deallocate(first).unwrap();
        resource.reap_pending().unwrap();
    }
    rig.universe().reset_calls();
    let blocks: Vec<_> =
        (0..BLOCKS).map(|_| resource.allocate(1 << 30, stream.id(), TAG).unwrap()).collect();
    let taken = expected(&[
        ("cuMemAddressReserve", BLOCKS),
        ("cuMemCreate", BLOCKS),
        ("cuMemMap", BLOCKS),
        ("cuMemSetAccess", BLOCKS),
        ("cuStreamIsCapturing", BLOCKS),
    ]);
    assert_eq!(calls(rig.universe()), taken);
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    assert_eq!(calls(rig.universe()), expected(&[("cuStreamIsCapturing", BLOCKS)]));
    assert_eq!(resource.reap_pending().unwrap(), BLOCKS << 30);
    let freed = expected(&[
        ("cuMemUnmap", BLOCKS),
        ("cuMemRelease", BLOCKS),
        ("cuMemAddressFree", BLOCKS),
        ("cuStreamIsCapturing", 1),
        ("cuEventRecord", 1),
        ("cuEventSynchronize", 1),
    ]);
    assert_eq!(calls(rig.universe()), freed);
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn pages_cost_what_they_are_asked_for_and_nothing_else() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    rig.device().bind().unwrap();
    rig.universe().reset_calls();
    let range = pages.reserve(4 * page).unwrap();
    let base = range.base();
    assert_eq!(calls(rig.universe()), expected(&[("cuMemAddressReserve", 1)]));
    let memory = pages.create(page, TAG).unwrap();
    assert_eq!(calls(rig.universe()), expected(&[("cuMemCreate", 1)]));
    pages.map(&memory, base).unwrap();
    assert_eq!(calls(rig.universe()), expected(&[("cuMemMap", 1), ("cuMemSetAccess", 1)]));
    pages.unmap(&memory, base).unwrap();
    assert_eq!(calls(rig.universe()), expected(&[("cuMemUnmap", 1)]));
    pages.destroy(memory).unwrap();
    assert_eq!(calls(rig.universe()), expected(&[("cuMemRelease", 1)]));
    pages.release(range).unwrap();
    assert_eq!(calls(rig.universe()), expected(&[("cuMemAddressFree", 1)]));
    assert_eq!(resource.usage().reserved, 0);
    assert_eq!(calls(rig.universe()), []);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_busy_stream_is_queried_once_for_all_blocks_that_wait_for_it() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let resource = resource(&rig);
    let stream = rig.stream();
    let blocks = [(); 20].map(|()| resource.allocate(1, stream.id(), TAG).unwrap());
    // A question makes the simulated device do a little of this.
    for _ in 0..500 {
        rig.ops().fill_pattern(&blocks[0], 0..1, 1, stream.id()).unwrap();
    }
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    rig.universe().reset_calls();
    assert_eq!(resource.try_reap(), Ok(0));
    assert_eq!(rig.universe().calls().count("cuEventQuery"), 1);
    assert_eq!(resource.reap_pending(), Ok(20));
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn dropping_the_resource_frees_what_is_retired() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    for _ in 0..3 {
        let block = resource.allocate(100, StreamId::DEFAULT, TAG).unwrap();
        resource.deallocate(block).unwrap();
    }
    assert!(resource.usage().retired > 0);
    drop(resource);
    rig.assert_clean();
}

/// The driver does not look at the end of a range: it would map there.
#[test]
fn addresses_that_were_not_set_aside_do_not_come_to_the_driver() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let memory = pages.create(2 * page, TAG).unwrap();
    let range = pages.reserve(3 * page).unwrap();
    let base = range.base();
    rig.universe().reset_calls();
    for address in [base - page, base + 2 * page, base + 3 * page, u64::MAX - page, 0] {
        assert!(pages.map(&memory, address).is_err(), "{address:#x}");
    }
    assert_eq!(rig.universe().calls().count("cuMemMap"), 0);
    pages.map(&memory, base + page).unwrap();
    pages.unmap(&memory, base + page).unwrap();
    pages.release(range).unwrap();
    rig.universe().reset_calls();
    assert!(pages.map(&memory, base).is_err());
    assert_eq!(rig.universe().calls().count("cuMemMap"), 0);
    pages.destroy(memory).unwrap();
}
