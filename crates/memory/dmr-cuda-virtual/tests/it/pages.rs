//! Addresses and pages are reserved separately, on the real and the simulated driver: mapped
//! addresses are memory, the same memory at each of them, and nothing is lost or freed too early.

use crate::support::{TAG, resource, take_back, view};
use dmr_core::error::SizeProblem;
use dmr_core::{DeviceMemoryResource, DeviceOps, ResourceError, ResourceResult, Usage};
use dmr_testkit::Rig;

fn reserved(resource: &impl DeviceMemoryResource) -> u64 {
    resource.usage().reserved
}

#[test]
fn one_memory_is_the_same_bytes_at_every_address_it_is_mapped_at() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let stream = rig.stream();
    let range = pages.reserve(4 * page).unwrap();
    assert!(range.base().is_multiple_of(page));
    let first = range.base();
    let second = range.base() + 2 * page;
    let memory = pages.create(2 * page, TAG).unwrap();
    pages.map(&memory, first).unwrap();
    let block = view(&rig, first, &memory, stream.id());
    let all = 0..block.bytes();
    rig.ops().fill_pattern(&block, all.clone(), 0x0102_0304, stream.id()).unwrap();
    // Mapped again while work uses it.
    pages.map(&memory, second).unwrap();
    let other = view(&rig, second, &memory, stream.id());
    rig.ops().check_pattern(&other, all.clone(), 0x0102_0304, stream.id(), 1).unwrap();
    rig.device().synchronize().unwrap();
    pages.unmap(&memory, first).unwrap();
    rig.ops().check_pattern(&other, all, 0x0102_0304, stream.id(), 2).unwrap();
    assert_eq!(rig.ops().collect().unwrap(), []);
    take_back(pages, memory, &[second], range);
    assert_eq!(reserved(&resource), 0);
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn memory_moves_to_where_other_memory_was() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let stream = rig.stream();
    let range = pages.reserve(page).unwrap();
    let memories = [1, 2].map(|_| pages.create(page, TAG).unwrap());
    for (memory, word) in memories.iter().zip([1, 2]) {
        pages.map(memory, range.base()).unwrap();
        let block = view(&rig, range.base(), memory, stream.id());
        rig.ops().fill_pattern(&block, 0..block.bytes(), word, stream.id()).unwrap();
        rig.device().synchronize().unwrap();
        pages.unmap(memory, range.base()).unwrap();
    }
    for (memory, word) in memories.iter().zip([1, 2]) {
        pages.map(memory, range.base()).unwrap();
        let block = view(&rig, range.base(), memory, stream.id());
        rig.ops().check_pattern(&block, 0..block.bytes(), word, stream.id(), 0).unwrap();
        rig.device().synchronize().unwrap();
        pages.unmap(memory, range.base()).unwrap();
    }
    assert_eq!(rig.ops().collect().unwrap(), []);
    for memory in memories {
        pages.destroy(memory).unwrap();
    }
    pages.release(range).unwrap();
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn only_created_memory_is_counted_and_addresses_are_not() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(1 << 36).unwrap();
    assert_eq!((range.bytes(), resource.usage()), (1 << 36, Usage::default()));
    let memory = pages.create(3 * page, TAG).unwrap();
    assert_eq!(
        (memory.bytes(), memory.tag(), memory.device_ordinal()),
        (3 * page, TAG, rig.ordinal())
    );
    assert_eq!(reserved(&resource), 3 * page);
    pages.map(&memory, range.base()).unwrap();
    assert_eq!((reserved(&resource), resource.bytes_outstanding()), (3 * page, 0));
    // With a block beside.
    let block = resource.allocate(1, dmr_core::StreamId::DEFAULT, TAG).unwrap();
    assert_eq!((reserved(&resource), resource.usage().live), (4 * page, 1));
    resource.deallocate(block).unwrap();
    let base = range.base();
    take_back(pages, memory, &[base], range);
    resource.reap_pending().unwrap();
    assert_eq!(reserved(&resource), 0);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn odd_and_impossible_sizes_are_refused() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    fn problem<T>(result: ResourceResult<T>) -> SizeProblem {
        match result {
            Err(ResourceError::InvalidSize { problem, .. }) => problem,
            _ => panic!("it was not refused for its size"),
        }
    }
    for odd in [1, page - 1, page + 256] {
        assert!(matches!(problem(pages.reserve(odd)), SizeProblem::NotGranular { .. }), "{odd}");
        assert!(
            matches!(problem(pages.create(odd, TAG)), SizeProblem::NotGranular { .. }),
            "{odd}"
        );
    }
    assert_eq!(problem(pages.reserve(0)), SizeProblem::Zero);
    assert_eq!(problem(pages.create(0, TAG)), SizeProblem::Zero);
    let beyond = (rig.device().total_memory() / page + 1) * page;
    assert!(matches!(problem(pages.create(beyond, TAG)), SizeProblem::BeyondDevice { .. }));
    assert_eq!(resource.usage(), Usage::default());
    drop(resource);
    rig.assert_clean();
}

#[test]
fn memory_that_is_still_mapped_is_not_destroyed() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(2 * page).unwrap();
    let memory = pages.create(page, TAG).unwrap();
    for at in [range.base(), range.base() + page] {
        pages.map(&memory, at).unwrap();
    }
    pages.unmap(&memory, range.base()).unwrap();
    let refused = pages.destroy(memory).unwrap_err();
    assert!(matches!(refused.error, ResourceError::StillMapped { mappings: 1, .. }), "{refused}");
    let memory = refused.memory;
    let refused = pages.release(range).unwrap_err();
    assert!(matches!(refused.error, ResourceError::Driver { .. }), "{refused}");
    let range = refused.range;
    assert_eq!(reserved(&resource), page);
    let base = range.base();
    take_back(pages, memory, &[base + page], range);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn what_is_not_mapped_there_is_not_unmapped_and_nothing_is_mapped_over_something() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(page).unwrap();
    let base = range.base();
    let [memory, other] = [(); 2].map(|()| pages.create(page, TAG).unwrap());
    let driver = |result: ResourceResult<()>| matches!(result, Err(ResourceError::Driver { .. }));
    assert!(driver(pages.unmap(&memory, base)));
    pages.map(&memory, base).unwrap();
    assert!(driver(pages.map(&other, base)), "something is there");
    assert!(driver(pages.unmap(&other, base)), "another memory is there");
    pages.destroy(other).unwrap();
    take_back(pages, memory, &[base], range);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn memory_of_another_resource_is_refused() {
    let rig = Rig::new();
    let ours = resource(&rig);
    let theirs = resource(&rig);
    let a = ours.virtual_memory().unwrap();
    let b = theirs.virtual_memory().unwrap();
    let page = a.granularity();
    let range = a.reserve(page).unwrap();
    let memory = b.create(page, TAG).unwrap();
    let foreign = |error: &ResourceError| matches!(error, ResourceError::ForeignMemory { .. });
    assert!(foreign(&a.map(&memory, range.base()).unwrap_err()));
    assert!(foreign(&a.unmap(&memory, range.base()).unwrap_err()));
    let refused = a.destroy(memory).unwrap_err();
    assert!(foreign(&refused.error), "{refused}");
    assert_eq!((reserved(&ours), reserved(&theirs)), (0, page));
    b.destroy(refused.memory).unwrap();
    a.release(range).unwrap();
    drop((ours, theirs));
    rig.assert_clean();
}

#[test]
fn threads_leave_the_count_of_pages_exact() {
    let rig = Rig::new();
    let resource = resource(&rig);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let pages = resource.virtual_memory().unwrap();
            scope.spawn(move || {
                let page = pages.granularity();
                let range = pages.reserve(4 * page).unwrap();
                for round in 0..20 {
                    let bytes = (1 + (thread + round) % 4) * page;
                    let memory = pages.create(bytes, TAG).unwrap();
                    pages.map(&memory, range.base()).unwrap();
                    pages.unmap(&memory, range.base()).unwrap();
                    pages.destroy(memory).unwrap();
                }
                pages.release(range).unwrap();
            });
        }
    });
    assert_eq!(resource.usage(), Usage::default());
    drop(resource);
    rig.assert_clean();
}
