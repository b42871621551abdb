//! A long run stays flat: streams that come and go, their work, events and graphs need no more of the host's memory, and
//! long graphs take a time in proportion.
#![allow(unsafe_code)] // a counting allocator, and the driver is called directly

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUstream};
use dmr_sim::{Policy, Universe};
use support::gpu::{self, Gpu, destroy_event, destroy_stream, event, fill, record, wait};

struct Counting;

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Captures `nodes` memsets and launches the graph. Returns the time that its instantiation has taken.
fn launch_a_graph(stream: CUstream, block: u64, nodes: usize) -> Duration {
    let (mut graph, mut executable) = (null_mut(), null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the pointers are valid, and so are the handles, which are destroyed once.
    unsafe {
        sys::cuStreamBeginCapture_v2(stream, mode).result().unwrap();
        (0..nodes).for_each(|_| fill(block, 3, 64, stream).unwrap());
        sys::cuStreamEndCapture(stream, &raw mut graph).result().unwrap();
        let start = Instant::now();
        sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0).result().unwrap();
        let time = start.elapsed();
        sys::cuGraphLaunch(executable, stream).result().unwrap();
        sys::cuGraphExecDestroy(executable).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
        time
    }
}

/// Two streams that use one block in turn, and end.
fn cycle() {
    let (a, b) = (gpu::stream(), gpu::stream());
    let block = gpu::malloc_async(64, a).unwrap();
    fill(block, 1, 64, a).unwrap();
    let ready = event();
    record(ready, a).unwrap();
    wait(b, ready).unwrap();
    fill(block, 2, 64, b).unwrap();
    launch_a_graph(b, block, 2);
    gpu::free_async(block, b).unwrap();
    destroy_event(ready).unwrap();
    destroy_stream(a).unwrap();
    gpu::sync(b).unwrap();
    destroy_stream(b).unwrap();
}

#[test]
fn a_long_run_stays_flat() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let universe = Universe::builder().policy(policy).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let lasting = gpu::stream();
        let live_bytes_after = |cycles| {
            for _ in 0..cycles {
                cycle();
                gpu::sync(lasting).unwrap();
            }
            LIVE_BYTES.load(Ordering::Relaxed)
        };
        let before = live_bytes_after(2_000);
        let grown = live_bytes_after(6_000) - before;
        assert!(grown < 64 << 10, "{policy:?}: {grown} bytes more");
        assert!(universe.reports().is_empty());
        let chain = |nodes| {
            let (stream, block) = (gpu::stream(), gpu::malloc(64).unwrap());
            (0..3).map(|_| launch_a_graph(stream, block, nodes)).min().unwrap_or_default()
        };
        let (few, many) = (chain(500).max(Duration::from_millis(1)), chain(4_000));
        assert!(many < 24 * few, "8 times the nodes: {few:?} became {many:?}");
    }
}
