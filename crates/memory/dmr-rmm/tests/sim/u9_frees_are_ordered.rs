//! U9, S2: memory comes to its next owner, on whichever stream, behind all uses by the last.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, DeviceMemoryResource, DeviceOps, UseTrackingExt};
use dmr_rmm::RmmKind;
use dmr_testkit::Rig;

use crate::support::{resource, small, tracked};

#[test]
fn blocks_go_from_stream_to_stream_behind_uses_on_a_third() {
    for kind in RmmKind::ALL {
        let rig = Rig::simulated();
        let resource = tracked(rig.streams(), small(kind));
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        for round in 0..60 {
            let home = &streams[round % 3];
            let user = &streams[(round + 1) % 3];
            let bytes = [900, 70_000, 1 << 20][round % 3];
            let block = resource.allocate(bytes, home.id(), AllocTag::UNTAGGED).unwrap();
            rig.ops().fill_pattern(&block, 0..bytes, round as u32, home.id()).unwrap();
            resource.record_block_use(&block, home.id()).unwrap();
            let used = resource.prepare_block_use(block.id(), user.id(), Access::Read);
            let used = used.unwrap();
            rig.ops().check_pattern(&block, 0..bytes, round as u32, user.id(), 0).unwrap();
            resource.finish_uses(used).unwrap();
            resource.deallocate(block).unwrap();
        }
        drop((resource, streams));
        rig.assert_clean();
    }
}

#[test]
fn a_block_of_a_retired_stream_is_freed_behind_its_work() {
    for kind in RmmKind::ALL {
        let rig = Rig::simulated();
        let tracked = tracked(rig.streams(), small(kind));
        let plain = resource(rig.streams(), small(kind));
        let other = rig.stream();
        for round in 0..10 {
            let resource: &dyn DeviceMemoryResource =
                if round % 2 == 0 { &tracked } else { &plain };
            let own = rig.device().context().new_stream().unwrap();
            let lease = rig.streams().adopt(Arc::clone(&own)).unwrap();
            let block = resource.allocate(5000, lease.id(), AllocTag::UNTAGGED).unwrap();
            rig.ops().fill_pattern(&block, 0..5000, 1, lease.id()).unwrap();
            rig.streams().retire_stream(&lease).unwrap();
            drop((lease, own));
            resource.deallocate(block).unwrap();
            let next = resource.allocate(5000, other.id(), AllocTag::UNTAGGED).unwrap();
            rig.ops().fill_pattern(&next, 0..5000, 2, other.id()).unwrap();
            resource.deallocate(next).unwrap();
        }
        tracked.reap_pending().unwrap();
        assert_eq!(tracked.bytes_outstanding() + plain.bytes_outstanding(), 0, "{kind}");
        drop((tracked, plain, other));
        rig.assert_clean();
    }
}
