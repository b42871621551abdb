//! The bandwidth of copies between two GPUs, without and with peer access, for the memory of each
//! backend; beside it `cuMemcpyPeerAsync` of memory of `cuMemAlloc`, without this library.
//!
//! `cargo run --release -p dmr --example peers_bandwidth [MIB] [COPIES]`. On simulated devices the
//! figures mean nothing.

#![allow(unsafe_code, reason = "bare driver calls, to compare with")]
#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::time::Instant;

use dmr::cudarc::driver::result;
use dmr::prelude::*;
use dmr_sim::{Driver, Universe};

/// The sizes of the measurement.
#[derive(Clone, Copy)]
struct Load {
    bytes: usize,
    copies: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let number = |n, default: u32| std::env::args().nth(n).map_or(Ok(default), |it| it.parse());
    let simulated = match dmr_sim::select_for(2)? {
        Driver::Simulated(_) => Some(Universe::new()?),
        _ => None,
    };
    let default_mib = if simulated.is_some() { 1 } else { 256 };
    let load = Load { bytes: (number(1, default_mib)? as usize) << 20, copies: number(2, 20)? };
    let ordinal = |gpu| simulated.as_ref().map_or(gpu, |universe| universe.ordinal(gpu));
    let ordinals = [ordinal(0), ordinal(1)];
    println!("{} copies of {} MiB, GB/s", load.copies, load.bytes >> 20);
    println!("{:<16}{:>16}{:>16}", "memory", "without access", "with access");
    // Peer access of the contexts is for good, and is enabled by the rows at the end.
    let mut rows = Vec::new();
    for backend in [Backend::Pool, Backend::Async, Backend::Direct] {
        let runtimes =
            ordinals.map(|ordinal| DeviceRuntime::builder(ordinal).backend(backend).build());
        let [first, second] = runtimes;
        let runtimes = [first?, second?];
        let without = measure(&runtimes, load)?;
        rows.push((backend, runtimes, without));
    }
    let bare_without = measure_bare(&rows[2].1, load)?;
    for (backend, runtimes, without) in &rows {
        let [first, second] = runtimes;
        let has_path = first.device().can_access_peer(second.device())?;
        if has_path {
            first.enable_peer_access(second)?;
            second.enable_peer_access(first)?;
        }
        print_row(
            backend.name(),
            *without,
            if has_path { Some(measure(runtimes, load)?) } else { None },
        );
    }
    print_row("bare cuMemAlloc", bare_without, Some(measure_bare(&rows[2].1, load)?));
    Ok(())
}

fn print_row(name: &str, without: f64, with: Option<f64>) {
    let with = with.map_or_else(|| "no path".to_owned(), |with| format!("{with:.1}"));
    println!("{name:<16}{without:>16.1}{with:>16}");
}

/// Copies between buffers of two runtimes. Returns GB/s.
fn measure(runtimes: &[DeviceRuntime; 2], load: Load) -> Result<f64, Box<dyn Error>> {
    let [first, second] = runtimes;
    let a = first.streams().acquire()?;
    let b = second.streams().acquire()?;
    let source = DeviceBuffer::<u8>::zeroed(first, &a, load.bytes)?;
    let mut target = DeviceBuffer::<u8>::zeroed(second, &b, load.bytes)?;
    time(second, load, || Ok(target.copy_from_peer(&source, &a, &b)?))
}

/// The driver's copy of memory of `cuMemAlloc`, without an order.
fn measure_bare(runtimes: &[DeviceRuntime; 2], load: Load) -> Result<f64, Box<dyn Error>> {
    let [first, second] = runtimes;
    let contexts = [first, second].map(|runtime| runtime.device().context().cu_ctx());
    let allocate = |runtime: &DeviceRuntime| {
        runtime.device().bind()?;
        // SAFETY: the context is current. The memory is freed below.
        Ok::<_, Box<dyn Error>>(unsafe { result::malloc_sync(load.bytes) }?)
    };
    let source = allocate(first)?;
    let target = allocate(second)?;
    for (runtime, memory) in [(first, source), (second, target)] {
        runtime.device().bind()?;
        // SAFETY: just allocated.
        unsafe { result::memset_d8_sync(memory, 0, load.bytes) }?;
        runtime.device().synchronize()?;
    }
    let stream = second.streams().acquire()?;
    let on = stream.stream().cu_stream();
    let figure = time(second, load, || {
        // SAFETY: both have that many bytes, and are freed after the device was waited for.
        Ok(unsafe {
            result::memcpy_peer_async(contexts[1], target, contexts[0], source, load.bytes, on)
        }?)
    });
    second.device().synchronize()?;
    for (runtime, memory) in [(first, source), (second, target)] {
        runtime.device().bind()?;
        // SAFETY: no work uses it.
        unsafe { result::free_sync(memory) }?;
    }
    figure
}

/// Returns GB/s of copies, after a first one that is not counted.
fn time(
    second: &DeviceRuntime,
    load: Load,
    mut copy: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    copy()?;
    second.device().synchronize()?;
    let start = Instant::now();
    for _ in 0..load.copies {
        copy()?;
    }
    second.device().synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(load.bytes as f64 * f64::from(load.copies) / seconds / 1e9)
}
