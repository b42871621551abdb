//! D4: in a forked child every call is refused, and drops do nothing.

#![cfg(unix)]
#![allow(unsafe_code, reason = "forks")]

use crate::support::{TAG, resource, take_back};
use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_testkit::Rig;

fn refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::ForkedProcess { .. }))
}

#[test]
fn a_forked_child_is_refused_everything() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let mut block = resource.allocate(1000, StreamId::DEFAULT, TAG).unwrap();
    let range = pages.reserve(page).unwrap();
    let base = range.base();
    let memory = pages.create(page, TAG).unwrap();
    pages.map(&memory, base).unwrap();

    // SAFETY: the child makes calls that are refused, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let refusals = [
            refused(resource.allocate(1, StreamId::DEFAULT, TAG)),
            refused(resource.try_grow(&mut block, 2000)),
            refused(resource.try_reap()),
            refused(resource.reap_pending()),
            refused(resource.trim_to(0)),
            refused(pages.reserve(page)),
            refused(pages.create(page, TAG)),
            refused(pages.map(&memory, base)),
            refused(pages.unmap(&memory, base)),
            refused(pages.destroy(memory).map_err(|refused| refused.error)),
            refused(pages.release(range).map_err(|refused| refused.error)),
            refused(resource.deallocate(block).map_err(|refused| refused.error)),
        ];
        drop(resource);
        // Which of them was not refused, counted from 1.
        let wrong = refusals.iter().position(|refused| !refused).map_or(0, |nth| nth as i32 + 1);
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));

    // The parent goes on.
    take_back(pages, memory, &[base], range);
    resource.deallocate(block).unwrap();
    drop(resource);
    rig.assert_clean();
}
