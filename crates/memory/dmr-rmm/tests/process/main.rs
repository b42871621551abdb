//! D4: in a forked child every call is refused or returns nothing, and drops do nothing.
#![allow(unsafe_code, reason = "forks, and loads the library with RMM")]

#[path = "../support/mod.rs"]
mod support;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult, Usage};
use dmr_rmm::RmmKind;
use dmr_testkit::{Rig, exit_code};

use crate::support::{resource, small, tracked};

fn is_refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::ForkedProcess { .. }))
}

#[test]
fn a_forked_child_is_refused_everything() {
    for kind in RmmKind::ALL {
        let rig = Rig::new();
        let plain = resource(rig.streams(), small(kind));
        let tracked = tracked(rig.streams(), small(kind));
        let stream = rig.stream();
        let resources: [&dyn DeviceMemoryResource; 2] = [&plain, &tracked];
        let allocate = |resource: &dyn DeviceMemoryResource| {
            resource.allocate(1000, stream.id(), AllocTag::UNTAGGED)
        };
        let [mut one, two] = resources.map(|resource| allocate(resource).unwrap());

        // SAFETY: the child makes calls that are refused, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        if child == 0 {
            let mut refused = vec![is_refused(plain.try_grow(&mut one, 2000))];
            for (resource, block) in resources.into_iter().zip([one, two]) {
                refused.extend([
                    is_refused(allocate(resource)),
                    is_refused(resource.try_reap()),
                    is_refused(resource.reap_pending()),
                    is_refused(resource.trim_to(0)),
                    is_refused(resource.deallocate(block).map_err(|back| back.error)),
                    resource.usage() == Usage::default(),
                    resource.bytes_outstanding() == 0,
                ]);
            }
            drop((plain, tracked));
            // Which of them was not refused, counted from 1.
            let wrong = refused.iter().position(|refused| !refused).map_or(0, |at| at as i32 + 1);
            // SAFETY: ends the child, without the parent's handlers.
            unsafe { libc::_exit(wrong) };
        }
        assert_eq!(exit_code(child), Some(0), "{kind}");

        // The parent goes on.
        plain.deallocate(one).unwrap();
        tracked.deallocate(two).unwrap();
        drop((plain, tracked, stream));
        rig.assert_clean();
    }
}
