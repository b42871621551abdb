//! Host functions, and words in pinned memory: a program that waits for one without a driver call
//! ends, and what it submits afterwards is ordered. Without them the same seed gives the same run.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream, sys};
use dmr_sim::{Policy, Universe};

const POLICIES: [Policy; 3] = [Policy::Eager, Policy::Lazy, Policy::Random];

unsafe extern "C" fn send(sender: *mut c_void) {
    // SAFETY: made by `notify`, which passes it to one call.
    let sender = unsafe { Box::from_raw(sender.cast::<Sender<()>>()) };
    let _ = sender.send(());
}

/// Submits a host function that sends a message.
fn notify(stream: &CudaStream) -> Receiver<()> {
    let (sender, receiver) = channel();
    let data = Box::into_raw(Box::new(sender)).cast();
    // SAFETY: the function takes what it is given.
    unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(send), data) }.result().unwrap();
    receiver
}

fn fill(stream: &CudaStream, at: u64, value: u8) {
    // SAFETY: the callers' buffers have 1024 bytes.
    unsafe { sys::cuMemsetD8Async(at, value, 1024, stream.cu_stream()) }.result().unwrap();
}

fn for_each_run(run: impl Fn(&Universe, &CudaStream, &CudaStream, u64)) {
    for policy in POLICIES {
        for seed in 0..8 {
            let universe = Universe::builder().policy(policy).seed(seed).build().unwrap();
            let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
            // SAFETY: the tests order their streams themselves.
            unsafe { gpu.disable_event_tracking() };
            let a = gpu.new_stream().unwrap();
            let b = gpu.new_stream().unwrap();
            let x = a.alloc_zeros::<u8>(1024).unwrap();
            a.synchronize().unwrap();
            let at = x.leak();
            run(&universe, &a, &b, at);
        }
    }
}

#[test]
fn a_host_function_runs_without_a_further_call_and_orders_later_work() {
    for_each_run(|universe, a, b, at| {
        fill(a, at, 1);
        let called = notify(a);
        called.recv_timeout(Duration::from_secs(2)).expect("the function is called");
        fill(b, at, 2);
        b.synchronize().unwrap();
        let reports = universe.reports();
        assert!(reports.is_empty(), "{reports:?}");
    });
}

#[test]
fn work_submitted_before_a_host_function_was_called_is_not_ordered() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
    // SAFETY: the race is the test.
    unsafe { gpu.disable_event_tracking() };
    let a = gpu.new_stream().unwrap();
    let b = gpu.new_stream().unwrap();
    let at = a.alloc_zeros::<u8>(1024).unwrap().leak();
    a.synchronize().unwrap();
    let called = notify(&a);
    called.recv_timeout(Duration::from_secs(2)).expect("the function is called");
    fill(&a, at, 1); // behind the host function
    fill(&b, at, 2);
    assert_eq!(universe.reports().len(), 1);
}

/// Submits the write of a word of pinned memory, and polls the word.
fn write_and_poll(stream: &CudaStream, write: impl Fn(u64, sys::CUstream) -> sys::CUresult) {
    let mut word = std::ptr::null_mut();
    // SAFETY: 4 bytes of pinned memory, which are freed after the last use.
    unsafe {
        sys::cuMemHostAlloc(&mut word, 4, 0).result().unwrap();
        word.cast::<u32>().write_volatile(0);
    }
    write(word as u64, stream.cu_stream()).result().unwrap();
    let start = Instant::now();
    // SAFETY: as above.
    while unsafe { word.cast::<u32>().read_volatile() } == 0 {
        assert!(start.elapsed() < Duration::from_secs(2), "the word is not written");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_word_that_a_stream_writes_to_pinned_memory_is_seen_and_orders_later_work() {
    for_each_run(|universe, a, b, at| {
        fill(a, at, 1);
        // SAFETY: `to` is a word of pinned memory.
        write_and_poll(a, |to, stream| unsafe { sys::cuStreamWriteValue32_v2(stream, to, 1, 0) });
        fill(b, at, 2);
        // SAFETY: as above.
        write_and_poll(b, |to, stream| unsafe { sys::cuMemsetD32Async(to, 1, 1, stream) });
        fill(a, at, 3);
        a.synchronize().unwrap();
        let reports = universe.reports();
        assert!(reports.is_empty(), "{reports:?}");
    });
}

#[test]
fn a_word_is_seen_while_another_thread_makes_calls_and_writes_words() {
    for_each_run(|_universe, a, b, _at| {
        let is_seen = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                b.context().bind_to_thread().unwrap();
                let mut word = std::ptr::null_mut();
                // SAFETY: a place for the address.
                unsafe { sys::cuMemHostAlloc(&mut word, 4, 0) }.result().unwrap();
                let start = Instant::now();
                while !is_seen.load(Ordering::Acquire) && start.elapsed().as_secs() < 3 {
                    // SAFETY: the stream is live, and the word is not freed before the end.
                    let written =
                        unsafe { sys::cuStreamWriteValue32_v2(b.cu_stream(), word as u64, 1, 0) };
                    written.result().unwrap();
                    b.synchronize().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            // SAFETY: `to` is a word of pinned memory.
            write_and_poll(a, |to, stream| unsafe {
                sys::cuStreamWriteValue32_v2(stream, to, 1, 0)
            });
            is_seen.store(true, Ordering::Release);
        });
    });
}

#[test]
fn a_polled_copy_of_a_word_is_seen_although_the_program_makes_no_other_call() {
    for_each_run(|_universe, a, _b, at| {
        fill(a, at, 1);
        // SAFETY: `to` is a word of pinned memory, the source has 1024 bytes.
        write_and_poll(a, |to, stream| unsafe { sys::cuMemcpyAsync(to, at, 4, stream) });
    });
}

#[test]
fn no_work_runs_without_a_call_unless_the_host_may_wait_for_it() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
    let stream = gpu.new_stream().unwrap();
    let mut pinned = std::ptr::null_mut();
    // SAFETY: 1024 bytes of pinned memory, which are not freed before the end.
    let seen = unsafe {
        sys::cuMemHostAlloc(&mut pinned, 1024, 0).result().unwrap();
        pinned.cast::<u8>().write_volatile(0);
        fill(&stream, pinned as u64, 1);
        std::thread::sleep(Duration::from_millis(300));
        pinned.cast::<u8>().read_volatile()
    };
    assert_eq!(seen, 0);
    stream.synchronize().unwrap();
}

/// Returns what 200 queries of three streams return between fills, with a pause before some of
/// them.
fn queried(seed: u64, pause: Duration) -> Vec<bool> {
    let universe = Universe::builder().seed(seed).build().unwrap();
    let gpu = CudaContext::new(universe.ordinal(0)).unwrap();
    let streams = [(); 3].map(|()| gpu.new_stream().unwrap());
    let blocks = [(); 3].map(|()| streams[0].alloc_zeros::<u8>(1024).unwrap().leak());
    streams[0].synchronize().unwrap();
    let query = |turn: usize| {
        let stream = &streams[turn % 3];
        fill(stream, blocks[turn % 3], 1);
        if turn.is_multiple_of(40) {
            std::thread::sleep(pause);
        }
        // SAFETY: the stream lives.
        let returned = unsafe { sys::cuStreamQuery(stream.cu_stream()) };
        returned == sys::CUresult::CUDA_SUCCESS
    };
    (0..200).map(query).collect()
}

#[test]
fn the_same_seed_gives_the_same_run_whatever_the_pauses() {
    let runs: Vec<_> = (0..4).map(|seed| queried(seed, Duration::ZERO)).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, queried(seed as u64, Duration::from_millis(30)), "seed {seed}");
    }
    assert!(runs[1..].iter().any(|run| *run != runs[0]), "another seed gives another run");
}
