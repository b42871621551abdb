//! Measures pinned memory: what a buffer costs, beside the driver's own calls, and what copies
//! through it reach.
//!
//! `cargo run --release -p dmr --example pinned_transfers`. Prints tables. Without a GPU it runs on
//! the simulated driver, with less memory, and the figures mean nothing.

#![allow(clippy::print_stdout, reason = "an example shows what it found")]
#![allow(unsafe_code, reason = "the driver's own calls, to compare with")]

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use dmr::dmr_buffer::DeviceViewMut;
use dmr::dmr_pinned::PinnedPool;
use dmr::prelude::*;
use dmr_sim::{Driver, Universe};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const MIB: usize = 1 << 20;
/// The number of copies of the bytes on the device for one figure.
const PASSES: usize = 4;
/// Staging buffers in flight.
const IN_FLIGHT: usize = 4;

fn main() -> Outcome {
    let simulated = match dmr_sim::select()? {
        Driver::Simulated(_) => Some(Universe::new()?),
        _ => None,
    };
    let ordinal = simulated.as_ref().map_or(0, |universe| universe.ordinal(0));
    let runtime = DeviceRuntime::builder(ordinal).build()?;
    println!("{}\n", runtime.device());
    costs(&runtime)?;
    on_a_busy_device(&runtime)?;
    many(&runtime)?;
    if let Some(universe) = &simulated {
        println!("{} calls of cuMemHostAlloc\n", universe.calls().count("cuMemHostAlloc"));
    }
    copies(&runtime, if simulated.is_some() { 64 * MIB } else { 1024 * MIB })
}

/// Prints what it costs to allocate and free, on an idle device.
fn costs(runtime: &DeviceRuntime) -> Outcome {
    println!("| allocate and free | buffer of the pool, ns | cuMemHostAlloc, cuMemFreeHost, ns |");
    println!("| --- | --- | --- |");
    let stream = runtime.streams().acquire()?;
    for (name, bytes, rounds) in
        [("4 KiB", 4096, 1000), ("1 MiB", MIB, 200), ("64 MiB", 64 * MIB, 20)]
    {
        let buffer = || PinnedBuffer::<u8>::uninit(runtime, &stream, bytes);
        let pooled = best_of(100 * rounds, || {
            buffer()?;
            Ok(())
        })?;
        runtime.device().bind()?;
        let of_driver = best_of(rounds, || {
            // SAFETY: the memory is not used, and freed once.
            unsafe { result::free_host(result::malloc_host(bytes, 1)?)? };
            Ok(())
        })?;
        println!("| {name} | {pooled:.0} | {of_driver:.0} |");
    }
    Ok(())
}

/// Prints how long the driver's calls and a buffer of the pool take while a stream works for 100
/// ms.
fn on_a_busy_device(runtime: &DeviceRuntime) -> Outcome {
    let stream = runtime.streams().acquire()?;
    let other = runtime.streams().acquire()?;
    let ops = PatternOps::new(Arc::clone(runtime.streams()))?;
    ops.delay(stream.id(), 1)?;
    stream.stream().synchronize()?;
    ops.delay(stream.id(), 100_000_000)?;
    let start = Instant::now();
    // SAFETY: the memory is not used, and freed once.
    let memory = unsafe { result::malloc_host(MIB, 1)? };
    let allocated = start.elapsed();
    // SAFETY: as above.
    unsafe { result::free_host(memory)? };
    let freed = start.elapsed() - allocated;
    stream.stream().synchronize()?;
    ops.delay(stream.id(), 100_000_000)?;
    let start = Instant::now();
    drop(PinnedBuffer::<u8>::uninit(runtime, &other, MIB)?);
    let pooled = start.elapsed();
    stream.stream().synchronize()?;
    println!(
        "\nwhile a stream works for 100 ms: cuMemHostAlloc of 1 MiB {allocated:.1?}, cuMemFreeHost {freed:.1?}, \
         a buffer of the pool {pooled:.1?}"
    );
    Ok(())
}

/// Returns the nanoseconds of one call: the least of five averages.
fn best_of(rounds: usize, mut call: impl FnMut() -> Outcome) -> Outcome<f64> {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..rounds {
            call()?;
        }
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64() * 1e9 / rounds as f64)
}

/// Prints what 100,000 buffers at once take.
fn many(runtime: &DeviceRuntime) -> Outcome {
    PinnedPool::of(runtime.streams()).reap_pending()?;
    runtime.trim_pinned(0)?;
    let stream = runtime.streams().acquire()?;
    let make = |nth: usize| PinnedBuffer::<u8>::uninit(runtime, &stream, 256 + nth * 977 % 3841);
    let start = Instant::now();
    let all = (0..100_000).map(make).collect::<Result<Vec<_>, _>>()?;
    let took = start.elapsed();
    let usage = runtime.pinned_usage();
    println!("\n100,000 buffers of 256 B to 4 KiB at once: {took:.1?}, {usage:?}");
    let start = Instant::now();
    drop(all);
    println!("dropped in {:.1?}\n", start.elapsed());
    Ok(())
}

/// Prints the rates of copies in GB/s, through buffers of the pool in flight and through one large
/// allocation.
fn copies(runtime: &DeviceRuntime, on_device: usize) -> Outcome {
    let stream = runtime.streams().acquire()?;
    let mut device = DeviceBuffer::<u8>::zeroed(runtime, &stream, on_device)?;
    println!("| chunk, MiB | to the host | to the device | to the device, write-combined |");
    println!("| --- | --- | --- | --- |");
    for chunk in [1, 4, 16, 64].map(|chunk| chunk * MIB) {
        let down = rate(on_device, || to_host(runtime, &stream, &device, chunk))?;
        let up = rate(on_device, || {
            to_device(&mut device, chunk, |part| {
                let mut buffer = PinnedBuffer::<u8>::uninit(runtime, &stream, chunk)?;
                buffer.copy_to_device(part, &stream)?;
                Ok(move || Ok(buffer.as_slice().map(|_| ())?))
            })
        })?;
        let combined = rate(on_device, || {
            to_device(&mut device, chunk, |part| {
                let mut buffer = WriteCombinedBuffer::<u8>::uninit(runtime, &stream, chunk)?;
                buffer.copy_to_device(part, &stream)?;
                Ok(move || Ok(buffer.write(0, &[0])?))
            })
        })?;
        println!("| {} | {down:.1} | {up:.1} | {combined:.1} |", chunk / MIB);
    }
    let [down, up] = of_one_allocation(runtime, &stream, &device)?;
    println!("| all of {}, cuMemHostAlloc | {down:.1} | {up:.1} | |", on_device / MIB);
    Ok(())
}

/// Returns the rate of a run that copies the bytes on the device in all passes, in GB/s: the best
/// of four runs, after one that does not count.
fn rate(on_device: usize, mut run: impl FnMut() -> Outcome) -> Outcome<f64> {
    run()?;
    let mut best = Duration::MAX;
    for _ in 0..4 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok((PASSES * on_device) as f64 / best.as_secs_f64() / 1e9)
}

/// Copies to the host: each chunk to a buffer of its own, of which the host sees the last byte, and
/// drops it.
fn to_host(
    runtime: &DeviceRuntime,
    stream: &StreamLease,
    device: &DeviceBuffer<u8>,
    chunk: usize,
) -> Outcome {
    let mut in_flight = VecDeque::new();
    for at in (0..PASSES * device.len()).step_by(chunk).map(|at| at % device.len()) {
        let mut buffer = PinnedBuffer::<u8>::uninit(runtime, stream, chunk)?;
        buffer.copy_from_device(device.slice(at..at + chunk)?, stream)?;
        in_flight.push_back(buffer);
        if in_flight.len() > IN_FLIGHT
            && let Some(mut buffer) = in_flight.pop_front()
        {
            std::hint::black_box(buffer.as_slice()?[chunk - 1]);
        }
    }
    for mut buffer in in_flight {
        std::hint::black_box(buffer.as_slice()?[chunk - 1]);
    }
    Ok(())
}

/// Copies to the device, each chunk from a buffer of its own. `copy` submits a copy and returns a
/// function that waits for it and drops the buffer.
fn to_device<W: FnOnce() -> Outcome>(
    device: &mut DeviceBuffer<u8>,
    chunk: usize,
    copy: impl Fn(DeviceViewMut<'_, u8>) -> Outcome<W>,
) -> Outcome {
    let mut in_flight = VecDeque::new();
    let len = device.len();
    for at in (0..PASSES * len).step_by(chunk).map(|at| at % len) {
        in_flight.push_back(copy(device.slice_mut(at..at + chunk)?)?);
        if in_flight.len() > IN_FLIGHT
            && let Some(wait) = in_flight.pop_front()
        {
            wait()?;
        }
    }
    in_flight.into_iter().try_for_each(|wait| wait())
}

/// Returns the rates of copies of all bytes to and from memory of `cuMemHostAlloc`.
fn of_one_allocation(
    runtime: &DeviceRuntime,
    stream: &StreamLease,
    device: &DeviceBuffer<u8>,
) -> Outcome<[f64; 2]> {
    runtime.device().bind()?;
    // SAFETY: freed below, when no copy uses it.
    let host = unsafe { result::malloc_host(device.len(), 1)? };
    let at = device.block().map_or(0, DeviceBlock::ptr);
    let cu_stream = stream.stream().cu_stream();
    let copies = |copy: &dyn Fn() -> Outcome| -> Outcome {
        (0..PASSES).try_for_each(|_| copy())?;
        Ok(stream.stream().synchronize()?)
    };
    let down = rate(device.len(), || {
        copies(&|| {
            // SAFETY: both ranges have that many bytes, and the stream is synchronised before they
            // are freed.
            Ok(unsafe {
                let host = std::slice::from_raw_parts_mut(host.cast::<u8>(), device.len());
                result::memcpy_dtoh_async(host, at, cu_stream)
            }?)
        })
    })?;
    let up = rate(device.len(), || {
        copies(&|| {
            // SAFETY: as above.
            Ok(unsafe {
                let host = std::slice::from_raw_parts(host.cast::<u8>(), device.len());
                result::memcpy_htod_async(at, host, cu_stream)
            }?)
        })
    })?;
    // SAFETY: allocated above.
    unsafe { result::free_host(host)? };
    Ok([down, up])
}
