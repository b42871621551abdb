//! A long run stays flat: streams that come and go, their work, events and graphs need no more of
//! the host's memory, and long graphs take a time in proportion.
#![allow(unsafe_code)] // a counting allocator, and the driver is called directly
#![allow(clippy::print_stdout, reason = "the soak prints its figures")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUstream};
use dmr_sim::{Policy, Universe};
use support::gpu::{self, Gpu, destroy_event, destroy_stream, event, fill, record, wait};

struct Counting;

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

/// Held by each test: the memory is that of the process.
static ALONE: Mutex<()> = Mutex::new(());

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

/// Captures `nodes` memsets and launches the graph. Returns the time that its instantiation has
/// taken.
fn launch_a_graph(stream: CUstream, block: u64, nodes: usize) -> Duration {
    let mut graph = null_mut();
    let mut executable = null_mut();
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
    let a = gpu::stream();
    let b = gpu::stream();
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
    let _alone = ALONE.lock();
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
            let stream = gpu::stream();
            let block = gpu::malloc(64).unwrap();
            (0..3).map(|_| launch_a_graph(stream, block, nodes)).min().unwrap_or_default()
        };
        let few = chain(500).max(Duration::from_millis(1));
        let many = chain(4_000);
        assert!(many < 24 * few, "8 times the nodes: {few:?} became {many:?}");
    }
}

/// A kernel in PTX that adds one to a word, and a host function after it.
fn count(counter: sys::CUfunction, word: u64, stream: CUstream) {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    gpu::launch(counter, &[word], stream).unwrap();
    // SAFETY: the function uses no data.
    unsafe { sys::cuLaunchHostFunc(stream, Some(nothing), null_mut()) }.result().unwrap();
}

/// Returns the nanoseconds that the process has run on a core, and its resident pages.
fn spent() -> (u64, u64) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = pages.split(' ').nth(1).unwrap().parse().unwrap();
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64, pages)
}

/// The soak: `DMR_SOAK_SECONDS` or six seconds, in 60 parts, of which the first is not counted.
#[test]
fn a_soak_stays_flat_in_memory_and_in_time_per_cycle() {
    let _alone = ALONE.lock();
    const TEXT: &str = ".version 8.0\n.target sm_80\n.address_size 64
        .visible .entry count(.param .u64 word) { .reg .b64 %d; ld.param.u64 %d, [word]; red.global.add.u32 [%d], 1; ret; }";
    let seconds = std::env::var("DMR_SOAK_SECONDS").map_or(6, |text| text.parse().unwrap());
    let universe = Universe::builder().policy(Policy::Random).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let lasting = gpu::stream();
    let word = gpu::malloc(4).unwrap();
    let counter = gpu::kernel(TEXT, "count").unwrap();
    fill(word, 0, 4, lasting).unwrap();
    let mut parts = Vec::new();
    let mut cycles = 0_u64;
    for _ in 0..60 {
        let end = Instant::now() + Duration::from_millis(1000 * seconds / 60);
        let start = spent();
        let before = cycles;
        while Instant::now() < end {
            cycle();
            count(counter, word, lasting);
            gpu::sync(lasting).unwrap();
            cycles += 1;
        }
        let now = spent();
        parts.push([
            (now.0 - start.0) / (cycles - before),
            now.1,
            LIVE_BYTES.load(Ordering::Relaxed) as u64,
        ]);
        println!(
            "{cycles} cycles, ns of a core per cycle, resident pages, live bytes: {:?}",
            parts.last()
        );
    }
    assert!(universe.reports().is_empty());
    assert_eq!(gpu::read(word, 4).unwrap(), (cycles as u32).to_le_bytes());
    // The median of the last 20 parts, and of the first 20 but the first.
    let median = |parts: &[[u64; 3]], of: usize| {
        let mut values: Vec<_> = parts.iter().map(|part| part[of]).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    for (of, more) in [(0, 3.0), (1, 1.05), (2, 1.05)] {
        let early = median(&parts[1..20], of);
        let late = median(&parts[40..], of);
        assert!(late as f64 <= early as f64 * more, "{of}: {early} became {late}: {parts:?}");
    }
}
