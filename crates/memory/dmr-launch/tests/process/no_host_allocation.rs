//! A launch with up to 8 blocks allocates nothing on the host's heap.

#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::spy::Context;
use dmr_core::AllocTag;
use dmr_launch::LaunchRecorder;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: it is the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // What a launch declares takes memory of the simulator's.
        if !dmr_sim::is_inside_driver_call() {
            let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread in a launch with `blocks` blocks, both forms.
fn allocations_of(blocks: u64) -> u64 {
    let ctx = Context::tracking();
    ctx.spy.writes_down.store(false, Ordering::Relaxed);
    let blocks: Vec<_> = (0..blocks).map(|i| ctx.block_at(0x1000 * i)).collect();
    let recorder = || {
        let mut recorder = LaunchRecorder::new_strict(ctx.stream());
        for block in &blocks {
            recorder.read_column(AllocTag::new("column"), block);
        }
        recorder
    };
    let before = COUNT.get();
    recorder().launch(&ctx, |_| Ok::<_, ()>(())).unwrap();
    recorder().prepare(&ctx).unwrap().finish().unwrap();
    COUNT.get() - before
}

#[test]
fn up_to_eight_blocks_need_no_host_heap() {
    assert_eq!(allocations_of(8), 0);
    assert!(allocations_of(9) > 0, "the allocator counts");
}
