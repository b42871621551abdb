//! A forked child has no tool: the tool is attached to its parent.

#![cfg(unix)]
#![allow(unsafe_code, reason = "attaches a tool, and forks")]

use dmr_core::{AllocTag, Generation};
use dmr_testkit::fake_tool;

#[test]
fn a_forked_child_makes_no_call_of_the_tool_and_continues_its_work() {
    let tool = fake_tool::session();
    // SAFETY: the initializer of a tool.
    assert!(unsafe { dmr_nvtx::attach(fake_tool::initialize) });
    let observer = dmr_nvtx::memory_observer().expect("a tool");
    observer.heap_created(0x1000, 4096);
    tool.take_calls();
    // SAFETY: the child does a little work in memory, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let no_tool = dmr_nvtx::memory_observer().is_none();
        let works = dmr_nvtx::restricted(&[], || 7) == 7;
        let generation = Generation::next();
        observer.region_allocated(0x1000, 100, AllocTag::UNTAGGED, generation);
        observer.region_freed(0x1000, generation);
        observer.heap_destroyed(0x1000);
        let untold = tool.take_calls().is_empty();
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(i32::from(!(no_tool && works && untold))) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    observer.heap_destroyed(0x1000);
    assert_eq!(tool.wrong(), [""; 0]);
}
