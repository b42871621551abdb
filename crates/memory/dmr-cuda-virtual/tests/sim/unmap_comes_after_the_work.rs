//! The driver unmaps without waiting: nothing is unmapped before the work that uses it is done.
//! Each call that this rests on, left out, is found by the simulator.

use std::sync::Arc;

use crate::support::{TAG, resource, take_back, view};
use dmr_core::{Access, BlockUse, DeviceMemoryResource, DeviceOps, UseTrackingExt};
use dmr_sim::{Policy, ReportKind, Universe};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

fn lazy() -> Rig {
    Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().unwrap())
}

/// Blocks that come and go while their work is under way.
fn play(rig: &Rig) {
    let resource = resource(rig);
    let streams = [rig.stream(), rig.stream()];
    for round in 0..6_u32 {
        let stream = &streams[round as usize % 2];
        let block = resource.allocate(4096, stream.id(), TAG).unwrap();
        rig.ops().fill_pattern(&block, 0..4096, round, stream.id()).unwrap();
        rig.ops().check_pattern(&block, 0..4096, round, stream.id(), 0).unwrap();
        resource.deallocate(block).unwrap();
        if round % 3 == 0 {
            resource.try_reap().unwrap();
        }
    }
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0);
}

#[test]
fn blocks_are_unmapped_after_the_work_on_their_home_stream() {
    let rig = lazy();
    play(&rig);
    assert_eq!(rig.verdict(), Ok(()));
    rig.assert_clean();
}

#[test]
fn without_the_record_the_question_or_the_wait_they_would_not_be() {
    for (left_out, waits) in [
        ("cuEventRecord", true),
        ("cuEventSynchronize", true),
        ("cuEventRecord", false),
        ("cuEventQuery", false),
    ] {
        let rig = lazy();
        let resource = resource(&rig);
        let stream = rig.stream();
        let block = resource.allocate(4096, stream.id(), TAG).unwrap();
        rig.ops().fill_pattern(&block, 0..4096, 1, stream.id()).unwrap();
        resource.deallocate(block).unwrap();
        rig.universe().swallow_nth(left_out, 1);
        match waits {
            true => resource.reap_pending().unwrap(),
            false => resource.try_reap().unwrap(),
        };
        let reports = rig.universe().reports();
        let found = reports.iter().any(|report| report.kind == ReportKind::UnmapBeforeUse);
        assert!(found, "without {left_out}: {reports:?}");
    }
}

#[test]
fn work_on_other_streams_is_waited_for_where_uses_are_tracked() {
    let rig = lazy();
    let tracked = Tracked::new(resource(&rig), Arc::clone(rig.streams())).unwrap();
    let home = rig.stream();
    let other = rig.stream();
    for word in 0..4_u32 {
        let block = tracked.allocate(4096, home.id(), TAG).unwrap();
        for (stream, access) in [(&home, Access::Write), (&other, Access::Read)] {
            let uses = [BlockUse::new(block.id(), access)];
            let tokens = tracked.prepare_uses(&uses, stream.id()).unwrap();
            match access {
                Access::Read => {
                    rig.ops().check_pattern(&block, 0..4096, word, stream.id(), 0).unwrap();
                }
                _ => rig.ops().fill_pattern(&block, 0..4096, word, stream.id()).unwrap(),
            }
            tracked.finish_uses(tokens).unwrap();
        }
        tracked.deallocate(block).unwrap();
        tracked.try_reap().unwrap();
    }
    tracked.reap_pending().unwrap();
    assert_eq!((tracked.usage().outstanding(), tracked.usage().reserved), (0, 0));
    assert_eq!(rig.verdict(), Ok(()));
    drop((tracked, home, other));
    rig.assert_clean();
}

#[test]
fn pages_unmapped_while_work_uses_them_are_reported() {
    let rig = lazy();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let stream = rig.stream();
    let range = pages.reserve(pages.granularity()).unwrap();
    let base = range.base();
    let memory = pages.create(pages.granularity(), TAG).unwrap();
    pages.map(&memory, base).unwrap();
    let block = view(&rig, base, &memory, stream.id());
    rig.ops().fill_pattern(&block, 0..64, 1, stream.id()).unwrap();
    take_back(pages, memory, &[base], range);
    let kinds: Vec<_> = rig.universe().reports().iter().map(|report| report.kind).collect();
    assert!(kinds.contains(&ReportKind::UnmapBeforeUse), "{kinds:?}");
}

#[test]
fn an_allocation_that_finds_no_room_waits_for_what_is_retired() {
    const CAPACITY: u64 = 1 << 30;
    let builder = Universe::builder().policy(Policy::Lazy).capacity(CAPACITY);
    let rig = Rig::in_universe(&builder.build().unwrap());
    let resource = resource(&rig);
    let stream = rig.stream();
    let bytes = CAPACITY as usize / 3 * 2;
    for word in 0..3 {
        let block = resource.allocate(bytes, stream.id(), TAG).unwrap();
        for _ in 0..500 {
            rig.ops().fill_pattern(&block, 0..64, word, stream.id()).unwrap();
        }
        resource.deallocate(block).unwrap();
        assert_eq!(resource.try_reap(), Ok(0), "its work is not done");
    }
    drop((resource, stream));
    rig.assert_clean();
}
