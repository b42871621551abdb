//! Kernels and host callbacks may not call the driver or their universe: they get an error, not a
//! deadlock.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::gpu::{self, Gpu, fill, kernel, kinds, launch, machine, malloc, ptx};
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use dmr_sim::{Footprint, Policy, ReportKind, Universe};

/// Runs a closure as a host callback.
fn call_host(stream: CUstream, function: impl FnOnce() + Send + 'static) {
    type Boxed = Box<dyn FnOnce() + Send>;
    unsafe extern "C" fn run(data: *mut c_void) {
        // SAFETY: `data` came from `Box::into_raw` below, and this runs once.
        let function = unsafe { Box::from_raw(data.cast::<Boxed>()) };
        (*function)();
    }
    let data: *mut Boxed = Box::into_raw(Box::new(Box::new(function)));
    // SAFETY: the function takes what `data` is.
    unsafe { sys::cuLaunchHostFunc(stream, Some(run), data.cast()) }.result().unwrap();
}

fn malloc_code() -> CUresult {
    let mut address = 0;
    // SAFETY: the out-parameter is a live local.
    unsafe { sys::cuMemAlloc_v2(&mut address, 64) }
}

fn policies() -> impl Iterator<Item = (Universe, Gpu)> {
    [Policy::Eager, Policy::Lazy, Policy::Random].into_iter().map(|policy| {
        let universe = Universe::builder().policy(policy).build().unwrap();
        let gpu = Gpu::new(&universe);
        (universe, gpu)
    })
}

#[test]
fn a_kernel_that_calls_the_driver_is_refused() {
    let (universe, _gpu) = machine();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let [declared, ran] = [seen.clone(), seen.clone()];
    universe.register_kernel(
        "caller",
        move |_| {
            declared.lock().unwrap().push(malloc_code());
            Footprint::new()
        },
        move |_, _| ran.lock().unwrap().push(malloc_code()),
    );
    let caller = kernel(&ptx("caller", &[]), "caller").unwrap();
    launch(caller, &[], gpu::LEGACY).unwrap();
    gpu::sync_context().unwrap();
    assert_eq!(*seen.lock().unwrap(), [CUresult::CUDA_ERROR_NOT_PERMITTED; 2]);
    assert_eq!(malloc_code(), CUresult::CUDA_SUCCESS);
}

#[test]
fn a_kernel_that_asks_its_universe_is_reported() {
    let (universe, _gpu) = machine();
    let inner = Mutex::new(Some(universe.clone()));
    universe.register_kernel(
        "curious",
        |_| Footprint::new(),
        // Taken out, so that the kernel does not keep its universe alive.
        move |_, _| drop(inner.lock().unwrap().take().map(|universe| universe.reports())),
    );
    let curious = kernel(&ptx("curious", &[]), "curious").unwrap();
    launch(curious, &[], gpu::LEGACY).unwrap();
    gpu::sync_context().unwrap();
    assert_eq!(kinds(&universe), [ReportKind::KernelPanicked]);
}

#[test]
fn a_host_callback_that_calls_the_driver_is_refused() {
    for (_universe, _gpu) in policies() {
        let stream = gpu::stream();
        let (send, receive) = mpsc::channel();
        let handle = stream as usize;
        call_host(stream, move || {
            // SAFETY: the simulator checks the handle.
            let waited = unsafe { sys::cuStreamSynchronize(handle as CUstream) };
            send.send([waited, malloc_code()]).unwrap();
        });
        gpu::sync(stream).unwrap();
        assert_eq!(receive.recv().unwrap(), [CUresult::CUDA_ERROR_NOT_PERMITTED; 2]);
    }
}

#[test]
fn a_callback_that_waits_for_the_program_stops_its_own_stream_only() {
    for (universe, _gpu) in policies() {
        let a = gpu::stream();
        let b = gpu::stream();
        let (go, wait): (Sender<()>, Receiver<()>) = mpsc::channel();
        call_host(a, move || wait.recv().unwrap());
        let block = malloc(64).unwrap();
        for _ in 0..20 {
            fill(block, 1, 64, b).unwrap();
            gpu::sync(b).unwrap();
            assert!(!gpu::query(a));
        }
        go.send(()).unwrap();
        gpu::sync(a).unwrap();
        assert!(gpu::query(a));
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn other_threads_work_while_one_waits_for_a_callback() {
    for (universe, gpu) in policies() {
        let stream = gpu::stream();
        let (go, wait) = mpsc::channel();
        call_host(stream, move || wait.recv().unwrap());
        std::thread::scope(|scope| {
            let handle = stream as usize;
            let waiter = scope.spawn(move || gpu::sync(handle as CUstream).unwrap());
            scope.spawn(|| {
                gpu.bind();
                let other = gpu::stream();
                let block = malloc(64).unwrap();
                fill(block, 1, 64, other).unwrap();
                gpu::sync(other).unwrap();
                go.send(()).unwrap();
            });
            waiter.join().unwrap();
        });
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn freeing_pinned_memory_waits_for_what_is_submitted_meanwhile() {
    // While one thread waits inside cuMemFreeHost, another submits a copy from the memory.
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let gpu = Gpu::new(&universe);
    let stream = gpu::stream();
    let mut pinned = gpu::Pinned::new(1 << 20);
    pinned.bytes().fill(7);
    let block = malloc(1 << 20).unwrap();
    let (go, wait) = mpsc::channel();
    call_host(stream, move || wait.recv().unwrap());
    let handle = stream as usize;
    let start = pinned.address();
    std::thread::scope(|scope| {
        let freeing = scope.spawn(|| {
            gpu.bind();
            drop(pinned);
        });
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            gpu::copy_any(block, start, 1 << 20, handle as CUstream).unwrap();
            go.send(()).unwrap();
        });
        freeing.join().unwrap();
    });
    gpu::sync(stream).unwrap();
    assert!(gpu::read(block, 1 << 20).unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(kinds(&universe), [ReportKind::FreeBeforeUse]);
}

#[test]
fn other_threads_query_while_a_kernel_runs_and_allocate_when_it_has_ended() {
    for recorded in [false, true] {
        for (universe, gpu) in policies() {
            let (begin, begun) = mpsc::channel();
            let (go, wait) = mpsc::channel::<()>();
            let wait = Mutex::new(wait);
            let in_time = Arc::new(Mutex::new(None));
            let result = in_time.clone();
            universe.register_kernel(
                "slow",
                move |args| match recorded {
                    true => Footprint::recorded(),
                    false => Footprint::new().writes(args.u64(0), 64),
                },
                move |args, memory| {
                    begin.send(()).unwrap();
                    let signal = wait.lock().unwrap().recv_timeout(Duration::from_secs(5));
                    *result.lock().unwrap() = Some(signal.is_ok());
                    memory.fill(args.u64(0), 64, 7);
                },
            );
            let slow = kernel(&ptx("slow", &["u64"]), "slow").unwrap();
            let stream = gpu::stream();
            let event = gpu::event();
            let block = malloc(64).unwrap();
            let handles = [stream as usize, event as usize];
            std::thread::scope(|scope| {
                let gpu = &gpu;
                let others = scope.spawn(move || {
                    begun.recv().unwrap();
                    // A call that needs memory is held until the kernel has ended; the queries are
                    // not behind it.
                    let allocating = scope.spawn(move || {
                        gpu.bind();
                        let other = malloc(64).unwrap();
                        fill(other, 1, 64, handles[0] as CUstream).unwrap();
                        other
                    });
                    std::thread::sleep(Duration::from_millis(5));
                    gpu.bind();
                    let mut device = -1;
                    let mut free = 0;
                    let mut total = 0;
                    // SAFETY: the out-parameters are live locals.
                    unsafe {
                        sys::cuCtxGetDevice(&mut device).result().unwrap();
                        sys::cuMemGetInfo_v2(&mut free, &mut total).result().unwrap();
                    }
                    assert!(device >= 0 && free < total);
                    let [stream, event] = handles;
                    assert!(!gpu::query(stream as CUstream) && gpu::query_event(event as CUevent));
                    go.send(()).unwrap();
                    allocating.join().unwrap()
                });
                gpu::record(event, stream).unwrap();
                launch(slow, &[block], stream).unwrap();
                gpu::sync(stream).unwrap();
                let other = others.join().unwrap();
                gpu::sync(stream).unwrap();
                assert_eq!(gpu::read(block, 64).unwrap(), [7; 64]);
                assert_eq!(gpu::read(other, 64).unwrap(), [1; 64]);
            });
            assert_eq!(*in_time.lock().unwrap(), Some(true));
            assert_eq!(kinds(&universe), []);
        }
    }
}
