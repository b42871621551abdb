//! The simulated driver reports a leak of mapped memory as the block, with its tag, and pages
//! without a block as what they are.

use std::sync::Arc;

use crate::support::{TAG, resource};
use dmr_core::{DeviceMemoryResource, StreamId};
use dmr_sim::{Report, ReportKind};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

/// Returns the leaks at the end of the rig's universe.
fn leaks(rig: &Rig) -> Vec<Report> {
    let reports = rig.universe().finish().reports;
    assert!(reports.iter().all(|report| report.kind == ReportKind::Leak), "{reports:?}");
    reports
}

#[test]
fn a_leak_of_mapped_memory_is_the_block_with_its_tag_and_nothing_beside_it() {
    let rig = Rig::simulated();
    let tracked = Tracked::new(resource(&rig), Arc::clone(rig.streams())).unwrap();
    let block = tracked.allocate(1000, StreamId::DEFAULT, TAG).unwrap();
    let leaks = leaks(&rig);
    let [leak] = &leaks[..] else { panic!("{leaks:?}") };
    assert_eq!(
        (leak.address, leak.bytes, leak.tag.as_deref()),
        (block.ptr(), 1000, Some("virtual"))
    );
    let text = leak.to_string();
    assert!(text.starts_with("memory was never freed: 1000 bytes at "), "{text}");
    assert!(text.contains("(\"virtual\")") && text.contains("of device 0"), "{text}");
    tracked.deallocate(block).unwrap();
}

#[test]
fn pages_and_reserved_addresses_without_a_block_are_leaks_of_their_own() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let range = pages.reserve(page).unwrap();
    let memory = pages.create(page, TAG).unwrap();
    let leaks = leaks(&rig);
    let devices: Vec<_> = leaks.iter().map(|leak| leak.device).collect();
    assert_eq!(devices, [None, Some(0)], "{leaks:?}");
    let text = leaks[0].to_string();
    assert!(text.contains("of reserved addresses"), "{text}");
    pages.destroy(memory).unwrap();
    pages.release(range).unwrap();
}
